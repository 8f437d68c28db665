"""Settings of full disks, which are fields of `BookieConfig`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bookie.core.disk_space import checkpoint_bytes
from ledger.errors import InvalidArgument
from ledger.runtime.config import setting

if TYPE_CHECKING:
    from bookie.config import BookieConfig

USAGE_WARN_THRESHOLD = setting(
    0.90,
    unit="ratio",
    apache="diskUsageWarnThreshold",
    reason="A disk used to more than this is cleared at once and more often, and major compaction"
    " waits.",
)
USAGE_THRESHOLD = setting(
    0.95,
    unit="ratio",
    apache="diskUsageThreshold",
    reason="A disk used to more than this is full, and the bookie read-only. So it is before the"
    " engine has no room to go on, see operations.md.",
)
USAGE_LOW_WATER_MARK = setting(
    0.0,
    unit="ratio",
    apache="diskUsageLwmThreshold",
    reason="A full disk is usable again below this; 0 is `disk_usage_threshold`.",
)
CHECK_INTERVAL_MS = setting(
    10_000,
    unit="ms",
    apache="diskCheckInterval",
    reason="How often disks are asked at least; the nearer to full, the oftener.",
)
RESERVED_BYTES = setting(
    0,
    unit="bytes",
    apache="",
    reason="A file of this size, made when less than 16 times as much is free, is given up when a"
    " start, a checkpoint or garbage collection finds no room. 0 is what a start may need, 1 is"
    " none.",
)
FORCE_READ_ONLY = setting(
    False,
    unit="",
    apache="forceReadOnlyBookie",
    reason="Starts read-only, however empty its disks are, until it is told otherwise over HTTP.",
)

MAY_BE_ZERO = (
    "disk_usage_warn_threshold",
    "disk_usage_threshold",
    "disk_usage_low_water_mark",
    "disk_reserved_bytes",
    "force_read_only",
)


def low_water_mark(config: BookieConfig) -> float:
    return config.disk_usage_low_water_mark or config.disk_usage_threshold


def check_disk_settings(config: BookieConfig) -> None:
    """Raises InvalidArgument if the settings contradict each other."""
    warn, full = config.disk_usage_warn_threshold, config.disk_usage_threshold
    if not 0 < warn <= full <= 1:
        raise InvalidArgument(
            f"disk_usage_warn_threshold is {warn} and disk_usage_threshold {full}: give ratios "
            "above 0 and at most 1, the first not above the second"
        )
    if low_water_mark(config) > full:
        raise InvalidArgument(
            f"disk_usage_low_water_mark is {config.disk_usage_low_water_mark}, must be at most "
            f"disk_usage_threshold, which is {full}"
        )


def start_bytes(config: BookieConfig, *, journals: int, directories: int) -> int:
    """What a start may have to write on a file system with so many journals and ledger
    directories: a checkpoint of all that was in the caches, and a journal file each."""
    share = config.write_cache_bytes // len(config.ledger_directories)
    return journals * config.journal_file_bytes_max + directories * checkpoint_bytes(share)


def room_bytes(config: BookieConfig, *, journals: int, directories: int) -> int:
    """What must be free for a bookie to go on: the same, and a compaction's log."""
    start = start_bytes(config, journals=journals, directories=directories)
    return start + directories * config.entry_log_bytes_max


def recovery_bytes(config: BookieConfig, *, journals: int, directories: int) -> int:
    """What must be left for recovery to go on: it fills one half of the caches and their
    journal, and waits while that finds no room."""
    start = start_bytes(config, journals=journals, directories=directories)
    return max(start // 2, journals * config.journal_file_bytes_max)
