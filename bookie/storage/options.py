"""The options, statistics and failure of ledger directories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from bookie.core.descriptors import LOGS_OPEN_MAX
from bookie.core.garbage import GarbageOptions
from bookie.core.read_ahead import ReadAhead
from ledger.errors import BookieIoError, FinalError, InvalidArgument

MIB = 1 << 20


class StorageFailed(FinalError):
    """A checkpoint failed: what is on disk is unknown, so the process must exit and replay."""


class MarkDamaged(BookieIoError):
    """The mark file of a ledger directory is damaged or missing: what is in index and entry logs is
    unknown."""


class DirectoryDamaged(BookieIoError):
    """A start found one ledger directory damaged, which can be repaired from what is there
    (`bookie.startup.directory_repair`). `number` is its place among the bookie's, and `cause` is
    MarkDamaged, or an error of the index."""

    retry_is_safe = False

    def __init__(self, number: int, cause: BookieIoError) -> None:
        super().__init__(str(cause))
        self.number = number
        self.cause = cause


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageOptions:
    """How a ledger directory behaves, or several together. Sizes in bytes, times in seconds."""

    write_cache_bytes: int = 128 * MIB
    """Of both halves together. The larger, the longer the runs in entry logs."""
    read_cache_bytes: int = 64 * MIB
    read_ahead_bytes: int = 2 * MIB
    """How much is read along with the requested entry, at most: see `bookie.core.read_ahead`."""
    read_ahead_entries_max: int = 4096
    """The largest number of entries that are read with it."""
    entry_log_bytes_max: int = 1024 * MIB
    """The size at which an entry log is sealed. The smaller, the sooner deleted ledgers free
    space."""
    flush_entrylog_bytes: int = 16 * MIB
    """An entry log is synced each time this much was written, so that no sync takes long. 0 is
    off."""
    checkpoint_interval_s: float = 10.0
    """The longer, the more must be replayed when the bookie starts."""
    scrub_bytes_per_s: float = 0.0
    """How much is read in each directory per second to look for damage; 0 is off."""
    states_max: int = 100_000
    """Ledgers known in memory, besides those with entries in the write cache. This many new or
    changed ones cause a checkpoint."""
    logs_open_max: int = LOGS_OPEN_MAX
    """Sealed entry logs of one directory that stay open for reads, with up to three descriptors
    each."""
    garbage: GarbageOptions = field(default_factory=GarbageOptions)

    def __post_init__(self) -> None:
        for name in ("write_cache_bytes", "entry_log_bytes_max", "states_max"):
            if getattr(self, name) < 2:
                raise InvalidArgument(f"{name} {getattr(self, name)}: give 2 or more")
        for name in ("read_cache_bytes", "read_ahead_bytes", "flush_entrylog_bytes"):
            if getattr(self, name) < 0:
                raise InvalidArgument(f"{name} {getattr(self, name)}: give 0 or more")
        if self.read_ahead_entries_max < 1:
            raise InvalidArgument("read_ahead_entries_max 0: give 1 or more, the one asked for")
        if not self.checkpoint_interval_s > 0:
            raise InvalidArgument(f"checkpoint_interval_s {self.checkpoint_interval_s}: give > 0")

    def read_ahead(self) -> ReadAhead:
        """Returns the read-ahead of one directory with these options."""
        return ReadAhead(
            self.read_cache_bytes,
            bytes_max=self.read_ahead_bytes,
            entries_max=self.read_ahead_entries_max,
        )

    def divided(self, directories: int) -> StorageOptions:
        """Returns the options of one of `directories` directories, which share the memory."""
        return replace(
            self,
            write_cache_bytes=self.write_cache_bytes // directories,
            read_cache_bytes=self.read_cache_bytes // directories,
            states_max=max(self.states_max // directories, 2),
        )


@dataclass(frozen=True, slots=True)
class StorageStatistics:
    """The statistics of one ledger directory, or of all of a bookie, see `total`."""

    checkpoints: int
    checkpoint_seconds_last: float
    entries_flushed: int
    entry_log_bytes_written: int
    write_cache_bytes: int
    """Bytes in the active half."""
    read_cache_bytes: int
    disk_reads: int
    states: int
    frames_replayed: int
    entry_logs: int
    entry_logs_missing: int
    """Entry logs that the index points into, but whose files are gone: damage. Reads of them
    fail."""
    entry_logs_stray: int
    """Entry logs that the index did not know at a start, and that were kept under another name."""

    @classmethod
    def total(cls, statistics: Sequence[StorageStatistics]) -> StorageStatistics:
        """Returns those of all directories: sums, but the longest of the last checkpoints."""
        if len(statistics) == 1:
            return statistics[0]
        sums = {name: sum(getattr(one, name) for one in statistics) for name in cls.__slots__}
        seconds = max(one.checkpoint_seconds_last for one in statistics)
        return cls(**{**sums, "checkpoint_seconds_last": seconds})
