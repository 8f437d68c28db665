"""How many crash points were tried, by what was being written: crash tests count them here."""

from __future__ import annotations

import enum
import sys
from collections import Counter
from types import FrameType


class Aftermath(enum.Enum):
    """What is found after a crash of that which was written and not synced."""

    DROPPED = "dropped"
    """Nothing."""
    TORN = "torn"
    """Each sector or not, and a first part of the changes of names in each directory."""
    KEPT = "kept"
    """All of it, though not durable yet: only the process died."""


AFTERMATH_OF = {
    "POWER_LOST_ALL": Aftermath.DROPPED,
    "POWER_LOST_TORN": Aftermath.TORN,
    "PROCESS_KILLED": Aftermath.KEPT,
}
"""By name of a `bookie.testing.CrashKind`; `bookie` may not be imported before pytest."""
TRIED: Counter[tuple[str, str]] = Counter()
"""By kind of file and operation, in this process."""
SETTLED: Counter[tuple[str, str]] = Counter()
"""By kind of file and aftermath: a crash point may have several continuations."""
_KINDS = {
    "lastmark": "mark",
    "VERSION": "cookie",
    "LOCK": "lock",
    ".journal": "journal",
    "spare-": "journal",
    ".log": "entry log",
    "index": "index",
}
_COMPACTION = tuple(
    f"bookie/storage/garbage/{name}.py"
    for name in ("compactor", "compaction_log", "compaction_index")
)


def crashed(path: str, operation: str, *aftermaths: Aftermath) -> None:
    """A process or its machine died in the middle of `operation` on the file or directory.
    `aftermaths`, if they are known now; else see `settled`."""
    kind = kind_of(path)
    TRIED[kind, operation] += 1
    for aftermath in aftermaths:
        settled(kind, aftermath)


def settled(kind: str, aftermath: Aftermath) -> None:
    """Counts a continuation of a crash with what `aftermath` left."""
    SETTLED[kind, aftermath.value] += 1


def kind_of(path: str) -> str:
    """What a file is, for who is about to write it."""
    # Compaction writes ordinary logs and batches: the caller shows which.
    caller: FrameType | None = sys._getframe(1)
    while caller is not None:
        if caller.f_code.co_filename.endswith(_COMPACTION):
            return "compaction"
        caller = caller.f_back
    name = path.removesuffix(".tmp").rpartition("/")[2]
    for part, kind in _KINDS.items():
        if part in name:
            return kind
    return "directory"
