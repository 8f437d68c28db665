"""`ledgerstream bench`: runs the benchmarks of a source checkout.

Benchmarks are not in the wheel; this finds them beside the packages, and says what to do if not.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ledger.cli.output import EXIT_ERROR, remark


def bench(*tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]) -> int:
    """Run a benchmark: rate, idle, ledger-add, append, fanout, catchup, record-size or writers.

    Or cold-read, start, restart, many-ledgers, mixed, copy, streams, segments, security,
    micro-batches, spark-read, spark-write, spark-latency, spark-stateful. all: every one of them,
    in about 70 minutes.

    `ledgerstream bench append --help` shows the options of all of them.
    """
    checkout = Path(__file__).resolve().parents[2]
    if not (checkout / "benchmarks" / "__main__.py").exists():
        remark(
            "ledgerstream: benchmarks are part of the source, not of the installed package: "
            "get a checkout of this version and run `make install && make bench` in it"
        )
        return EXIT_ERROR
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    importlib.import_module("benchmarks.__main__").main(tokens or ["--help"])
    return 0
