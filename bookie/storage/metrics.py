"""What the storage of one ledger directory counts for its operators.

Plain numbers that a scrape reads. Once per read of an entry log, per wait, per checkpoint or
per round of garbage collection; for each entry read at most an addition.

What garbage collection did: in one round, and since the process began.
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
    """Counts how long the block takes, also if it fails."""
    started = trio.current_time()
    try:
        yield
    finally:
        histogram.observe(trio.current_time() - started)


@dataclass(frozen=True, slots=True)
class ReadStatistics:
    """Entries read, by where they were found."""

    write_cache_hits: int
    write_cache_misses: int
    read_cache_hits: int
    read_cache_misses: int
    """Each of them reads a part of an entry log."""
    read_ahead_entries: int
    """Read with the entry that was asked for."""
    entry_log_bytes: int
    """Read from entry logs."""
    disk_seconds: Distribution
    """Of reads that had to wait for the disk."""


class ReadMetrics:
    """Counted by the reader of entries."""

    def __init__(self) -> None:
        self.entries = self.write_cache_hits = 0
        self._blocks = self._read_ahead_entries = self._entry_log_bytes = 0
        self.disk_seconds = Histogram(SECONDS)

    def block_read(self, entries: int, nbytes: int) -> None:
        """A stretch of an entry log with so many entries was read for the first of them."""
        self._blocks += 1
        self._read_ahead_entries += entries - 1
        self._entry_log_bytes += nbytes

    def statistics(self) -> ReadStatistics:
        misses = self.entries - self.write_cache_hits
        return ReadStatistics(
            write_cache_hits=self.write_cache_hits,
            write_cache_misses=misses,
            # A block that was read, but whose entry was not given out, is no negative hit.
            read_cache_hits=max(0, misses - self._blocks),
            read_cache_misses=self._blocks,
            read_ahead_entries=self._read_ahead_entries,
            entry_log_bytes=self._entry_log_bytes,
            disk_seconds=self.disk_seconds.distribution(),
        )


@dataclass(frozen=True, slots=True)
class FlushStatistics:
    """Checkpoints, and who waited for them."""

    seconds: Distribution
    """Of whole checkpoints."""
    entry_log_seconds: Distribution
    """Of writing and syncing entry logs, a part of that."""
    index_seconds: Distribution
    """Of writing and syncing the index, a part of that."""
    nbytes: Distribution
    """Bytes of frames in the half that was written."""
    flushing_bytes: int
    """Of the half that is being written now."""
    ended_s_ago: float | None
    """Since the last checkpoint; None before the first."""
    throttled_seconds: Distribution
    """How long connections waited for room in the write cache."""
    throttled_now: int
    """Connections that wait for room now."""


class FlushMetrics:
    """Counted by checkpoints."""

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
        """A checkpoint ended just now, after so long."""
        self._seconds.observe(seconds)
        self._ended_at = trio.current_time()

    @contextmanager
    def throttled(self) -> Iterator[None]:
        """Around a wait for room in the write cache."""
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
    """What all rounds of garbage collection together did."""

    seconds: Distribution
    """Of whole rounds."""
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
    """Since the process began."""

    rounds: int = 0
    """Through all sealed entry logs."""
    logs: int = 0
    bytes_read: int = 0
    damaged_logs: int = 0
    """Found by the scrubber for the first time."""


@dataclass(slots=True)
class LimboStatistics:
    """Of ledgers of which entries may have been lost, since the process began."""

    ledgers: int | None = None
    """In limbo; None before they were counted."""
    ledgers_repaired: int = 0
    entries_copied: int = 0
    """From other bookies."""


@dataclass(frozen=True, slots=True)
class DirectoryStatistics:
    """All that operators look at, of one ledger directory."""

    directory: str
    write_cache_limit_bytes: int
    """Both halves together."""
    storage: StorageStatistics
    reads: ReadStatistics
    flushes: FlushStatistics
    garbage: GarbageStatistics
    compaction: CompactionStatistics
    scrub: ScrubStatistics
    limbo: LimboStatistics
