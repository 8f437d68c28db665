"""`python -m tests.hostile --requests 10000000 --seed 1`: attacks two bookies, and prints what they
made of it.

One serves everybody; the other has TLS, users and permissions. Attackers send hostile frames, TLS
records and HTTP requests, while a neighbour appends and reads. The exit code is 1 if an operation
of the neighbour failed or was lost, memory exceeded its bound, or tasks, connections, descriptors
or an error in a log are left.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import trio

from tests.hostile import campaign

_PROGRESS_S = 10.0


class _Progress:
    def __init__(self) -> None:
        self._shown_at: dict[str, float] = {}

    def show(self, text: str) -> None:
        name, now = text.partition(":")[0], time.monotonic()
        if now - self._shown_at.get(name, 0.0) >= _PROGRESS_S:
            self._shown_at[name] = now
            print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.hostile", description="Attacks two bookies beside their neighbours."
    )
    parser.add_argument("--requests", type=int, default=100_000, help="in all (default 100,000)")
    parser.add_argument(
        "--http", type=int, help="of them over HTTP (default a tenth), which take the longest"
    )
    parser.add_argument("--tls", type=int, help="of them records of TLS (default a tenth)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=("open", "secured"), help="one of the bookies")
    parser.add_argument("--keep", type=Path, help="a new directory in which the bookies stay")
    given = parser.parse_args()
    wanted = campaign.shares(given.requests, given.http, given.tls)
    if given.only:
        wanted = {given.only: wanted[given.only]}
    with tempfile.TemporaryDirectory() as directory:
        place = given.keep or Path(directory)
        place.mkdir(exist_ok=True)
        reports = trio.run(campaign.run, place, wanted, given.seed, _Progress().show)
    for report in reports:
        print("\n".join(report.lines()))
    for kind, count in campaign.total(reports).items():
        print(f"{count:,} {kind}")
    failed = any(report.failures for report in reports)
    print("the verdict:", "FAILED" if failed else "ok")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
