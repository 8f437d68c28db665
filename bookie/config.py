"""The settings of one bookie process, each with its unit and the reason why it exists.

Properties of a ledger (quorums, digest) must never become settings: they are given at creation and
stored in metadata. Relations between settings are checked here, so that a bookie that starts can
serve.
"""

from __future__ import annotations

import dataclasses
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bookie.authentication_settings import AuthenticationSettings
from bookie.autorecovery_settings import AutoRecoverySettings
from bookie.config_sections import (
    AuditSettings,
    BackpressureSettings,
    DiskSettings,
    GarbageSettings,
    PermissionSettings,
    ReadSettings,
    check_minimums,
)
from bookie.connection_settings import ConnectionSettings
from bookie.key_settings import KeySettings
from bookie.tls_settings import TlsSettings
from ledger.core.placement.topology import Location
from ledger.errors import InvalidArgument
from ledger.metastore import ledgers_root
from ledger.options import ClientOptions
from ledger.runtime.config import load_settings, setting

KIB = 1024
MIB = 1024 * KIB
DIRECTORIES_MAX = 64
"""Limits journal directories and ledger directories alike: each journal has a thread, each ledger
directory has caches and open files."""
WILDCARD_HOSTS = ("0.0.0.0", "::", "")
KNOWN_ELSEWHERE = (
    "cluster", "context", "credentials", "user", "password", "token",
    "client_tls", "client_tls_ca_file", "client_tls_certificate_file", "client_tls_key_file",
    "client_tls_key_password_file",
    "log_level", "log_format", "log_file",
)  # fmt: skip
"""Names in the environment (LEDGERSTREAM_CLUSTER) that are no settings of a bookie."""


def _required(*, unit: str = "", apache: str, reason: str) -> dict[str, str]:
    return {"unit": unit, "apache": apache, "reason": reason}


