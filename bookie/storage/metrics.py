"""Counts what operators need to know of the storage of one ledger directory.

Plain numbers that a scrape reads. They change once per read of an entry log, per wait, per
checkpoint or per round of garbage collection; per entry read by at most one addition.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

import trio

from bookie.core.compaction import RATIO_STEPS, CompactionKind
from bookie.core.metrics import SECONDS, SIZES, Distribution, Histogram
from bookie.storage.index.key_value import IndexUnreadable
from bookie.storage.options import StorageStatistics

_NOT_IN_SUMMARY = ("set_aside", "index_problem")


@dataclass(slots=True)
class GarbageCollectionReport:
    """What one round of garbage collection did. Bytes are sizes of files."""

    ledgers_asked: int = 0
    ledgers_deleted: int = 0
    asks_failed: int = 0
    """Ledgers whose query got no answer; they were left alone."""
    logs_removed: int = 0
    """Entry logs whose ledgers were all deleted."""
    bytes_reclaimed_by_deletion: int = 0
    compaction: CompactionKind = CompactionKind.NONE
    """The compaction that was done, whether or not it found anything."""
    seconds: float = 0.0
    """The time that the compaction took."""
    ended_early: str = ""
    """Why the compaction ended before it was done; "" if it was done."""
    is_time_up: bool = False
    """It ended early because it took too long, and is due again."""
    logs_compacted: int = 0
    """Entry logs removed because their live entries were moved, or were added again elsewhere."""
    logs_without_room: int = 0
    """Entry logs left alone because the disk has no space for their live entries."""
    entries_moved: int = 0
    bytes_moved: int = 0
    """Bytes of entries moved into new logs."""
    bytes_written: int = 0
    """Bytes written into new logs that stay: the net gain is smaller by this."""
    bytes_reclaimed_by_compaction: int = 0
    set_aside: tuple[str, ...] = ()
    """Damaged entry logs found in this round for the first time: path, and what is wrong."""
    index_problem: str = ""
    """What of the index could not be read first, and the cure; "" if all could. What depends on it
    was left as it is."""

    @contextmanager
    def noting_unreadable(self) -> Iterator[None]:
        """Leaves to a later round what cannot be done within because the index cannot be read."""
        try:
            yield
        except IndexUnreadable as error:
            self.unreadable(error)

    def unreadable(self, error: IndexUnreadable) -> None:
        """Records the first of these errors."""
        self.index_problem = self.index_problem or str(error)

    def __str__(self) -> str:
        """Returns one line for a log, without the fields that are zero."""
        return " ".join(
            f"{field.name}={value.name if isinstance(value, CompactionKind) else value}"
            for field in fields(self)
            if (value := getattr(self, field.name)) and field.name not in _NOT_IN_SUMMARY
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
    """How compaction used the space: since the process began, unless a field says now or at the
    last survey."""

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
    """Now: damaged logs, which are not compacted. What is whole in them is still read."""
    is_compacting: bool = False
    """Now."""
    log_bytes: int = 0
    """At the last survey: the sizes of all sealed entry logs."""
    live_bytes: int = 0
    """At the last survey: the live bytes in them."""
    logs_by_live_ratio: tuple[int, ...] = (0,) * RATIO_STEPS
    """At the last survey: sealed logs whose live share is below 10 %, 20 %, ..., 100 %."""

    def add(self, round_: GarbageCollectionReport) -> None:
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


@contextmanager
def timed(histogram: Histogram) -> Iterator[None]:
    """Measures how long the block takes, also if it fails."""
    started = trio.current_time()
    try:
        yield
    finally:
        histogram.observe(trio.current_time() - started)


@dataclass(frozen=True, slots=True)
class ReadStatistics:
    """The entries read, by where they were found."""

    write_cache_hits: int
    write_cache_misses: int
    read_cache_hits: int
    read_cache_misses: int
    """Each of them reads a part of an entry log."""
    read_ahead_entries: int
    """Entries read along with the requested one."""
    entry_log_bytes: int
    """Bytes read from entry logs."""
    entries_damaged: int
    """Entries found whose bytes are not those that were added: reads of them are I/O errors."""
    entries_unverified: int
    """Entries served although no checksum could be compared: the digest of their ledger has a key,
    and the rest of their record is damaged or was replaced."""
    disk_seconds: Distribution
    """The time of reads that had to wait for the disk."""


class ReadMetrics:
    """Counted by `EntryReader`."""

    def __init__(self) -> None:
        self.entries = self.write_cache_hits = 0
        self.entries_damaged = self.entries_unverified = 0
        self._blocks = self._read_ahead_entries = self._entry_log_bytes = 0
        self.disk_seconds = Histogram(SECONDS)

    def block_read(self, entries: int, nbytes: int) -> None:
        """Counts a read of a stretch of an entry log with `entries` entries, for the first of
        them."""
        self._blocks += 1
        self._read_ahead_entries += entries - 1
        self._entry_log_bytes += nbytes

    def statistics(self) -> ReadStatistics:
        misses = self.entries - self.write_cache_hits
        return ReadStatistics(
            write_cache_hits=self.write_cache_hits,
            write_cache_misses=misses,
            # A block that was read, but whose entry was not returned, is no negative hit.
            read_cache_hits=max(0, misses - self._blocks),
            read_cache_misses=self._blocks,
            read_ahead_entries=self._read_ahead_entries,
            entry_log_bytes=self._entry_log_bytes,
            entries_damaged=self.entries_damaged,
            entries_unverified=self.entries_unverified,
            disk_seconds=self.disk_seconds.distribution(),
        )


@dataclass(frozen=True, slots=True)
class FlushStatistics:
    """Checkpoints, and the connections that waited for them."""

    seconds: Distribution
    """The time of whole checkpoints."""
    entry_log_seconds: Distribution
    """The part of it for writing and syncing entry logs."""
    index_seconds: Distribution
    """The part of it for writing and syncing the index."""
    nbytes: Distribution
    """Bytes of frames in the half that was written."""
    flushing_bytes: int
    """Bytes of the half that is being written now."""
    ended_s_ago: float | None
    """Seconds since the last checkpoint; None before the first."""
    throttled_seconds: Distribution
    """How long connections waited for capacity in the write cache."""
    throttled_now: int
    """Connections that wait for capacity now."""


class FlushMetrics:
    """Counted by the checkpoints."""

    def __init__(self) -> None:
        self.entry_log_seconds = Histogram(SECONDS)
        self.index_seconds = Histogram(SECONDS)
        self.nbytes = Histogram(SIZES)
        self.flushing_bytes = 0
        self._seconds = Histogram(SECONDS)
        self._ended_at: float | None = None
        self._throttled_seconds = Histogram(SECONDS)
        self._throttled_now = 0

    def checkpoint_made(self, seconds: float) -> None:
        """Counts a checkpoint that ended just now, after `seconds`."""
        self._seconds.observe(seconds)
        self._ended_at = trio.current_time()

    @contextmanager
    def throttled(self) -> Iterator[None]:
        """Measures a wait for capacity in the write cache."""
        self._throttled_now += 1
        try:
            with timed(self._throttled_seconds):
                yield
        finally:
            self._throttled_now -= 1

    def statistics(self) -> FlushStatistics:
        ended_at = self._ended_at
        return FlushStatistics(
            seconds=self._seconds.distribution(),
            entry_log_seconds=self.entry_log_seconds.distribution(),
            index_seconds=self.index_seconds.distribution(),
            nbytes=self.nbytes.distribution(),
            flushing_bytes=self.flushing_bytes,
            ended_s_ago=None if ended_at is None else trio.current_time() - ended_at,
            throttled_seconds=self._throttled_seconds.distribution(),
            throttled_now=self._throttled_now,
        )


@dataclass(frozen=True, slots=True)
class GarbageStatistics:
    """What all rounds of garbage collection did together."""

    seconds: Distribution
    """The time of whole rounds."""
    ledgers_asked: int
    ledgers_deleted: int
    asks_failed: int
    logs_removed: int


class GarbageMetrics:
    """Counted by garbage collection, once per round."""

    def __init__(self) -> None:
        self._seconds = Histogram(SECONDS)
        self.rounds = 0
        self._asked = self._deleted = self._failed = self._logs_removed = 0

    def round_done(
        self, seconds: float, *, asked: int, deleted: int, failed: int, logs_removed: int
    ) -> None:
        self.rounds += 1
        self._seconds.observe(seconds)
        self._asked += asked
        self._deleted += deleted
        self._failed += failed
        self._logs_removed += logs_removed

    def statistics(self) -> GarbageStatistics:
        return GarbageStatistics(
            seconds=self._seconds.distribution(),
            ledgers_asked=self._asked,
            ledgers_deleted=self._deleted,
            asks_failed=self._failed,
            logs_removed=self._logs_removed,
        )


@dataclass(slots=True)
class ScrubStatistics:
    """What the scrubber did since the process began."""

    rounds: int = 0
    """Rounds through all sealed entry logs."""
    logs: int = 0
    bytes_read: int = 0
    damaged_logs: int = 0
    """Damaged logs found by the scrubber for the first time."""


@dataclass(slots=True)
class LimboStatistics:
    """Ledgers whose entries may have been lost, since the process began."""

    ledgers: int | None = None
    """Ledgers in limbo; None before they were counted."""
    ledgers_repaired: int = 0
    entries_copied: int = 0
    """Entries copied from other bookies."""


@dataclass(frozen=True, slots=True)
class DirectoryStatistics:
    """Everything that operators look at, of one ledger directory."""

    directory: str
    write_cache_limit_bytes: int
    """Of both halves together."""
    storage: StorageStatistics
    reads: ReadStatistics
    flushes: FlushStatistics
    garbage: GarbageStatistics
    compaction: CompactionStatistics
    scrub: ScrubStatistics
    limbo: LimboStatistics
