"""The settings of one bookie process, each with its unit and the reason it exists.

What belongs to a ledger (quorums, digest) is no setting: it is given at creation and lives in
metadata. Relations between settings are checked here, so that a bookie that starts can serve.
"""

from __future__ import annotations

import dataclasses
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bookie import config_sections
from ledger.errors import InvalidArgument
from ledger.metastore import ledgers_root
from ledger.runtime.config import load_settings, setting

KIB = 1024
MIB = 1024 * KIB
DIRECTORIES_MAX = 64
"""Of each kind: each journal has a thread, each ledger directory caches and open files."""
WILDCARD_HOSTS = ("0.0.0.0", "::", "")
KNOWN_ELSEWHERE = ("cluster",)
"""Environment names (LEDGERSTREAM_CLUSTER) that clients read and a bookie does not."""


def _required(*, unit: str = "", apache: str, reason: str) -> dict[str, str]:
    return {"unit": unit, "apache": apache, "reason": reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieConfig:
    """Raises InvalidArgument if the settings contradict each other."""

    # What it is.
    metadata_uri: str = dataclasses.field(
        metadata=_required(
            apache="metadataServiceUri",
            reason="Where the cluster keeps its metadata: `sqlite:///path/cluster.db` or"
            " `zk://host:2181,host:2181/ledgers`.",
        )
    )
    journal_directories: tuple[str, ...] = dataclasses.field(
        metadata=_required(
            unit="paths",
            apache="journalDirectories",
            reason="Every add is synced here before it is acknowledged; best a disk of its own."
            " Up to 64, of which a ledger has one; they can never be changed.",
        )
    )
    ledger_directories: tuple[str, ...] = dataclasses.field(
        metadata=_required(
            unit="paths",
            apache="ledgerDirectories",
            reason="Entry logs and index lie here; written at checkpoints. Up to 64, of which a"
            " ledger has one; they can never be changed.",
        )
    )
    metadata_root: str = setting(
        "",
        unit="path",
        apache="zkLedgersRootPath",
        reason="Several clusters can share one metadata store; empty is the last component of"
        " a `zk://` address, else `/ledgers`.",
    )
    session_timeout_ms: int = setting(
        5000,
        unit="ms",
        apache="zkTimeout",
        reason="After so long without a heartbeat a silent bookie counts as gone.",
    )
    host: str = setting(
        "127.0.0.1",
        unit="",
        apache="listeningInterface",
        reason="Address to listen on; the default is seen by this machine alone.",
    )
    port: int = setting(
        3181, unit="", apache="bookiePort", reason="Port to listen on; 0 lets the system choose."
    )
    advertised_host: str = setting(
        "",
        unit="",
        apache="advertisedAddress",
        reason="What clients connect to; empty is `host`, required if that is a wildcard.",
    )
    bookie_id: str = setting(
        "",
        unit="",
        apache="bookieId",
        reason="Name in ledger metadata for ever; empty is `advertised_host:port`.",
    )
    http_port: int = setting(
        0,
        unit="",
        apache="httpServerPort",
        reason="Metrics, health and `bookie show` over HTTP; 0 is off. `standalone` gives each"
        " bookie one.",
    )
    http_host: str = setting(
        "127.0.0.1",
        unit="",
        apache="httpServerHost",
        reason="Address to listen on for HTTP. It has no passwords: whoever reaches it may look"
        " and start garbage collection.",
    )
    allow_empty_disk: bool = setting(
        False,
        unit="",
        apache="",
        reason="Start with empty directories although the cluster knows this bookie: only after"
        " its ledgers were copied elsewhere, since it forgets what it acknowledged.",
    )

    # How it writes.
    journal_group_wait_ms: float = setting(
        2.0,
        unit="ms",
        apache="journalMaxGroupWaitMSec",
        reason="Longest time an add waits for others to share its sync.",
    )
    journal_group_bytes_max: int = setting(
        512 * KIB,
        unit="bytes",
        apache="journalBufferedWritesThreshold",
        reason="A group of this size is synced at once.",
    )
    journal_group_entries_max: int = setting(
        0,
        unit="entries",
        apache="journalBufferedEntriesThreshold",
        reason="A group of so many entries is synced at once; 0 is off.",
    )
    journal_flush_when_queue_empty: bool = setting(
        True,
        unit="",
        apache="journalFlushWhenQueueEmpty",
        reason="While one sync runs the next group gathers anyway, so an idle disk never waits.",
    )
    journal_file_bytes_max: int = setting(
        64 * MIB,
        unit="bytes",
        apache="journalMaxSizeMB",
        reason="Size of a journal file; small ones are freed and recycled sooner.",
    )
    journal_files_recycled: int = setting(
        2,
        unit="files",
        apache="journalReuseFiles",
        reason="Released journal files kept for writing again: syncs in them are cheaper.",
    )
    journal_backups_max: int = setting(
        0,
        unit="files",
        apache="journalMaxBackups",
        reason="Files kept as they are after their checkpoint, beside those recycled, for whoever"
        " wants to see what was written. None: what they hold is in entry logs by then, and a"
        " start never reads them.",
    )
    journal_drops_page_cache: bool = setting(
        False,
        unit="",
        apache="journalRemoveFromPageCache",
        reason="Give up the pages of a synced journal file. Off: recycled files are written into"
        " the same pages again, and large groups go around the page cache anyway.",
    )
    journal_sync_data: bool = setting(
        True,
        unit="",
        apache="journalSyncData",
        reason="Sync before an add is acknowledged. `false` acknowledges from the page cache,"
        " fences and forced ledgers excepted: a bookie that loses power forgets the last adds it"
        " acknowledged and does not know it, see operations.md.",
    )
    journal_page_cache_flush_interval_ms: float = setting(
        1000.0,
        unit="ms",
        apache="journalPageCacheFlushIntervalMSec",
        reason="With `journal_sync_data = false`: longest time until what was written is synced.",
    )
    journal_page_cache_flush_bytes: int = setting(
        4 * MIB,
        unit="bytes",
        apache="",
        reason="With `journal_sync_data = false`: synced when so much is not, so that a slow disk"
        " is busy for a moment only. With 8 times as much unsynced, adds wait.",
    )
    journal_queue_bytes_max: int = setting(
        64 * MIB,
        unit="bytes",
        apache="journalMaxMemorySizeMb",
        reason="With so much unsynced in all journals adds wait, each journal having an equal"
        " share; with a quarter more a connection that asks for more is not read.",
    )
    write_cache_bytes: int = setting(
        64 * MIB,
        unit="bytes",
        apache="dbStorage_writeCacheMaxSizeMb",
        reason="Entries not yet in entry logs, both halves together, of all ledger directories; a"
        " full half is flushed.",
    )
    write_cache_wait_ms_max: int = config_sections.WRITE_CACHE_WAIT_MS_MAX
    checkpoint_interval_ms: int = setting(
        10_000,
        unit="ms",
        apache="flushInterval",
        reason="How much journal a restart has to replay at most.",
    )
    entry_log_bytes_max: int = setting(
        256 * MIB,
        unit="bytes",
        apache="logSizeLimit",
        reason="Space comes back by whole entry logs, so smaller ones come back sooner.",
    )
    flush_entrylog_bytes: int = setting(
        16 * MIB,
        unit="bytes",
        apache="flushEntrylogBytes",
        reason="An entry log is synced each time so much was written to it, so that the sync at"
        " the end of a checkpoint is short; 0 is off.",
    )
    garbage_interval_ms: int = setting(
        60_000,
        unit="ms",
        apache="gcWaitTime",
        reason="How often deleted ledgers are looked for; small clusters want space back soon.",
    )
    garbage_asks_per_s_max: float = config_sections.ASKS_PER_S_MAX
    minor_compaction_ratio_max: float = config_sections.MINOR_RATIO_MAX
    minor_compaction_interval_ms: int = config_sections.MINOR_INTERVAL_MS
    minor_compaction_ms_max: int = config_sections.MINOR_MS_MAX
    major_compaction_ratio_max: float = config_sections.MAJOR_RATIO_MAX
    major_compaction_interval_ms: int = config_sections.MAJOR_INTERVAL_MS
    major_compaction_ms_max: int = config_sections.MAJOR_MS_MAX
    compaction_bytes_per_s_max: float = config_sections.BYTES_PER_S_MAX
    compaction_entries_per_s_max: float = config_sections.ENTRIES_PER_S_MAX
    compaction_free_bytes_min: int = config_sections.FREE_BYTES_MIN
    compaction_joins_small_logs: bool = config_sections.JOINS_SMALL_LOGS
    scrub_bytes_per_s: float = config_sections.SCRUB_BYTES_PER_S

    # What it does when disks fill up.
    disk_usage_warn_threshold: float = config_sections.USAGE_WARN_THRESHOLD
    disk_usage_threshold: float = config_sections.USAGE_THRESHOLD
    disk_usage_low_water_mark: float = config_sections.USAGE_LOW_WATER_MARK
    disk_check_interval_ms: int = config_sections.CHECK_INTERVAL_MS
    disk_reserved_bytes: int = config_sections.RESERVED_BYTES
    force_read_only: bool = config_sections.FORCE_READ_ONLY

    # How it reads and serves.
    read_cache_bytes: int = config_sections.READ_CACHE_BYTES
    read_ahead_bytes: int = config_sections.READ_AHEAD_BYTES
    read_ahead_entries_max: int = config_sections.READ_AHEAD_ENTRIES_MAX
    index_cache_bytes: int = config_sections.INDEX_CACHE_BYTES
    reads_waiting_max: int = config_sections.READS_WAITING_MAX
    reads_waiting_per_directory_max: int = config_sections.READS_WAITING_PER_DIRECTORY_MAX
    replies_bytes_max: int = config_sections.REPLIES_BYTES_MAX
    reply_wait_ms_max: int = config_sections.REPLY_WAIT_MS_MAX
    frame_bytes_max: int = setting(
        5 * MIB,
        unit="bytes",
        apache="nettyMaxFrameSizeBytes",
        reason="Largest request and reply; a longer one closes its connection.",
    )
    connections_max: int = setting(
        1000,
        unit="connections",
        apache="",
        reason="More are refused, so that descriptors are left for files.",
    )
    long_polls_max: int = setting(
        10_000,
        unit="requests",
        apache="",
        reason="Tailing reads that wait at once; beyond it they are answered at once.",
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in _MAY_BE_ZERO else 1
            if isinstance(value, int | float) and not value >= least:
                raise InvalidArgument(f"{field.name} is {value}, must be at least {least}")
        config_sections.garbage_options(self)  # checks them
        config_sections.check_disk_settings(self)
        self._check_directories()
        for name in ("port", "http_port"):
            if getattr(self, name) > 65535:
                raise InvalidArgument(f"{name} is {getattr(self, name)}, must be at most 65535")
        if not self.advertised_host and self.host in WILDCARD_HOSTS:
            raise InvalidArgument(
                f"host is {self.host!r}, which clients cannot connect to: set advertised_host"
            )
        root = self.ledgers_root
        if not root.startswith("/") or root.endswith("/"):
            raise InvalidArgument(f"metadata_root is {self.metadata_root!r}, must be like /ledgers")
        self._check_sizes()

    @property
    def ledgers_root(self) -> str:
        """Where ledgers and bookies lie in the metadata store."""
        return self.metadata_root or ledgers_root(self.metadata_uri)

    def address(self, bound_port: int) -> tuple[str, int]:
        """What clients connect to; `bound_port` is the port the listener got."""
        return self.advertised_host or self.host, bound_port

    def id_of(self, bound_port: int) -> str:
        """The bookie's id; `bound_port` is the port the listener got."""
        return self.bookie_id or f"{self.advertised_host or self.host}:{bound_port}"

    def _check_directories(self) -> None:
        """Each list has 1 to 64 paths, and no directory is named twice."""
        taken: dict[str, str] = {}
        for name in ("journal_directories", "ledger_directories"):
            directories: tuple[str, ...] = getattr(self, name)
            if not 1 <= len(directories) <= DIRECTORIES_MAX:
                raise InvalidArgument(
                    f"{name} names {len(directories)} directories: give 1 to {DIRECTORIES_MAX}"
                )
            for directory in directories:
                if not directory.strip():
                    raise InvalidArgument(f"{name} contains an empty path")
                path = posixpath.normpath(directory)
                if path in taken:
                    raise InvalidArgument(
                        f"directory {directory!r} in {name} is named in {taken[path]} already: each"
                        " journal and each ledger directory needs one of its own"
                    )
                taken[path] = name

    def _check_sizes(self) -> None:
        for smaller, larger, factor in _RELATIONS:
            shares = len(self.ledger_directories) if larger in _DIVIDED else 1
            low, high = getattr(self, smaller), getattr(self, larger)
            if low * factor * shares > high:
                times = f"{factor * shares} times " if factor * shares > 1 else ""
                why = f" ({shares} ledger directories share it)" if shares > 1 else ""
                raise InvalidArgument(
                    f"{larger} is {high}, must be at least {times}{smaller}, which is {low}{why}"
                )


_MAY_BE_ZERO = (
    "port",
    "http_port",
    "allow_empty_disk",
    "journal_group_wait_ms",
    "journal_group_entries_max",
    "journal_flush_when_queue_empty",
    "journal_files_recycled",
    "journal_backups_max",
    "journal_drops_page_cache",
    "journal_sync_data",
    "journal_page_cache_flush_interval_ms",
    "flush_entrylog_bytes",
    "long_polls_max",
    "read_ahead_bytes",
    "index_cache_bytes",
    *config_sections.MAY_BE_ZERO,
)

_DIVIDED = ("write_cache_bytes", "read_cache_bytes")
"""Of the whole bookie: each ledger directory has an equal share."""

_RELATIONS = (
    # An entry that does not fit into an empty half of the cache could never be written.
    ("frame_bytes_max", "write_cache_bytes", 2),
    ("frame_bytes_max", "journal_queue_bytes_max", 1),
    ("frame_bytes_max", "journal_file_bytes_max", 2),
    ("frame_bytes_max", "entry_log_bytes_max", 1),
    ("journal_group_bytes_max", "journal_queue_bytes_max", 1),
    ("read_ahead_bytes", "read_cache_bytes", 2),
)


def load_bookie_config(
    file: Path | None, environment: Mapping[str, str], flags: Mapping[str, object]
) -> BookieConfig:
    """Settings from all sources, see `ledger.runtime.config`. Raises InvalidArgument."""
    return load_settings(
        BookieConfig,
        file=file,
        environment=environment,
        flags=flags,
        known_elsewhere=KNOWN_ELSEWHERE,
    )
