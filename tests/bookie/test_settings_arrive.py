"""Every setting of a bookie takes effect: it is read from the objects of a running process.

No other test would notice a setting that is documented and checked, and never passed on.
"""

from __future__ import annotations

import dataclasses
import gc
import random
import shutil
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from bookie import process
from bookie.bookie import Bookie
from bookie.config import BookieConfig
from bookie.core.compaction import CompactionOptions
from bookie.core.disk_space import DiskLimits
from bookie.core.journal import CommitPolicy
from bookie.disk_monitor import DiskMonitor
from bookie.monitoring.http import open_http
from bookie.monitoring.snapshot import Observer
from bookie.over_replication import OverReplication
from bookie.server.access import AccessControl
from bookie.server.authentication import Authenticator
from bookie.server.encryption import ServerTls
from bookie.server.server import Server
from bookie.server.tokens import JwtVerifier
from bookie.standalone import cluster
from bookie.storage.bookie_storage import BookieStorage
from bookie.storage.disk.real_disk import RealDisk
from bookie.storage.index.rocksdb import RocksKeyValue, index_opener
from bookie.storage.journal.journal import Journal
from bookie.storage.journal.page_cache_flush import PageCacheFlush
from bookie.storage.ledger_storage import LedgerStorage
from ledger.autorecovery import service
from ledger.autorecovery.options import AutoRecoveryOptions
from ledger.client import LedgerClient
from ledger.core.ledger_keys import LedgerKeys
from ledger.metastore import open_store
from ledger.metastore.base import MetadataStore
from ledger.metastore.bookies import decode_info
from ledger.metastore.cluster_secret import load_keys
from ledger.metastore.locations import LOCATION_PROPERTY
from ledger.metastore.zookeeper.access import ZooKeeperAccess
from ledger.metastore.zookeeper_access import load_access
from ledger.options import ClientOptions
from ledger.runtime.audit_file import AuditFile
from ledger.runtime.certificates import TlsContext
from ledger.runtime.network import Listener, TcpNetwork
from tests.bookie.setting_values import VALUES
from tests.certificates import Authority

_TEBIBYTE = 1 << 40


TLS_FILES = ("tls_certificate_file", "tls_key_file", "tls_key_password_file", "tls_ca_file")


def _tls_files(directory: Path) -> dict[str, Any]:
    """Makes a certificate with an encrypted key."""
    authority = Authority(directory)
    certificate, key = authority.issue("bookie", "127.0.0.3", password=b"secret")
    password = directory / "password"
    password.write_bytes(b"secret\n")
    password.chmod(0o600)
    paths = (certificate, key, password, authority.file)
    return dict(zip(TLS_FILES, map(str, paths), strict=True))


