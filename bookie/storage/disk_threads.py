"""How many threads `real_disk` calls the system on, and for what.

Each directory has its own, since it is or should be a disk of its own: one that hangs takes nobody
else's threads.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import trio

from bookie.storage.disk.threads import CallThreads

WRITE_THREADS_MAX: Final = 4
READ_THREADS_MAX: Final = 16
"""More than `bookie.server.read_scheduler` has slots, those for priority included: none of its reads waits for
a thread behind compaction, scrubbing and the like."""


class Threads(NamedTuple):
    """Of one directory."""

    reads: CallThreads
    writes: trio.CapacityLimiter


class DiskThreads:
    """Of all directories of a process."""

    def __init__(self) -> None:
        self._by_directory: dict[str, Threads] = {}

    def of(self, directory: str) -> Threads:
        """No more than there are directories: paths are those of the configuration."""
        threads = self._by_directory.get(directory)
        if threads is None:
            threads = self._by_directory[directory] = Threads(
                CallThreads(f"reads {directory}", READ_THREADS_MAX),
                trio.CapacityLimiter(WRITE_THREADS_MAX),
            )
        return threads

    def end(self) -> None:
        """Those that read end when what they do has."""
        for threads in self._by_directory.values():
            threads.reads.end()
