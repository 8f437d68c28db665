"""Runs benchmarks: `python -m benchmarks NAME [options]` or `ledgerstream bench NAME [options]`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import trio
from cyclopts import App

from benchmarks.children import ChildEnded, early_end
from benchmarks.cluster import RunningCluster, running_cluster, stop_all_when_terminated
from benchmarks.report import Measured, result_of, show
from benchmarks.settings import Settings

Name = Literal[
    "ledger-add", "append", "latency", "tail", "fanout", "catchup", "streams", "start",
    "restart", "many-ledgers", "mixed", "copy", "spark-read", "spark-write", "spark-latency",
    "security", "all",
]  # fmt: skip
_OF_THEIR_OWN: tuple[Name, ...] = ("start", "restart", "many-ledgers", "security")
"""Benchmarks that start processes themselves."""
_RATES: dict[Name, int] = {"latency": 1000, "tail": 500, "fanout": 20_000, "mixed": 1000}

# The benchmarks that `all` runs: the rows of the table in docs/performance.md. The others take
# long or need Spark; docs/performance.md describes their results in text.
TABLE: list[tuple[Name, dict[str, Any]]] = [
    ("start", {}),
    ("ledger-add", {"size": 100}),
    ("ledger-add", {"size": 1024}),
    ("append", {"mode": "many"}),
    ("append", {"mode": "single"}),
    ("append", {"mode": "callers"}),
    ("latency", {"layer": "ledger", "size": 1024}),
    ("latency", {"layer": "stream"}),
    ("tail", {}),
    ("fanout", {"shape": "batches"}),
    ("fanout", {"shape": "records"}),
    ("catchup", {"shape": "batches"}),
    ("catchup", {"shape": "records"}),
]


def run_one(name: Name, settings: Settings) -> dict[str, Any]:
    """Runs one benchmark on a cluster of its own and returns its result."""
    if not settings.rate:
        settings = replace(settings, rate=_RATES.get(name, 0))
    module = importlib.import_module("benchmarks." + name.replace("-", "_"))
    if name in _OF_THEIR_OWN:
        directory = settings.dir or Path.cwd()
        measured_by = getattr(module, name.replace("-", "_"))
        return result_of(name, settings, measured_by(settings), directory)
    body: Callable[[Settings, RunningCluster], Awaitable[Measured]]
    body = getattr(module, name.replace("-", "_"))
    with running_cluster(settings.bookies, settings.dir) as cluster:

        async def measured() -> Measured:
            return await body(settings, cluster)

        try:
            found = trio.run(measured)
        except (ChildEnded, BaseExceptionGroup) as error:
            if (ended_early := early_end(error)) is None:
                raise
            raise SystemExit(f"benchmark {name}: {ended_early}") from error
        result = result_of(name, settings, found, cluster.directory)
        ended = cluster.ended_bookies()
        return result | {"bookies_ended": len(ended)} if ended else result


def bench(name: Name, *, settings: Settings | None = None) -> None:
    """Run a benchmark on a cluster of its own: real processes, fsync on.

    Parameters
    ----------
    name
        ledger-add: entries to a ledger. append: records to a stream. latency: at a fixed rate.
        tail: from writer to reader. fanout: to a hundred readers. catchup: reading a whole stream.
        start: until "ready". restart: a killed bookie with 1 GiB in its journal, until "ready".
        many-ledgers: a bookie with a million ledgers, compared with one with a thousand.
        mixed: writes, a tail and two catch-up readers together, compared with writes alone.
        copy: a ledger of two bookies to the third; with --rate, appends beside it.
        security: what TLS, authentication and permissions cost, compared with a cluster in clear.
        streams: many streams, some of them written at once.
        spark-read: a stream into Spark, and Parquet. spark-write: rows of Spark into a stream, and
        into Parquet. spark-latency: one record through a micro-batch.
        all: the benchmarks of the table in docs/performance.md, with its settings: start,
        ledger-add, append, latency, tail, fanout and catchup.
    """
    chosen = settings or Settings()
    if chosen.one_at_a_time:
        chosen = replace(chosen, mode="single", one_at_a_time=False)
    if name == "all":
        for each, changes in TABLE:
            show(run_one(each, replace(chosen, **changes)), is_json=chosen.json)
    else:
        show(run_one(name, chosen), is_json=chosen.json)


def main(tokens: Sequence[str] | None = None) -> None:
    app = App(name="ledgerstream bench", result_action="return_value", version_flags=[])
    app.default(bench)
    app(sys.argv[1:] if tokens is None else list(tokens))


if __name__ == "__main__":
    stop_all_when_terminated()
    main()