def _config(directory: Path) -> BookieConfig:
    port, http_port, tls_port = cluster.free_ports(3)
    credentials = directory / "credentials.toml"
    credentials.write_text('token = "a.b.c"\n')
    credentials.chmod(0o600)
    public_key = ed25519.Ed25519PrivateKey.generate().public_key()
    (directory / "keys.pem").write_bytes(
        public_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    for name, data in (("secret", b"0123456789abcdef" * 4), ("zookeeper", b"ann:swordfish\n")):
        (directory / name).write_bytes(data)
        (directory / name).chmod(0o600)
    return BookieConfig(
        cluster_secret_file=f"{directory}/secret",
        zookeeper_credentials_file=f"{directory}/zookeeper",
        token_keys_file=f"{directory}/keys.pem",
        credentials_file=str(credentials),
        audit_file=f"{directory}/audit.jsonl",
        metadata_uri=f"sqlite://{directory}/cluster.db",
        journal_directories=(f"{directory}/j0", f"{directory}/j1"),
        ledger_directories=(f"{directory}/l0", f"{directory}/l1"),
        port=port,
        http_port=http_port,
        tls_port=tls_port,
        **_tls_files(directory),
        **VALUES,
    )


@dataclass
class Engine:
    """A running bookie, and how its interfaces were used."""

    observer: Observer | None = None
    opened_stores: list[tuple[str, int]] = field(default_factory=list)
    listened: list[tuple[str, int]] = field(default_factory=list)
    opened_http: list[tuple[str, int]] = field(default_factory=list)
    http_tls: TlsContext | None = None
    metadata_tls: TlsContext | None = None
    secret_files: list[str] = field(default_factory=list)
    zookeeper: tuple[str, str] = "", ""
    """The ACL and the file of credentials for ZooKeeper."""
    audit_files: list[AuditFile] = field(default_factory=list)
    index_opener: Any = None
    waits_s: set[float] = field(default_factory=set)
    """The timeouts of all waits for an event."""
    looks_s: set[float] = field(default_factory=set)
    """The intervals at which disks are checked."""
    is_ready: trio.Event = field(default_factory=trio.Event)
    has_looked: trio.Event = field(default_factory=trio.Event)
    """Set when the disks were checked for the first time since it serves."""
    healing: AutoRecoveryOptions | None = None
    healing_client_options: ClientOptions = field(default_factory=ClientOptions)
    is_healing: trio.Event = field(default_factory=trio.Event)
    starts: int = 0
    """Number of starts; the second is on empty directories, of a bookie that the cluster knows."""

    def load_keys(self, file: str, environment: Mapping[str, str]) -> LedgerKeys:
        self.secret_files.append(file)
        return load_keys(file, environment)

    def load_access(self, acl: str, file: str, environment: Mapping[str, str]) -> ZooKeeperAccess:
        self.zookeeper = acl, file
        return load_access(acl, file, environment)

    def open_audit_file(self, path: str, *, bytes_max: int, files_max: int) -> AuditFile:
        self.audit_files.append(AuditFile(path, bytes_max=bytes_max, files_max=files_max))
        return self.audit_files[-1]

    @property
    def bookie(self) -> Bookie:
        assert self.observer is not None
        return self.observer.bookie

    @property
    def storage(self) -> BookieStorage:
        assert self.bookie.storage is not None
        return self.bookie.storage

    @property
    def journal(self) -> Journal:
        """The last journal: a setting that reaches it has reached all of them."""
        return self.storage.journals[-1]

    @property
    def policy(self) -> CommitPolicy:
        return self.journal._policy

    @property
    def late_syncs(self) -> PageCacheFlush:
        assert self.journal._flush is not None
        return self.journal._flush

    @property
    def directory(self) -> LedgerStorage:
        return self.storage.directories[-1]

    @property
    def compaction(self) -> CompactionOptions:
        """The options of the compactor; the collector's decide what is due."""
        options = self.directory.garbage._compactor._options
        assert options == self.directory.garbage._options.compaction
        return options

    @property
    def over_replication(self) -> OverReplication:
        assert self.bookie.over_replication is not None
        return self.bookie.over_replication

    @property
    def disk_limits(self) -> DiskLimits:
        return self.bookie.disk_monitor._devices[0].system.limits

    @property
    def server(self) -> Server:
        assert self.bookie.server is not None
        return self.bookie.server

    @property
    def authenticator(self) -> Authenticator:
        assert self.server.authenticator is not None
        return self.server.authenticator

    @property
    def tokens(self) -> JwtVerifier:
        assert isinstance(self.authenticator.tokens, JwtVerifier)
        return self.authenticator.tokens


Found = Callable[[Engine], object]
_PLACES: dict[str, Found] = {
    "metadata_uri": lambda e: e.opened_stores[-1][0],
    "session_timeout_ms": lambda e: e.opened_stores[-1][1],
    "metadata_root": lambda e: e.bookie.registry.root,
    "journal_directories": lambda e: tuple(one.directory for one in e.storage.journals),
    "ledger_directories": lambda e: tuple(one.directory for one in e.storage.directories),
    "host": lambda e: e.listened[-1][0],
    "port": lambda e: e.listened[-2][1],  # the last one is that for TLS
    "advertised_host": lambda e: e.bookie.address[0],
    "bookie_id": lambda e: e.bookie.bookie_id,
    "location": lambda e: decode_info("", vars(e.bookie.registration)["_data"]).properties[
        LOCATION_PROPERTY
    ],
    "http_host": lambda e: e.opened_http[-1][0],
    "http_port": lambda e: e.opened_http[-1][1],
    "allow_empty_disk": lambda e: e.starts == 2,
    "journal_group_wait_ms": lambda e: e.policy.group_wait_ms,
    "journal_group_bytes_max": lambda e: e.policy.group_bytes_max,
    "journal_group_entries_max": lambda e: e.policy.group_entries_max,
    "journal_loop_write_ms_max": lambda e: e.journal._loop_writes.slow_s * 1000,
    "journal_flush_when_queue_empty": lambda e: e.policy.flush_when_queue_empty,
    "journal_file_bytes_max": lambda e: e.journal._files._file_bytes_max,
    "journal_files_recycled": lambda e: e.journal._files._files_recycled,
    "journal_backups_max": lambda e: e.journal._files._backups_max,
    "journal_drops_page_cache": lambda e: e.journal._drops_cache and e.late_syncs._drops_cache,
    "journal_sync_data": lambda e: e.journal._flush is None,
    "journal_page_cache_flush_interval_ms": lambda e: e.late_syncs._policy.flush_interval_ms,
    "journal_page_cache_flush_bytes": lambda e: e.late_syncs._policy.flush_bytes,
    "journal_queue_bytes_max": lambda e: e.server._pressure.limits.queued_bytes_max,
    # Two directories share it, and each has two halves.
    "write_cache_bytes": lambda e: e.directory.cache.bytes_max * 4,
    "write_cache_wait_ms_max": lambda e: e.server._pressure.limits.add_wait_s_max * 1000,
    "checkpoint_interval_ms": lambda e: e.directory.task._interval_s * 1000,
    "entry_log_bytes_max": lambda e: e.directory._logs._log_bytes_max,
    "flush_entrylog_bytes": lambda e: e.directory._logs._flush_bytes,
    "garbage_interval_ms": lambda e: _one_of(e.waits_s, "garbage_interval_ms"),
    "garbage_asks_per_s_max": lambda e: e.directory.garbage._options.asks_per_s_max,
    "over_replicated_interval_ms": lambda e: e.over_replication._options.interval_s * 1000,
    "over_replicated_age_ms_min": lambda e: e.over_replication._unneeded._age_s * 1000,
    "over_replicated_removals_per_s_max": lambda e: e.over_replication._removals._rate,
    "minor_compaction_ratio_max": lambda e: e.compaction.minor_ratio_max,
    "minor_compaction_interval_ms": lambda e: e.compaction.minor_interval_s * 1000,
    "minor_compaction_ms_max": lambda e: e.compaction.minor_s_max * 1000,
    "major_compaction_ratio_max": lambda e: e.compaction.major_ratio_max,
    "major_compaction_interval_ms": lambda e: e.compaction.major_interval_s * 1000,
    "major_compaction_ms_max": lambda e: e.compaction.major_s_max * 1000,
    "compaction_bytes_per_s_max": lambda e: e.compaction.bytes_per_s_max,
    "compaction_entries_per_s_max": lambda e: e.compaction.entries_per_s_max,
    "compaction_free_bytes_min": lambda e: e.compaction.free_bytes_min,
    "compaction_joins_small_logs": lambda e: e.compaction.is_small_log_sparse,
    "scrub_bytes_per_s": lambda e: e.directory.scrubber._bytes_per_s,
    "disk_usage_warn_threshold": lambda e: e.disk_limits.warn_ratio,
    "disk_usage_threshold": lambda e: e.disk_limits.full_ratio,
    "disk_usage_low_water_mark": lambda e: e.disk_limits.low_water_ratio,
    "disk_check_interval_ms": lambda e: _one_of(e.looks_s, "disk_check_interval_ms"),
    "disk_reserved_bytes": lambda e: e.bookie.disk_monitor._devices[0].reserve.nbytes,
    "permissions": lambda e: e.bookie.access is not None,
    "audit_file": lambda e: e.audit_files[-1].path,
    "audit_file_bytes_max": lambda e: e.audit_files[-1].bytes_max,
    "audit_files_max": lambda e: e.audit_files[-1].files_max,
    "force_read_only": lambda e: e.bookie.disk_monitor.gate.is_read_only,
    "read_cache_bytes": lambda e: e.directory._read_cache.bytes_max * 2,
    "read_ahead_bytes": lambda e: e.directory._reader._ahead._bytes_max,
    "read_ahead_entries_max": lambda e: e.directory._reader._ahead.entries_max,
    "index_cache_bytes": lambda e: e.index_opener.keywords["options"].block_cache_bytes * 2,
    "reads_waiting_max": lambda e: e.server._requests.read_scheduler._limits.waiting_max,
    "reads_waiting_per_directory_max": lambda e: (
        e.server._requests.read_scheduler._limits.directory_waiting_max
    ),
    "replies_bytes_max": lambda e: e.server._pressure.limits.replies_bytes_max,
    "reply_wait_ms_max": lambda e: e.server._pressure.limits.reply_wait_s_max * 1000,
    "frame_bytes_max": lambda e: e.server._frame_bytes_max,
    "connections_max": lambda e: e.server._peers.limits.connections_max,
    "connections_per_peer_max": lambda e: e.server._peers.limits.per_peer_max,
    "first_request_wait_ms_max": lambda e: e.server._peers.limits.first_request_s_max * 1000,
    "frame_wait_ms_max": lambda e: e.server._peers.limits.frame_s_max * 1000,
    "receive_bytes_max": lambda e: e.server._pressure.limits.receive_bytes_max,
    "authentication_mechanisms": lambda e: tuple(sorted(e.authenticator.mechanisms)),
    "anonymous_allowed": lambda e: e.authenticator.anonymous_allowed,
    "token_keys_file": lambda e: e.tokens._file,
    "token_audience": lambda e: e.tokens._audience,
    "secrets_in_clear_allowed": lambda e: e.authenticator._allows_clear,
    "token_issuer": lambda e: e.tokens._issuer,
    "token_user_claim": lambda e: e.tokens._user_claim,
    "credentials_file": lambda e: e.bookie.config.client_options().credentials_file,
    "long_polls_max": lambda e: e.server._requests._reads._polls._polls.count_max,
    "tls_client_certificate": lambda e: {
        ssl.CERT_NONE: "none",
        ssl.CERT_OPTIONAL: "optional",
        ssl.CERT_REQUIRED: "required",
    }[_tls(e).context.current().verify_mode],
    "tls_required": lambda e: _tls(e).is_required,
    "tls_port": lambda e: e.listened[-1][1],
    "tls_handshake_ms_max": lambda e: _tls(e)._handshake_s_max * 1000,
    "tls_to_bookies": lambda e: e.healing_client_options.tls,
    "http_tls": lambda e: e.http_tls is not None,
    "derived_keys_required": lambda e: _access(e)._derived_keys_required,
    "cluster_secret_file": lambda e: e.secret_files[-1],
    "zookeeper_acl": lambda e: e.zookeeper[0],
    "zookeeper_credentials_file": lambda e: e.zookeeper[1],
    "metadata_tls": lambda e: e.metadata_tls is not None,
    "tls_certificate_file": lambda e: _tls(e).context.files.certificate,
    "tls_key_file": lambda e: _tls(e).context.files.key,
    "tls_key_password_file": lambda e: _tls(e).context.files.key_password,
    "tls_ca_file": lambda e: _tls(e).context.files.authorities,
    "autorecovery": lambda e: e.healing is not None,
    "lost_bookie_recovery_delay_s": lambda e: _healing(e).lost_bookie_recovery_delay_s,
    "open_ledger_grace_s": lambda e: _healing(e).open_ledger_grace_s,
    "autorecovery_copy_bytes_per_s_max": lambda e: _healing(e).copier_options().bytes_per_s,
    "autorecovery_ledgers_at_once": lambda e: _healing(e).ledgers_at_once,
    "autorecovery_metadata_reads_per_s_max": lambda e: _healing(e).metadata_reads_per_s,
    "autorecovery_metadata_operations_per_s_max": lambda e: _healing(e).metadata_operations_per_s,
}
"""Reads, for each setting, the value that takes effect."""


def _access(engine: Engine) -> AccessControl:
    assert engine.bookie.access is not None
    return engine.bookie.access


def _tls(engine: Engine) -> ServerTls:
    assert engine.server.tls is not None
    return engine.server.tls


def _healing(engine: Engine) -> AutoRecoveryOptions:
    assert engine.healing is not None
    return engine.healing


def _one_of(seconds: set[float], name: str) -> object:
    wanted = VALUES[name]
    return wanted if wanted / 1000 in seconds else sorted(seconds)


async def _heal(
    engine: Engine,
    client: LedgerClient,
    options: AutoRecoveryOptions,
    *,
    bookie_id: str,
    rng: random.Random,
    on_begin: object,
) -> None:
    assert bookie_id == VALUES["bookie_id"]
    assert client.ledgers.root == VALUES["metadata_root"]
    engine.healing = options
    engine.healing_client_options = client.options
    engine.is_healing.set()


def _recorded(engine: Engine, patch: pytest.MonkeyPatch) -> None:
    """Records the calls of the process's interfaces in `engine`; they still do their work."""
    move_on_after, next_look_s = trio.move_on_after, DiskMonitor._next_look_s

    @asynccontextmanager
    async def store(uri: str, **settings: Any) -> AsyncIterator[MetadataStore]:
        engine.opened_stores.append((uri, settings["session_timeout_ms"]))
        engine.metadata_tls = settings["tls"]
        async with open_store(uri, **settings) as opened:
            yield opened

    async def http(host: str, port: int) -> list[trio.SocketListener]:
        engine.opened_http.append((host, port))
        return await open_http(host, port)

    async def serve_http(
        listeners: list[trio.SocketListener], observer: Observer, tls: TlsContext | None
    ) -> None:
        engine.observer, engine.http_tls = observer, tls
        async with listeners[0]:
            await trio.sleep_forever()

    def indexes(*settings: int) -> Callable[[str], RocksKeyValue]:
        engine.index_opener = opener = index_opener(*settings)
        return opener

    def waiting(seconds: float) -> trio.CancelScope:
        engine.waits_s.add(seconds)
        return move_on_after(seconds)

    def looking(self: DiskMonitor, interval_s: float) -> float:
        engine.looks_s.add(interval_s)
        engine.has_looked.set()
        return next_look_s(self, interval_s)

    async def ready() -> None:
        engine.is_ready.set()  # the process does this once it is ready

    async def space(self: RealDisk, path: str) -> tuple[int, int]:
        return 2 * _TEBIBYTE, _TEBIBYTE  # whatever this machine has: a full disk is checked sooner

    class Network(TcpNetwork):
        async def listen(self, host: str, port: int) -> Listener:
            engine.listened.append((host, port))
            return await super().listen(host, port)

    patch.setattr(service, "heal_for_ever", partial(_heal, engine))
    patch.setattr(process, "open_store", store)
    patch.setattr(process, "open_http", http)
    patch.setattr(process, "serve_http", serve_http)
    patch.setattr(process, "index_opener", indexes)
    patch.setattr(process, "load_keys", engine.load_keys)
    patch.setattr(process, "load_access", engine.load_access)
    patch.setattr(process, "AuditFile", engine.open_audit_file)
    patch.setattr(process, "TcpNetwork", Network)
    patch.setattr(process, "give_memory_back_regularly", ready)
    patch.setattr(trio, "move_on_after", waiting)
    patch.setattr(DiskMonitor, "_next_look_s", looking)
    patch.setattr(RealDisk, "space", space)
    patch.setattr(gc, "freeze", lambda: None)


async def _look(config: BookieConfig, engine: Engine) -> dict[str, object]:
    """Starts the bookie as its process does, twice: the second time with empty directories."""
    for _ in range(2):
        engine.is_ready, engine.has_looked = trio.Event(), trio.Event()
        for directory in (*config.journal_directories, *config.ledger_directories):
            shutil.rmtree(directory, ignore_errors=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process._serve, config, False)
            with trio.fail_after(120):
                await engine.is_ready.wait()
                await engine.has_looked.wait()
                await engine.is_healing.wait()
            engine.starts += 1
            found = {name: place(engine) for name, place in _PLACES.items()}
            nursery.cancel_scope.cancel()
    return found


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> BookieConfig:
    directory = tmp_path_factory.mktemp("settings")
    return _config(directory)


@pytest.fixture(scope="module")
def found(given: BookieConfig) -> Iterator[dict[str, object]]:
    with pytest.MonkeyPatch.context() as patch:
        engine = Engine()
        _recorded(engine, patch)
        yield trio.run(_look, given, engine)


@pytest.mark.parametrize("name", _PLACES)
def test_it_is_found_where_it_takes_effect(
    given: BookieConfig, found: dict[str, object], name: str
) -> None:
    value = getattr(given, name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = pytest.approx(value, rel=1e-12)
    assert found[name] == value


def test_every_setting_has_a_place() -> None:
    assert _PLACES.keys() == {one.name for one in dataclasses.fields(BookieConfig)}


def test_no_value_is_a_default_and_no_two_are_alike(given: BookieConfig) -> None:
    """Otherwise a value could come from another setting or from a default."""
    values = {one.name: getattr(given, one.name) for one in dataclasses.fields(given)}
    for one in dataclasses.fields(given):
        assert values[one.name] != one.default, one.name
    numbers = [value for value in values.values() if not isinstance(value, bool)]
    assert len(set(numbers)) == len(numbers)
