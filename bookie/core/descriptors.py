"""How a process divides the file descriptors that it may have between connections and files.

A bookie that cannot open a file of a journal or an index must end, so that connections never get
what those need.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ledger.errors import InvalidArgument

FIXED: Final = 64
"""For the log, the metadata store, locks, pipes, files of cookies and marks, and the system's."""
HTTP: Final = 32
PER_JOURNAL: Final = 8
INDEX_FILES_MAX: Final = 500
"""Files that one index store keeps open, if it may."""
LOGS_OPEN_MAX: Final = 200
"""Entry logs that one ledger directory keeps open, if it may."""
PER_LOG: Final = 3
"""Reads and writes around the page cache have descriptors of their own."""
CONNECTIONS_MIN: Final = 16
_INDEX_FILES_MIN: Final = 32
_LOGS_OPEN_MIN: Final = 8
_PER_DIRECTORY_MIN: Final = _INDEX_FILES_MIN + _LOGS_OPEN_MIN * PER_LOG
_PER_DIRECTORY_MAX: Final = INDEX_FILES_MAX + LOGS_OPEN_MAX * PER_LOG


@dataclass(frozen=True, slots=True)
class DescriptorPlan:
    """How many of each kind a process may have open."""

    connections_max: int
    index_files_max: int
    """In each ledger directory."""
    logs_open_max: int
    """In each ledger directory."""


ALL_DESCRIPTORS: Final = DescriptorPlan(1 << 20, INDEX_FILES_MAX, LOGS_OPEN_MAX)
"""The plan of a process without a limit."""


def plan_descriptors(
    limit: int, *, connections_max: int, journals: int, directories: int
) -> DescriptorPlan:
    """Returns the plan for a process that may have `limit` descriptors. Connections are what is
    fewer: `connections_max`, or half of what the files do not need at least.

    Raises InvalidArgument if not even few connections and files are possible.
    """
    fixed = FIXED + HTTP + journals * PER_JOURNAL
    free = limit - fixed - directories * _PER_DIRECTORY_MIN
    if free < 2 * CONNECTIONS_MIN:
        needed = fixed + directories * _PER_DIRECTORY_MIN + 2 * CONNECTIONS_MIN
        raise InvalidArgument(
            f"the process may open {limit} files, but {journals} journals and {directories} ledger"
            f" directories need at least {needed}. Cure: raise the hard limit (`ulimit -Hn`, or"
            " LimitNOFILE of systemd)"
        )
    connections = min(connections_max, max(free // 2, free - _spread(directories)))
    files = min((free - connections) // directories + _PER_DIRECTORY_MIN, _PER_DIRECTORY_MAX)
    logs = min(LOGS_OPEN_MAX, _LOGS_OPEN_MIN + (files - _PER_DIRECTORY_MIN) // (2 * PER_LOG))
    index = min(INDEX_FILES_MAX, files - logs * PER_LOG)
    logs = min(LOGS_OPEN_MAX, (files - index) // PER_LOG)
    return DescriptorPlan(connections, index, logs)


def _spread(directories: int) -> int:
    """Returns what all directories use at most, beyond the least."""
    return directories * (_PER_DIRECTORY_MAX - _PER_DIRECTORY_MIN)
