"""What garbage collection did: in one round, and since the process began."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

from bookie.core.compaction import RATIO_STEPS, CompactionKind
from bookie.storage.index.key_value import IndexUnreadable

_TOLD_APART = ("set_aside", "index_problem")


@dataclass(slots=True)
class Collected:
    """What one round did. Bytes are sizes of files."""

    ledgers_asked: int = 0
    ledgers_deleted: int = 0
    asks_failed: int = 0
    """Asked without an answer; these ledgers were left alone."""
    logs_removed: int = 0
    """Entry logs whose ledgers were all deleted."""
    bytes_reclaimed_by_deletion: int = 0
    compaction: CompactionKind = CompactionKind.NONE
    """What was done, whether or not it found anything."""
    seconds: float = 0.0
    """What the compaction took."""
    ended_early: str = ""
    """Why the compaction ended before it was done; "" if it was done."""
    is_time_up: bool = False
    """It ended early because it took long, and is due again."""
    logs_compacted: int = 0
    """Entry logs removed because what lived in them was moved, or was added again elsewhere."""
    logs_without_room: int = 0
    """Left alone because the disk has no room for what lives in them."""
    entries_moved: int = 0
    bytes_moved: int = 0
    """Of entries, into new logs."""
    bytes_written: int = 0
    """Into new logs that stay: what was reclaimed is this much less in the end."""
    bytes_reclaimed_by_compaction: int = 0
    set_aside: tuple[str, ...] = ()
    """Damaged entry logs found in this round for the first time: path, and what is wrong."""
    index_problem: str = ""
    """What of the index could not be read first, and the cure; "" if all could. What it concerns
    was left as it is."""

    @contextmanager
    def noting_unreadable(self) -> Iterator[None]:
        """What cannot be done within because of the index is left for a later round."""
        try:
            yield
        except IndexUnreadable as error:
            self.unreadable(error)

    def unreadable(self, error: IndexUnreadable) -> None:
        """The first of them is told."""
        self.index_problem = self.index_problem or str(error)

    def __str__(self) -> str:
        """One line for a log: what is not nothing."""
        return " ".join(
            f"{field.name}={value.name if isinstance(value, CompactionKind) else value}"
            for field in fields(self)
            if (value := getattr(self, field.name)) and field.name not in _TOLD_APART
        )

    @property
    def did_something(self) -> bool:
        return bool(
            self.ledgers_deleted
            or self.asks_failed
            or self.logs_removed
            or self.logs_compacted
            or self.bytes_moved
            or self.logs_without_room
            or self.set_aside
        )


@dataclass(slots=True)
class CompactionStatistics:
    """What became of the space: since the process began, but for what is said to be of now or of
    the last survey."""

    bytes_reclaimed_by_deletion: int = 0
    minor_compactions: int = 0
    major_compactions: int = 0
    compactions_ended_early: int = 0
    compaction_seconds: float = 0.0
    logs_compacted: int = 0
    entries_moved: int = 0
    bytes_moved: int = 0
    bytes_written: int = 0
    bytes_reclaimed_by_compaction: int = 0
    logs_set_aside: int = 0
    """Now: damaged logs, which are not compacted. What is whole in them is read as ever."""
    is_compacting: bool = False
    """Now."""
    log_bytes: int = 0
    """At the last survey: sizes of all sealed entry logs."""
    live_bytes: int = 0
    """At the last survey: what is needed of them."""
    logs_by_live_ratio: tuple[int, ...] = (0,) * RATIO_STEPS
    """At the last survey: sealed logs that are needed to less than 10 %, 20 %, ..., 100 %."""

    def add(self, round_: Collected) -> None:
        """Counts one round."""
        self.bytes_reclaimed_by_deletion += round_.bytes_reclaimed_by_deletion
        self.minor_compactions += round_.compaction is CompactionKind.MINOR
        self.major_compactions += round_.compaction is CompactionKind.MAJOR
        self.compactions_ended_early += bool(round_.ended_early)
        self.compaction_seconds += round_.seconds
        self.logs_compacted += round_.logs_compacted
        self.entries_moved += round_.entries_moved
        self.bytes_moved += round_.bytes_moved
        self.bytes_written += round_.bytes_written
        self.bytes_reclaimed_by_compaction += round_.bytes_reclaimed_by_compaction
