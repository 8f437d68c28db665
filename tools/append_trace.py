"""Prints how many Python calls one append makes, and how many files it enters.

    python -m tools.append_trace [--calls] [--files]

Runs a writer and three bookies in the simulator, and counts from the call of `append` until the
record is acknowledged: the calls of all processes together in `bookie`, `ledger` and `stream`, but
for those of the simulator itself (`bookie/testing`). `--calls` lists them; `--files` lists the
files in the order in which the append enters them, with the calls in each. The figures depend on
the code alone: the seed fixes the order of all tasks.

An older commit is measured by running this file in a worktree of that commit.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

from bookie.testing import SimCluster, simulate
from stream import Namespace

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("bookie/", "ledger/", "stream/")
SIMULATOR = "bookie/testing/"
APPENDS_BEFORE = 120
"""Appends that are not counted: the first ones create the segment, fill caches, and show that the
disks are fast."""
DISK_S = 0.0002
"""How long a write takes at most, as with a disk in use and not one of a simulation with faults."""


class Trace:
    """The calls of our packages while it is `on`, by file and function."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.is_on = False
        self._names: dict[str, str | None] = {}

    @property
    def files(self) -> Counter[str]:
        """The number of calls in each file, in the order in which the files are entered."""
        files: Counter[str] = Counter()
        for (file, _), count in self.calls.items():
            files[file] += count
        return files

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and self.is_on:
            name = self._name_of(frame.f_code.co_filename)
            if name is not None:
                self.calls[name, frame.f_code.co_qualname] += 1

    def _name_of(self, path: str) -> str | None:
        if path not in self._names:
            name = path.removeprefix(f"{ROOT}/")
            is_counted = name.startswith(PACKAGES) and not name.startswith(SIMULATOR)
            self._names[path] = name if is_counted else None
        return self._names[path]


def trace_append() -> Trace:
    """Returns the trace of one append to a stream that is in use."""
    trace = Trace()

    async def append(cluster: SimCluster) -> None:
        network = cluster.network.options
        network.split_probability = network.spike_probability = 0.0
        network.early_wake_probability = 0.0
        for name in cluster.bookies:
            disk = cluster.disk(name).options
            disk.write_max_s = disk.sync_max_s = DISK_S
        async with cluster.client("writer") as client:
            namespace = Namespace(client, "n")
            await namespace.ensure()
            async with namespace.writer("s", create=True) as writer:
                for _ in range(APPENDS_BEFORE):
                    await writer.append(b"before")
                trace.is_on = True
                await writer.append(b"traced")
                trace.is_on = False

    sys.setprofile(trace)
    try:
        simulate(append)
    finally:
        sys.setprofile(None)
    return trace


def main() -> None:
    parser = argparse.ArgumentParser(description="Traces one append in a simulated cluster.")
    parser.add_argument("--calls", action="store_true", help="list the calls, most frequent first")
    parser.add_argument("--files", action="store_true", help="list the files, in order of entry")
    arguments = parser.parse_args()
    trace = trace_append()
    print(f"{trace.calls.total()} calls in {len(trace.files)} files")
    if arguments.files:
        for file, count in trace.files.items():
            print(f"{count:4} {file}")
    if arguments.calls:
        for (file, function), count in trace.calls.most_common():
            print(f"{count:4} {file} {function}")


if __name__ == "__main__":
    main()
