"""Settings of full disks, which are fields of `BookieConfig`.

Settings of garbage collection and compaction, which are fields of `BookieConfig`.

Settings of what may wait in a bookie, which are fields of `BookieConfig`.

Settings of how a bookie reads, which are fields of `BookieConfig`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bookie.core.compaction import CompactionOptions
from bookie.core.disk_space import checkpoint_bytes
from bookie.core.garbage import GarbageOptions
from ledger.errors import InvalidArgument
from ledger.runtime.config import setting

if TYPE_CHECKING:
    from bookie.config import BookieConfig


KIB = 1024
MIB = 1024 * KIB

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
    reason="Starts read-only, however empty its disks are, until HTTP changes it.",
)

MAY_BE_ZERO = (
    "disk_usage_warn_threshold",
    "disk_usage_threshold",
    "disk_usage_low_water_mark",
    "disk_reserved_bytes",
    "force_read_only",
    "scrub_bytes_per_s",
    "minor_compaction_ratio_max",
    "minor_compaction_ms_max",
    "major_compaction_ratio_max",
    "major_compaction_ms_max",
    "compaction_bytes_per_s_max",
    "compaction_entries_per_s_max",
    "compaction_free_bytes_min",
    "compaction_joins_small_logs",
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
    """Returns the bytes that a start may have to write on a file system that holds this number of
    journals and ledger directories: a checkpoint of the whole caches, and a journal file each."""
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


ASKS_PER_S_MAX = setting(
    1000.0,
    unit="ledgers/s",
    apache="gcMetadataOpRateLimit",
    reason="How many ledgers each ledger directory asks the metadata store about.",
)
MINOR_RATIO_MAX = setting(
    0.2,
    unit="ratio",
    apache="minorCompactionThreshold",
    reason="A minor compaction rewrites entry logs of which less than this still lives; 0 is off.",
)
MINOR_INTERVAL_MS = setting(
    3_600_000,
    unit="ms",
    apache="minorCompactionInterval",
    reason="Logs that are nearly empty are cheap to rewrite, so it is done often.",
)
MINOR_MS_MAX = setting(
    600_000,
    unit="ms",
    apache="minorCompactionMaxTimeMillis",
    reason="Then the rest of garbage collection has its turn, and the compaction goes on in the"
    " next round; 0 is no limit.",
)
MAJOR_RATIO_MAX = setting(
    0.8,
    unit="ratio",
    apache="majorCompactionThreshold",
    reason="The same for major compactions. Entry logs take at most about 1 / this of what lives"
    " in them once it is done.",
)
MAJOR_INTERVAL_MS = setting(
    86_400_000,
    unit="ms",
    apache="majorCompactionInterval",
    reason="It writes much to gain little, so it is done seldom; the minor one's interval begins"
    " again, too.",
)
MAJOR_MS_MAX = setting(
    600_000, unit="ms", apache="majorCompactionMaxTimeMillis", reason="As for minor compactions."
)
BYTES_PER_S_MAX = setting(
    16.0 * MIB,
    unit="bytes/s",
    apache="compactionRateByBytes",
    reason="What compaction reads and writes in each ledger directory, so that it does not slow"
    " down adds and reads; 0 is no limit.",
)
ENTRIES_PER_S_MAX = setting(
    0.0,
    unit="entries/s",
    apache="compactionRateByEntries",
    reason="What compaction moves in each ledger directory; 0 is no limit but that of bytes.",
)
FREE_BYTES_MIN = setting(
    64 * MIB,
    unit="bytes",
    apache="minUsableSizeForEntryLogCreation",
    reason="An entry log is only rewritten if so much stays free while its copy is made.",
)
JOINS_SMALL_LOGS = setting(
    False,
    unit="",
    apache="useTargetEntryLogSizeForGc",
    reason="Measures a small entry log against `entry_log_bytes_max`, so that small ones become"
    " one; else against its own size.",
)

SCRUB_BYTES_PER_S = setting(
    1.0 * MIB,
    unit="bytes/s",
    apache="localScrubRateLimit",
    reason="What is read in each ledger directory to find damage while there are other copies"
    " (Apache counts entries per second), a record counting for 1 KiB or more; 0 is off."
    " A directory of 1 TiB takes 12 days at 1 MiB/s.",
)


def garbage_options(config: BookieConfig) -> GarbageOptions:
    """Returns the options of the storage. Raises InvalidArgument if they contradict each other."""
    return GarbageOptions(
        asks_per_s_max=config.garbage_asks_per_s_max,
        compaction=CompactionOptions(
            minor_ratio_max=config.minor_compaction_ratio_max,
            minor_interval_s=config.minor_compaction_interval_ms / 1000,
            minor_s_max=config.minor_compaction_ms_max / 1000,
            major_ratio_max=config.major_compaction_ratio_max,
            major_interval_s=config.major_compaction_interval_ms / 1000,
            major_s_max=config.major_compaction_ms_max / 1000,
            bytes_per_s_max=config.compaction_bytes_per_s_max,
            entries_per_s_max=config.compaction_entries_per_s_max,
            free_bytes_min=config.compaction_free_bytes_min,
            is_small_log_sparse=config.compaction_joins_small_logs,
        ),
    )


WRITE_CACHE_WAIT_MS_MAX = setting(
    10_000,
    unit="ms",
    apache="dbStorage_maxThrottleTimeMs",
    reason="An add that finds write cache or journal full waits so long, then it is refused with"
    " 'too many requests': the bookie never takes it after that.",
)
READS_WAITING_MAX = setting(
    10_000,
    unit="requests",
    apache="maxReadsInProgressLimit",
    reason="When this number of requests waits for disks, a connection that has some is not read"
    " until they are answered.",
)
READS_WAITING_PER_DIRECTORY_MAX = setting(
    5_000,
    unit="requests",
    apache="maxPendingReadRequestsPerThread",
    reason="Further ones for the same ledger directory are refused with 'too many requests': the"
    " client asks another bookie. As many with priority may wait beside them.",
)
REPLIES_BYTES_MAX = setting(
    128 * 1024 * 1024,
    unit="bytes",
    apache="",
    reason="Replies that peers have not taken yet, of all connections: with more, only peers"
    " for whom none wait are answered.",
)
REPLY_WAIT_MS_MAX = setting(
    60_000,
    unit="ms",
    apache="waitTimeoutOnResponseBackpressureMs, closeChannelOnResponseTimeout",
    reason="A peer that takes none of the replies that wait for it is disconnected: it would keep"
    " the memory forever.",
)


READ_CACHE_BYTES = setting(
    64 * MIB,
    unit="bytes",
    apache="dbStorage_readAheadCacheMaxSizeMb",
    reason="Entries read ahead from entry logs, of all ledger directories together.",
)
READ_AHEAD_BYTES = setting(
    256 * KIB,
    unit="bytes",
    apache="dbStorage_readAheadCacheBatchBytesSize",
    reason="Read at once after a miss, since readers continue in order; less when they are too many"
    " for the read cache and would evict each other's entries.",
)
READ_AHEAD_ENTRIES_MAX = setting(
    4096,
    unit="entries",
    apache="dbStorage_readAheadCacheBatchSize",
    reason="The largest number of entries read at once: each small one costs 40 bytes more.",
)
INDEX_CACHE_BYTES = setting(
    64 * MIB,
    unit="bytes",
    apache="dbStorage_rocksDB_blockCacheSize",
    reason="Parts of the indexes of all ledger directories together. One record stands for a run"
    " of entries: a million ledgers of an entry each have 90 MB of them, others far less.",
)
