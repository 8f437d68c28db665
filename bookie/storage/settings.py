"""What one ledger directory may be told, what it tells, and how it fails."""

from __future__ import annotations

from dataclasses import dataclass, field

from bookie.core.garbage import GarbageOptions
from ledger.errors import FinalError, InvalidArgument

MIB = 1 << 20


class StorageFailed(FinalError):
    """A checkpoint failed: what is on disk is unknown, so the process must exit and replay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageOptions:
    """How one ledger directory behaves. Sizes in bytes, times in seconds."""

    write_cache_bytes: int = 128 * MIB
    """Both halves together. The larger, the longer the runs in entry logs."""
    read_cache_bytes: int = 64 * MIB
    read_ahead_bytes: int = 256 * 1024
    """How much of a run is read with the entry that was asked for."""
    entry_log_bytes_max: int = 1024 * MIB
    """When an entry log is sealed. The smaller, the sooner deleted ledgers give space back."""
    checkpoint_interval_s: float = 10.0
    """The longer, the more there is to replay when the bookie starts."""
    states_max: int = 100_000
    """Ledgers known in memory, beside those with entries in the write cache. So many new or
    changed ones cause a checkpoint."""
    garbage: GarbageOptions = field(default_factory=GarbageOptions)

    def __post_init__(self) -> None:
        for name in ("write_cache_bytes", "entry_log_bytes_max", "states_max"):
            if getattr(self, name) < 2:
                raise InvalidArgument(f"{name} {getattr(self, name)}: give 2 or more")
        for name in ("read_cache_bytes", "read_ahead_bytes"):
            if getattr(self, name) < 0:
                raise InvalidArgument(f"{name} {getattr(self, name)}: give 0 or more")
        if not self.checkpoint_interval_s > 0:
            raise InvalidArgument(f"checkpoint_interval_s {self.checkpoint_interval_s}: give > 0")


@dataclass(frozen=True, slots=True)
class StorageStatistics:
    checkpoints: int
    checkpoint_seconds_last: float
    entries_flushed: int
    entry_log_bytes_written: int
    write_cache_bytes: int
    """In the active half."""
    read_cache_bytes: int
    disk_reads: int
    states: int
    frames_replayed: int
    entry_logs: int
    entry_logs_missing: int
    """The index points into these, but their files are gone: damage. Reads say so."""
