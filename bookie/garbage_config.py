"""Settings of garbage collection and compaction, which are fields of `BookieConfig`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bookie.core.compaction import MIB, CompactionOptions
from bookie.core.garbage import GarbageOptions
from ledger.runtime.config import setting

if TYPE_CHECKING:
    from bookie.config import BookieConfig

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

MAY_BE_ZERO = (
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


def garbage_options(config: BookieConfig) -> GarbageOptions:
    """What the storage is told. Raises InvalidArgument if the settings contradict each other."""
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