@dataclass(frozen=True, kw_only=True)
class BookieConfig(
    DiskSettings,
    GarbageSettings,
    BackpressureSettings,
    ReadSettings,
    ConnectionSettings,
    TlsSettings,
    AuthenticationSettings,
    PermissionSettings,
    AuditSettings,
    AutoRecoverySettings,
    KeySettings,
):
    """All settings of a bookie. Raises InvalidArgument if they are out of range or contradict each
    other."""

    # Identity and addresses.
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
            reason="Every add is synced here before it is acknowledged; best on a disk of their"
            " own. Up to 64, of which a ledger uses one; they can never be changed.",
        )
    )
    ledger_directories: tuple[str, ...] = dataclasses.field(
        metadata=_required(
            unit="paths",
            apache="ledgerDirectories",
            reason="Entry logs and index are stored here, up to 64, of which a ledger uses one;"
            " written at checkpoints. Others are added behind them by `ledgerstream bookie"
            " expand-storage`, and lost ones dropped by `ledgerstream bookie drop-directory`.",
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
        reason="A bookie that has sent no heartbeat for this time counts as gone.",
    )
    host: str = setting(
        "127.0.0.1",
        unit="",
        apache="listeningInterface",
        reason="Address to listen on; the default is reachable from this machine alone.",
    )
    port: int = setting(
        3181, unit="", apache="bookiePort", reason="Port to listen on; 0 lets the system choose."
    )
    advertised_host: str = setting(
        "",
        unit="",
        apache="advertisedAddress",
        reason="Host that clients connect to; empty is `host`, required if that is a wildcard.",
    )
    bookie_id: str = setting(
        "",
        unit="",
        apache="bookieId",
        reason="Permanent name in ledger metadata; empty is `advertised_host:port`.",
    )
    location: str = setting(
        "",
        unit="path",
        apache="",
        reason="Where the bookie is, like `/eu-1/rack-7` (region and rack) or `/rack-7`, published"
        " in its registration for placement policies. `ledgerstream bookie place` overrides it;"
        " empty is unknown.",
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
        reason="Address to listen on for HTTP. Without `permissions` a client that reaches it can"
        " read everything shown there, start garbage collection and decommission bookies.",
    )
    allow_empty_disk: bool = setting(
        False,
        unit="",
        apache="",
        reason="Permits one start with empty directories although the cluster knows this bookie,"
        " after its disks were lost; after its use it permits nothing until a start without it."
        ' The bookie answers "unknown" for the entries that it acknowledged, never "absent", and'
        " copies them from the other bookies.",
    )

    # Writing.
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
        reason="A group of this number of entries is synced at once; 0 is off.",
    )
    journal_flush_when_queue_empty: bool = setting(
        True,
        unit="",
        apache="journalFlushWhenQueueEmpty",
        reason="Syncs a group as soon as no sync runs: the next group gathers during that sync"
        " anyway, so an idle disk never waits.",
    )
    journal_loop_write_ms_max: float = setting(
        5.0,
        unit="ms",
        apache="",
        reason="While at most one of the last hundred syncs took longer, and a journal is busy for"
        " less than half of the time, small groups are written in the event loop: a thread for it"
        " costs several times as much. A disk that hangs then delays all connections; 0 never"
        " does it.",
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
        reason="Released journal files that are kept and written again: syncs in them are cheaper.",
    )
    journal_backups_max: int = setting(
        0,
        unit="files",
        apache="journalMaxBackups",
        reason="Files kept unchanged after their checkpoint, beside those recycled, for operators"
        " who inspect what was written. None by default: their entries are in entry logs by then,"
        " and a start never reads them.",
    )
    journal_drops_page_cache: bool = setting(
        False,
        unit="",
        apache="journalRemoveFromPageCache",
        reason="Drops a synced journal file from the page cache. Off by default: recycled files"
        " are written into the same pages again, and large groups bypass the page cache anyway.",
    )
    journal_sync_data: bool = setting(
        True,
        unit="",
        apache="journalSyncData",
        reason="Syncs before an add is acknowledged. `false` acknowledges from the page cache,"
        " except for fences and forced ledgers: a bookie that loses power forgets the last adds it"
        " acknowledged and does not know it, see operations.md.",
    )
    journal_page_cache_flush_interval_ms: float = setting(
        1000.0,
        unit="ms",
        apache="journalPageCacheFlushIntervalMSec",
        reason="With `journal_sync_data = false`: longest time until written data is synced.",
    )
    journal_page_cache_flush_bytes: int = setting(
        4 * MIB,
        unit="bytes",
        apache="",
        reason="With `journal_sync_data = false`: a journal with this much unsynced data is"
        " synced, so that a slow disk is busy for a moment only. With 8 times as much, adds wait.",
    )
    journal_queue_bytes_max: int = setting(
        64 * MIB,
        unit="bytes",
        apache="journalMaxMemorySizeMb",
        reason="Adds wait while this much is unsynced in all journals; each journal has an equal"
        " share. With a quarter more, a connection that requests more of a journal is not read.",
    )
    write_cache_bytes: int = setting(
        64 * MIB,
        unit="bytes",
        apache="dbStorage_writeCacheMaxSizeMb",
        reason="Entries that are not in entry logs yet, both halves together, of all ledger"
        " directories; a full half is flushed.",
    )
    checkpoint_interval_ms: int = setting(
        10_000,
        unit="ms",
        apache="flushInterval",
        reason="Limits how much of the journal a restart has to replay.",
    )
    entry_log_bytes_max: int = setting(
        256 * MIB,
        unit="bytes",
        apache="logSizeLimit",
        reason="Space is freed by whole entry logs, and that of smaller ones sooner.",
    )
    flush_entrylog_bytes: int = setting(
        16 * MIB,
        unit="bytes",
        apache="flushEntrylogBytes",
        reason="An entry log is synced each time this much was written to it, so that the sync at"
        " the end of a checkpoint is short; 0 is off.",
    )
    garbage_interval_ms: int = setting(
        60_000,
        unit="ms",
        apache="gcWaitTime",
        reason="How often a bookie looks for deleted ledgers; small clusters need their space back"
        " soon.",
    )

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raises InvalidArgument as the class does."""
        check_minimums(BookieConfig, self, may_be_zero=_MAY_BE_ZERO)
        DiskSettings.check(self)
        GarbageSettings.check(self)
        BackpressureSettings.check(self)
        ReadSettings.check(self)
        ConnectionSettings.check(self)
        TlsSettings.check(self)
        AuthenticationSettings.check_mechanisms(self, self.tls_client_certificate)
        AuditSettings.check(self)
        AutoRecoverySettings.check(self)
        KeySettings.check_keys(self, has_permissions=self.permissions)
        self._check_directories()
        self._check_addresses()
        self._check_sizes()

    def _check_addresses(self) -> None:
        for name in ("port", "http_port"):
            if getattr(self, name) > 65535:
                raise InvalidArgument(f"{name} is {getattr(self, name)}, must be at most 65535")
        if not self.advertised_host and self.host in WILDCARD_HOSTS:
            raise InvalidArgument(
                f"host is {self.host!r}, which clients cannot connect to: set advertised_host"
            )
        if self.location:
            Location.parse(self.location)
        root = self.ledgers_root
        if not root.startswith("/") or root.endswith("/"):
            raise InvalidArgument(f"metadata_root is {self.metadata_root!r}, must be like /ledgers")

    def client_options(self) -> ClientOptions:
        """Returns the options with which this bookie is a client of other bookies: how it encrypts,
        and who it is."""
        return self.with_credentials(self.tls_options())

    @property
    def ledgers_root(self) -> str:
        """Returns the path of ledgers and bookies in the metadata store."""
        return self.metadata_root or ledgers_root(self.metadata_uri)

    def address(self, bound_port: int) -> tuple[str, int]:
        """Returns the address that clients connect to; `bound_port` is the port of the listener."""
        return self.advertised_host or self.host, bound_port

    def id_of(self, bound_port: int) -> str:
        """Returns the bookie's id; `bound_port` is the port of the listener."""
        return self.bookie_id or f"{self.advertised_host or self.host}:{bound_port}"

    def _check_directories(self) -> None:
        """Checks that each list has 1 to 64 paths and that no directory is named twice."""
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
                        f"directory {directory!r} in {name} is already named in {taken[path]}: each"
                        " journal and each ledger directory needs a directory of its own"
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
    "journal_group_wait_ms",
    "journal_group_entries_max",
    "journal_loop_write_ms_max",
    "journal_files_recycled",
    "journal_backups_max",
    "journal_page_cache_flush_interval_ms",
    "flush_entrylog_bytes",
)

_DIVIDED = ("write_cache_bytes", "read_cache_bytes")
"""Sizes of the whole bookie, of which each ledger directory has an equal share."""

_RELATIONS = (
    # An entry that does not fit into an empty half of the cache could never be stored.
    ("frame_bytes_max", "write_cache_bytes", 2),
    ("frame_bytes_max", "journal_queue_bytes_max", 1),
    ("frame_bytes_max", "journal_file_bytes_max", 2),
    ("frame_bytes_max", "entry_log_bytes_max", 1),
    ("frame_bytes_max", "receive_bytes_max", 1),
    ("journal_group_bytes_max", "journal_queue_bytes_max", 1),
)


def load_bookie_config(
    file: Path | None, environment: Mapping[str, str], flags: Mapping[str, object]
) -> BookieConfig:
    """Returns the settings from all sources, see `ledger.runtime.config`. Raises
    InvalidArgument."""

    return load_settings(
        BookieConfig,
        file=file,
        environment=environment,
        flags=flags,
        known_elsewhere=KNOWN_ELSEWHERE,
    )
