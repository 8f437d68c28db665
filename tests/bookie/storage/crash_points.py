"""`python -m tests.bookie.storage.crash_points` runs every crash test and counts crash points.

A crash point is one write, sync, rename, removal, truncation or batch of the index in the middle of
which the process or its machine died. Arguments are pytest's: `-n 2` takes two processes. The exit
code is that of the tests.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.crash_counts import SETTLED, TRIED

_ROOT = Path(__file__).resolve().parents[3]
FILES = (
    "tests/bookie/storage/journal/test_crashes.py",
    "tests/bookie/storage/test_crash_points.py",
    "tests/bookie/storage/test_crash_points_unsynced_acks.py",
    "tests/bookie/storage/test_crash_points_failed_sync.py",
    "tests/bookie/storage/garbage/test_compaction_crashes.py",
    "tests/bookie/storage/garbage/test_copy_removal.py",
    "tests/sim/bookies/test_crash_first_start.py",
    "tests/sim/bookies/test_crash_points.py",
)


def table(counts: Counter[tuple[str, str]]) -> str:
    """A row for each kind of file, a column for each of the others."""
    kinds = sorted({kind for kind, _ in counts})
    columns = sorted({column for _, column in counts})
    width = max([len(one) for one in columns] or [0]) + 2
    rows = [f"{'':12}" + "".join(f"{one:>{width}}" for one in [*columns, "all"])]
    for kind in kinds:
        row = [counts[kind, one] for one in columns]
        cells = "".join(f"{count or '':>{width}}" for count in [*row, sum(row)])
        rows.append(f"{kind:12}{cells}")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bookie.storage.crash_points",
        description="Runs every crash test and says how many crash points were tried.",
        epilog="All else is for pytest: -n 2 takes two processes, -x ends with the first fault.",
        allow_abbrev=False,
    )
    _, arguments = parser.parse_known_args()
    os.environ.setdefault("TEST_EFFORT", "night")  # all of them, not a change's sample
    files = [str(_ROOT / name) for name in FILES]
    plugins = ["-p", "no:cacheprovider", "-p", "tests.crash_plugin"]
    code = pytest.main(["-q", *plugins, *files, *arguments])
    sys.stdout.write(
        f"\nBy what was in progress:\n{table(TRIED)}\n{TRIED.total()} crash points\n"
        f"\nBy what was left of what was not synced:\n{table(SETTLED)}\n"
        f"{SETTLED.total()} continuations\n"
    )
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
