"""The sections of a bookie's settings, each with its checks; `bookie.config` joins them.

A section must not know the others: relations between settings of two sections are checked there.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from dataclasses import dataclass

from bookie.core.compaction import CompactionOptions
from bookie.core.over_replication import OverReplicationOptions
from ledger.errors import InvalidArgument
from ledger.runtime.config import setting

KIB = 1024
MIB = 1024 * KIB


def check_minimums(section: type, settings: object, *, may_be_zero: Collection[str]) -> None:
    """Raises InvalidArgument if a number that `section` itself declares is below 1, or below 0 if
    `may_be_zero` names it."""
    for name in inspect.get_annotations(section):
        value = getattr(settings, name)
        least = 0 if name in may_be_zero or isinstance(value, bool) else 1
        if isinstance(value, int | float) and not value >= least:
            raise InvalidArgument(f"{name} is {value}, must be at least {least}")


@dataclass(frozen=True, kw_only=True)
class DiskSettings:
    """Settings of full disks."""

    disk_usage_warn_threshold: float = setting(
        0.90,
        unit="ratio",
        apache="diskUsageWarnThreshold",
        reason="A disk used to more than this is cleared at once and more often, and major"
        " compaction waits.",
    )
    disk_usage_threshold: float = setting(
        0.95,
        unit="ratio",
        apache="diskUsageThreshold",
        reason="A disk used to more than this is full, and the bookie read-only. The bookie is"
        " also read-only before its engine runs out of space, see operations.md.",
    )
    disk_usage_low_water_mark: float = setting(
        0.0,
        unit="ratio",
        apache="diskUsageLwmThreshold",
        reason="A full disk is usable again below this; 0 is `disk_usage_threshold`.",
    )
    disk_check_interval_ms: int = setting(
        10_000,
        unit="ms",
        apache="diskCheckInterval",
        reason="Longest time between two checks of a disk; the nearer to full, the shorter.",
    )
    disk_reserved_bytes: int = setting(
        0,
        unit="bytes",
        apache="",
        reason="A file of this size, made when less than 16 times as much is free, is given up"
        " when a start, a checkpoint or garbage collection finds no free space. 0 is what a start"
        " may need, 1 is none.",
    )
    force_read_only: bool = setting(
        False,
        unit="",
        apache="forceReadOnlyBookie",
        reason="Starts read-only, however empty the disks are, until this is changed over HTTP.",
    )

    def check(self) -> None:
        """Raises InvalidArgument if these settings are out of range or contradict each other."""
        zero = (
            "disk_usage_warn_threshold",
            "disk_usage_threshold",
            "disk_usage_low_water_mark",
            "disk_reserved_bytes",
        )
        check_minimums(DiskSettings, self, may_be_zero=zero)
        warn, full = self.disk_usage_warn_threshold, self.disk_usage_threshold
        if not 0 < warn <= full <= 1:
            raise InvalidArgument(
                f"disk_usage_warn_threshold is {warn} and disk_usage_threshold {full}: give ratios "
                "above 0 and at most 1, the first not above the second"
            )
        if self.disk_usage_low_water_mark > full:
            raise InvalidArgument(
                f"disk_usage_low_water_mark is {self.disk_usage_low_water_mark}, must be at most "
                f"disk_usage_threshold, which is {full}"
            )


@dataclass(frozen=True, kw_only=True)
class GarbageSettings:
    """Settings of garbage collection, compaction and scrubbing."""

    garbage_asks_per_s_max: float = setting(
        1000.0,
        unit="ledgers/s",
        apache="gcMetadataOpRateLimit",
        reason="How many ledgers per second each ledger directory looks up in the metadata store.",
    )
    over_replicated_interval_ms: int = setting(
        86_400_000,
        unit="ms",
        apache="gcOverreplicatedLedgerWaitTime",
        reason="How often a bookie looks for copies of closed ledgers whose metadata names it in no"
        " fragment, and removes them; 0 is never, but on request.",
    )
    over_replicated_age_ms_min: int = setting(
        3_600_000,
        unit="ms",
        apache="",
        reason="A copy is removed only when it was not needed for this time, since one may have"
        " been made that the metadata does not name yet; on request it is removed at once.",
    )
    over_replicated_removals_per_s_max: float = setting(
        10.0,
        unit="ledgers/s",
        apache="",
        reason="Each removal writes the ledger's metadata and a lock: a limit of the load on the"
        " metadata store.",
    )
    minor_compaction_ratio_max: float = setting(
        0.2,
        unit="ratio",
        apache="minorCompactionThreshold",
        reason="A minor compaction rewrites entry logs of which a smaller part is live; 0 is off.",
    )
    minor_compaction_interval_ms: int = setting(
        3_600_000,
        unit="ms",
        apache="minorCompactionInterval",
        reason="Logs that are nearly empty are cheap to rewrite, so it is done often.",
    )
    minor_compaction_ms_max: int = setting(
        600_000,
        unit="ms",
        apache="minorCompactionMaxTimeMillis",
        reason="After this time the compaction yields to the rest of garbage collection and"
        " continues in the next round; 0 is no limit.",
    )
    major_compaction_ratio_max: float = setting(
        0.8,
        unit="ratio",
        apache="majorCompactionThreshold",
        reason="The same for major compactions. Entry logs take at most about 1 / this of"
        " their live bytes once it is done.",
    )
    major_compaction_interval_ms: int = setting(
        86_400_000,
        unit="ms",
        apache="majorCompactionInterval",
        reason="It writes much to gain little, so it is done seldom; it also restarts the"
        " interval of minor compactions.",
    )
    major_compaction_ms_max: int = setting(
        600_000,
        unit="ms",
        apache="majorCompactionMaxTimeMillis",
        reason="As for minor compactions.",
    )
    compaction_bytes_per_s_max: float = setting(
        16.0 * MIB,
        unit="bytes/s",
        apache="compactionRateByBytes",
        reason="Bytes that compaction reads and writes in each ledger directory, limited so that"
        " it does not slow down adds and reads; 0 is no limit.",
    )
    compaction_entries_per_s_max: float = setting(
        0.0,
        unit="entries/s",
        apache="compactionRateByEntries",
        reason="Entries that compaction moves in each ledger directory; 0 is no limit but that"
        " of bytes.",
    )
    compaction_free_bytes_min: int = setting(
        64 * MIB,
        unit="bytes",
        apache="minUsableSizeForEntryLogCreation",
        reason="An entry log is rewritten only if this much stays free while its copy is made.",
    )
    compaction_joins_small_logs: bool = setting(
        False,
        unit="",
        apache="useTargetEntryLogSizeForGc",
        reason="Measures a small entry log against `entry_log_bytes_max`, so that small ones are"
        " joined; else against its own size.",
    )
    scrub_bytes_per_s: float = setting(
        1.0 * MIB,
        unit="bytes/s",
        apache="localScrubRateLimit",
        reason="Bytes read in each ledger directory to find damage while there are other copies"
        " (Apache counts entries per second); a record counts for at least 1 KiB; 0 is off. A"
        " directory of 1 TiB takes 12 days at 1 MiB/s.",
    )

    def check(self) -> None:
        """Raises InvalidArgument if these settings are out of range or contradict each other."""
        zero = (
            "scrub_bytes_per_s",
            "over_replicated_interval_ms",
            "over_replicated_age_ms_min",
            "minor_compaction_ratio_max",
            "minor_compaction_ms_max",
            "major_compaction_ratio_max",
            "major_compaction_ms_max",
            "compaction_bytes_per_s_max",
            "compaction_entries_per_s_max",
            "compaction_free_bytes_min",
        )
        check_minimums(GarbageSettings, self, may_be_zero=zero)
        self.compaction_options()

    def over_replication_options(self) -> OverReplicationOptions:
        """Returns the options of the removal of unneeded copies."""
        return OverReplicationOptions(
            interval_s=self.over_replicated_interval_ms / 1000,
            age_s=self.over_replicated_age_ms_min / 1000,
            asks_per_s_max=self.garbage_asks_per_s_max,
            removals_per_s_max=self.over_replicated_removals_per_s_max,
        )

    def compaction_options(self) -> CompactionOptions:
        """Returns the options of the storage. Raises InvalidArgument if they contradict each
        other."""
        return CompactionOptions(
            minor_ratio_max=self.minor_compaction_ratio_max,
            minor_interval_s=self.minor_compaction_interval_ms / 1000,
            minor_s_max=self.minor_compaction_ms_max / 1000,
            major_ratio_max=self.major_compaction_ratio_max,
            major_interval_s=self.major_compaction_interval_ms / 1000,
            major_s_max=self.major_compaction_ms_max / 1000,
            bytes_per_s_max=self.compaction_bytes_per_s_max,
            entries_per_s_max=self.compaction_entries_per_s_max,
            free_bytes_min=self.compaction_free_bytes_min,
            is_small_log_sparse=self.compaction_joins_small_logs,
        )


@dataclass(frozen=True, kw_only=True)
class BackpressureSettings:
    """Settings that limit how much waits in a bookie, and for how long."""

    write_cache_wait_ms_max: int = setting(
        10_000,
        unit="ms",
        apache="dbStorage_maxThrottleTimeMs",
        reason="An add that finds the write cache or the journal full waits up to this time and"
        " is then refused with 'too many requests'; the bookie never stores it after that.",
    )
    reads_waiting_max: int = setting(
        10_000,
        unit="requests",
        apache="maxReadsInProgressLimit",
        reason="When this number of requests waits for disks, a connection that has some of them"
        " is not read until they are answered.",
    )
    reads_waiting_per_directory_max: int = setting(
        5_000,
        unit="requests",
        apache="maxPendingReadRequestsPerThread",
        reason="Further requests for the same ledger directory are refused with 'too many"
        " requests', and the client asks another bookie. The same number with priority may wait"
        " beside them, and the first 8 of each connection.",
    )
    replies_bytes_max: int = setting(
        128 * 1024 * 1024,
        unit="bytes",
        apache="",
        reason="Replies that peers have not taken yet, of all connections: above half of it only"
        " peers without waiting replies are answered; at the limit reads wait for all of them, and"
        " peers that took nothing for two seconds are disconnected.",
    )
    reply_wait_ms_max: int = setting(
        60_000,
        unit="ms",
        apache="waitTimeoutOnResponseBackpressureMs, closeChannelOnResponseTimeout",
        reason="A peer that takes neither 64 KiB of the replies that wait for it nor the last of"
        " them for this time is disconnected, since it would keep the memory forever.",
    )

    def check(self) -> None:
        """Raises InvalidArgument if one of these settings is out of range."""
        check_minimums(BackpressureSettings, self, may_be_zero=())


@dataclass(frozen=True, kw_only=True)
class PermissionSettings:
    """Settings of permissions."""

    permissions: bool = setting(
        False,
        unit="",
        apache="",
        reason="Refuses every request over the wire and over HTTP whose user was not granted the"
        " role that it needs (`ledgerstream permission grant`). Until users authenticate, all of"
        " them are `anonymous`.",
    )


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """Settings of the audit log."""

    audit_file: str = setting(
        "",
        unit="path",
        apache="",
        reason="A line for who authenticated, who first read, wrote or fenced which ledger over"
        " which connection, who changed what over HTTP, and who was refused, see security.md;"
        " bookies of one machine may share it. Empty is off.",
    )
    audit_file_bytes_max: int = setting(
        64 * MIB,
        unit="bytes",
        apache="",
        reason="An audit file of this size is renamed to `.1`, and another one begun.",
    )
    audit_files_max: int = setting(
        10,
        unit="files",
        apache="",
        reason="Audit files that are kept, with the newest; copy them elsewhere to keep more.",
    )

    def check(self) -> None:
        """Raises InvalidArgument if one of these settings is out of range."""
        check_minimums(AuditSettings, self, may_be_zero=())


@dataclass(frozen=True, kw_only=True)
class ReadSettings:
    """Settings of reads and their caches."""

    read_cache_bytes: int = setting(
        64 * MIB,
        unit="bytes",
        apache="dbStorage_readAheadCacheMaxSizeMb",
        reason="Entries read ahead from entry logs, of all ledger directories together.",
    )
    read_ahead_bytes: int = setting(
        2 * MIB,
        unit="bytes",
        apache="dbStorage_readAheadCacheBatchBytesSize",
        reason="Read at once for a reader that continues in order, which begins with 16 KiB; less"
        " when many readers share the read cache, much is being read, or adds wait for the disk.",
    )
    read_ahead_entries_max: int = setting(
        4096,
        unit="entries",
        apache="dbStorage_readAheadCacheBatchSize",
        reason="The largest number of entries read at once: each small one costs 40 bytes more.",
    )
    index_cache_bytes: int = setting(
        64 * MIB,
        unit="bytes",
        apache="dbStorage_rocksDB_blockCacheSize",
        reason="Parts of the indexes of all ledger directories together. One record covers a run"
        " of entries: a million ledgers of one entry each have 90 MB of records, others far less.",
    )

    def check(self) -> None:
        """Raises InvalidArgument if one of these settings is out of range."""
        check_minimums(ReadSettings, self, may_be_zero=("read_ahead_bytes", "index_cache_bytes"))
