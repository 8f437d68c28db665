"""The settings of one bookie process, each with its unit and the reason it exists.

What belongs to a ledger (quorums, digest) is no setting: it is given at creation and lives in
metadata. Relations between settings are checked here, so that a bookie that starts can serve.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ledger.errors import InvalidArgument
from ledger.metastore import ledgers_root
from ledger.runtime.config import load_settings, setting

KIB = 1024
MIB = 1024 * KIB
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
            " Exactly one for now.",
        )
    )
    ledger_directories: tuple[str, ...] = dataclasses.field(
        metadata=_required(
            unit="paths",
            apache="ledgerDirectories",
            reason="Entry logs and index lie here; written at checkpoints. Exactly one for now.",
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
    journal_queue_bytes_max: int = setting(
        64 * MIB,
        unit="bytes",
        apache="journalMaxMemorySizeMb",
        reason="With so much unsynced the bookie stops reading its sockets.",
    )
    write_cache_bytes: int = setting(
        64 * MIB,
        unit="bytes",
        apache="dbStorage_writeCacheMaxSizeMb",
        reason="Entries not yet in entry logs, both halves together; a full half is flushed.",
    )
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
    garbage_interval_ms: int = setting(
        60_000,
        unit="ms",
        apache="gcWaitTime",
        reason="How often deleted ledgers are looked for; small clusters want space back soon.",
    )

    # How it reads and serves.
    read_cache_bytes: int = setting(
        64 * MIB,
        unit="bytes",
        apache="dbStorage_readAheadCacheMaxSizeMb",
        reason="Entries read ahead from entry logs.",
    )
    read_ahead_bytes: int = setting(
        256 * KIB,
        unit="bytes",
        apache="dbStorage_readAheadCacheBatchBytesSize",
        reason="Read at once after a miss, since readers go on in order.",
    )
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
        for name in ("journal_directories", "ledger_directories"):
            self._check_directories(name)
        if set(self.journal_directories) & set(self.ledger_directories):
            raise InvalidArgument("a journal and a ledger directory must not be the same")
        if self.port > 65535:
            raise InvalidArgument(f"port is {self.port}, must be at most 65535")
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

    def _check_directories(self, name: str) -> None:
        directories = getattr(self, name)
        if len(directories) != 1:
            raise InvalidArgument(
                f"{name} names {len(directories)} directories: exactly one is supported in this"
                " version; run one bookie for each disk instead"
            )
        if not directories[0].strip():
            raise InvalidArgument(f"{name} contains an empty path")

    def _check_sizes(self) -> None:
        for smaller, larger, factor in _RELATIONS:
            low, high = getattr(self, smaller), getattr(self, larger)
            if low * factor > high:
                times = f"{factor} times " if factor > 1 else ""
                raise InvalidArgument(
                    f"{larger} is {high}, must be at least {times}{smaller}, which is {low}"
                )


_MAY_BE_ZERO = (
    "port",
    "allow_empty_disk",
    "journal_group_wait_ms",
    "journal_group_entries_max",
    "journal_flush_when_queue_empty",
    "journal_files_recycled",
    "long_polls_max",
    "read_ahead_bytes",
)

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
