"""The life of a bookie: lock directories, check cookie, replay, register, serve, stop.

There is one way to start, the one after a crash: the journal is always replayed. To stop, a bookie
leaves the registry, answers the requests that it has received, and is cancelled; it must never rely
on anything being flushed then.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import trio

from bookie.config import BookieConfig
from bookie.core.compaction import CompactionKind
from bookie.core.descriptors import LOGS_OPEN_MAX
from bookie.core.disk_space import DiskState, WriteGate
from bookie.core.garbage import GarbageOptions
from bookie.core.journal import CommitPolicy, FlushPolicy
from bookie.core.loop_writes import LoopWrites
from bookie.core.marks import DirectoryMap
from bookie.data_integrity import LimboRepair, put_in_limbo
from bookie.disk_monitor import DiskMonitor
from bookie.draining import Draining
from bookie.over_replication import OverReplication
from bookie.server.access import AccessControl
from bookie.server.audit import AuditLog
from bookie.server.authentication import open_authenticator
from bookie.server.backpressure import BackpressureLimits
from bookie.server.encryption import ServerTls
from bookie.server.key_check import KeyCheck
from bookie.server.read_scheduler import ReadLimits
from bookie.server.requests import Requests
from bookie.server.server import Server, ServerStatistics
from bookie.server.tokens import JwtVerifier, tokens_of
from bookie.startup.cookies import check_cookie, check_has_no_cluster
from bookie.startup.directory_layout import load_layout, settle_layout
from bookie.startup.directory_repair import start_storage
from bookie.startup.power_loss import noticing_power_loss
from bookie.startup.preflight import listen, lock_directories
from bookie.startup.restored_metadata import UnbornIds, record_restore
from bookie.startup.start_count import StartCount
from bookie.storage.bookie_storage import BookieStorage, HasSpace
from bookie.storage.check.index_rebuild import IndexStores
from bookie.storage.disk.disk import Disk
from bookie.storage.index.key_value import KeyValue
from bookie.storage.journal.journal import Journal
from bookie.storage.metrics import GarbageCollectionReport
from bookie.storage.options import StorageOptions, StorageStatistics
from ledger.connection.encryption import ClientTls, name_to_check
from ledger.core.ledger_keys import NO_KEYS, LedgerKeys
from ledger.credentials import read_credentials
from ledger.errors import LedgerError, MetadataUnavailable, NoSuchNode
from ledger.metastore.address import ClusterAddress
from ledger.metastore.base import MetadataStore
from ledger.metastore.bookies import OUR_SOFTWARE, SOFTWARE_PROPERTY, BookieInfo, BookieRegistry
from ledger.metastore.ledgers import LedgerStore
from ledger.metastore.listed_ledgers import ListedLedgers
from ledger.metastore.locations import LOCATION_PROPERTY
from ledger.metastore.node_kinds import make_shared_folders
from ledger.metastore.permissions import Permissions
from ledger.metastore.registration import TAKEOVER_TIMEOUT_S, Registration
from ledger.metastore.restores import Restore, RestoreLog, is_protected
from ledger.metastore.underreplication import UnderreplicationStore
from ledger.metastore.zookeeper.access import are_users_named
from ledger.runtime.network import Listener, Network

if TYPE_CHECKING:
    from ledger.client import LedgerClient


def journals_of(config: BookieConfig, disk: Disk, rng: random.Random) -> list[Journal]:
    """Returns a journal for each journal directory, before replay. `rng` draws the salts of their
    files."""
    policy = CommitPolicy(
        group_wait_ms=config.journal_group_wait_ms,
        group_bytes_max=config.journal_group_bytes_max,
        group_entries_max=config.journal_group_entries_max,
        flush_when_queue_empty=config.journal_flush_when_queue_empty,
    )
    flush = FlushPolicy(
        flush_interval_ms=config.journal_page_cache_flush_interval_ms,
        flush_bytes=config.journal_page_cache_flush_bytes,
    )
    return [
        Journal(
            disk,
            directory,
            rng=rng,
            policy=policy,
            file_bytes_max=config.journal_file_bytes_max,
            files_recycled=config.journal_files_recycled,
            backups_max=config.journal_backups_max,
            drops_cache=config.journal_drops_page_cache,
            flush=None if config.journal_sync_data else flush,
            loop_writes=LoopWrites(
                config.journal_loop_write_ms_max / 1000, len(config.journal_directories)
            ),
        )
        for directory in config.journal_directories
    ]


def storage_of(
    config: BookieConfig,
    disk: Disk,
    key_value: Callable[[str], KeyValue],
    layout: DirectoryMap,
    *,
    rng: random.Random,
    now_ms: Callable[[], int],
    gate: WriteGate | None = None,
    has_space: HasSpace | None = None,
    logs_open_max: int = LOGS_OPEN_MAX,
) -> BookieStorage:
    """Returns the storage of a bookie with these settings, not started. See `BookieStorage`."""
    return BookieStorage(
        disk,
        config.ledger_directories,
        key_value,
        journals_of(config, disk, rng),
        now_ms=now_ms,
        options=StorageOptions(
            write_cache_bytes=config.write_cache_bytes,
            read_cache_bytes=config.read_cache_bytes,
            read_ahead_bytes=config.read_ahead_bytes,
            read_ahead_entries_max=config.read_ahead_entries_max,
            entry_log_bytes_max=config.entry_log_bytes_max,
            flush_entrylog_bytes=config.flush_entrylog_bytes,
            checkpoint_interval_s=config.checkpoint_interval_ms / 1000,
            scrub_bytes_per_s=config.scrub_bytes_per_s,
            garbage=garbage_options(config),
            logs_open_max=logs_open_max,
        ),
        layout=layout,
        gate=gate,
        has_space=has_space,
    )


def check_files(config: BookieConfig) -> None:
    """Raises InvalidArgument if a file of credentials, authorities or keys of tokens cannot be
    used. Called before a cluster or a directory is made; the server's own certificate is loaded by
    `BookieConfig.server_context`."""
    ClientTls.of(config.client_options())
    if config.credentials_file:
        read_credentials(config.credentials_file)
    tokens_of(config)


def check_own_credentials(config: BookieConfig) -> None:
    """Raises InvalidArgument if the bookie's own credentials cannot be read; logs if it has none,
    and most likely needs them."""
    if config.credentials_file:
        read_credentials(config.credentials_file)
    elif config.is_authentication_on and not config.anonymous_allowed:
        _log.warning(
            "credentials_file is not set: other bookies that authenticate their clients will not "
            "let this one copy ledgers"
        )


def garbage_options(config: BookieConfig) -> GarbageOptions:
    """Returns the options of the storage's garbage collection."""
    return GarbageOptions(
        asks_per_s_max=config.garbage_asks_per_s_max, compaction=config.compaction_options()
    )


_log = logging.getLogger(__name__)

T = TypeVar("T")

_METADATA_RETRY_S = 1.0
_OUTDATE_S = 2.0
DRAIN_S_MAX = 5.0
"""How long a bookie that stops answers requests; less than a supervisor waits for its end."""
_COLLECTIONS_WHEN_SHORT = 4
"""Garbage is collected this many times as often while a disk is nearly full."""


@dataclass(frozen=True, slots=True)
class BookieStatistics:
    """Counters of a bookie that serves."""

    server: ServerStatistics
    storage: StorageStatistics


class Bookie:
    """One bookie. `run` may be called once; a restart needs a new object.

    Args:
        config: the settings.
        network, disk, key_value, store: the interfaces to the outside. `key_value` opens the index
            in a directory; it is called after the directory was locked.
        now_ms: returns the wall clock in milliseconds.
        rng: draws the salts of files and the cluster's instance id.
        http: the address of the bookie's HTTP server, which is published but not served here.
        keys: the secrets of the cluster, by which keys of ledgers are recognized.
        boot_id: identifies the start of the machine; "" if it never stops.
        index_stores: for the repair of a damaged ledger directory; None: it stops the bookie.
        logs_open_max: entry logs that each ledger directory keeps open.
        audit: records who does what; the caller runs it. None: nobody does.
    """

    def __init__(
        self,
        config: BookieConfig,
        *,
        network: Network,
        disk: Disk,
        key_value: Callable[[str], KeyValue],
        store: MetadataStore,
        now_ms: Callable[[], int],
        rng: random.Random,
        http: tuple[str, int] | None = None,
        boot_id: str = "",
        index_stores: IndexStores | None = None,
        logs_open_max: int = LOGS_OPEN_MAX,
        audit: AuditLog | None = None,
        keys: LedgerKeys = NO_KEYS,
    ) -> None:
        self.config = config
        self.audit = audit
        self.http = http
        self._boot_id = boot_id
        self.registry = BookieRegistry(store, config.ledgers_root)
        self._layout = ClusterAddress.parse(config.metadata_uri).layout
        self._keys = keys
        self.ledgers = LedgerStore(store, config.ledgers_root, layout=self._layout, keys=keys)
        self.access = _access_of(config, store, self.ledgers)
        """The permissions that it enforces over the wire and over HTTP; None: none."""
        self._restores = RestoreLog(store)
        self._start_count: StartCount | None = None
        self.store = store
        self._network = network
        self._disk = disk
        self.disk_monitor = DiskMonitor(disk, config)
        self._draining = Draining(store, self.disk_monitor)
        self._key_value = key_value
        self._index_stores = index_stores
        self._logs_open_max = logs_open_max
        self.now_ms = now_ms
        self._rng = rng
        self._tokens: JwtVerifier | None = None
        self.bookie_id = config.bookie_id
        self.address = ("", 0)
        self.instance_id = ""
        self.storage: BookieStorage | None = None
        self.requests: Requests | None = None
        self.server: Server | None = None
        self.registration: Registration | None = None
        self.limbo_repair: LimboRepair | None = None
        self.over_replication: OverReplication | None = None
        self.collections_put_off = 0
        """Rounds of garbage collection that were aborted because the metadata was unavailable."""
        self._tls: ServerTls | None = None
        self.tls_port = 0
        """The port for TLS from the first byte, once there is one."""
        self._stopping = trio.Event()
        self._collection_wanted = trio.Event()
        self._forced: CompactionKind | None = None
        self._is_forced_running = False

    async def run(self, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until `stop`, or until cancelled; `task_status` gets the bookie id once it is
        registered.

        Raises:
            CookieMismatch: a disk is another bookie's, or was emptied.
            JournalCorrupt: a journal cannot be replayed.
            BookieRuns: another process uses the directories.
            InvalidArgument: the directories or the address cannot be used.
            JournalFailed, OSError: a disk failed; the process must end.
        """
        config = self.config
        self._load_certificate()
        check_own_credentials(config)
        self._tokens = tokens_of(config)
        await lock_directories(config, self._disk)
        listener = await listen(config, self._network)
        tls_listener: Listener | None = None
        try:
            if config.tls_port:
                tls_listener = await listen(config, self._network, "tls_port")
                self.tls_port = tls_listener.address[1]
            self.address = config.address(listener.address[1])
            self.bookie_id = self.disk_monitor.bookie_id = config.id_of(listener.address[1])
            if self.audit is not None:
                self.audit.bookie_id = self.bookie_id
            if self._tls is not None:
                self._tls.check_names(name_to_check(self.bookie_id, self.address[0]))
            await self.disk_monitor.open()
            await self._insist("joining the cluster", self._join_cluster)
            storage = await self._open_storage()
            try:
                async with noticing_power_loss(config, self._disk, storage, self._boot_id):
                    settle = partial(put_in_limbo, storage, self.ledgers, self.bookie_id)
                    await self._insist("asking which ledgers it may have forgotten", settle)
                    await settle_layout(config, self._disk, storage.layout)
                    look = partial(self._record_restore, storage)
                    await self._insist("asking whether the metadata is the newest", look)
                    try:
                        await self._serve(storage, listener, tls_listener, task_status)
                    finally:
                        await self._outdate_copies()
            finally:
                storage.close()
        finally:
            listener.close()
            if tls_listener is not None:
                tls_listener.close()

    def stop(self) -> None:
        """Has `run` leave the registry, answer the requests that were received within DRAIN_S_MAX
        seconds, and return. Nothing is flushed: what is in the journals is replayed."""
        self._stopping.set()

    def _load_certificate(self) -> None:
        """Raises InvalidArgument if files of TLS are unusable, before anything is changed."""
        config = self.config
        ClientTls.of(config.client_options())
        context = config.server_context()
        if context is not None:
            self._tls = ServerTls(
                context,
                is_required=config.tls_required,
                handshake_s_max=config.tls_handshake_ms_max / 1000,
            )

    async def _join_cluster(self) -> None:
        try:
            await self.registry.instance_id()
        except NoSuchNode:
            await check_has_no_cluster(self.config, self._disk)
        await self.registry.init_cluster(self._rng, self._layout)
        if are_users_named(self.config.zookeeper_acl):
            await make_shared_folders(self.store, self.config.ledgers_root)
        self.instance_id = await self.registry.instance_id()
        self.store.bind(self.registry.instance_id_path, self.instance_id.encode())
        await check_cookie(
            self.config,
            self._disk,
            self.registry,
            self.ledgers,
            self.bookie_id,
            self.instance_id,
        )
        self._start_count = StartCount(self.config, self._disk, self.store, self.bookie_id)
        await self._start_count.check()

    async def _outdate_copies(self) -> None:
        """Makes copies of the disks and of the metadata that were made before now recognizable."""
        assert self._start_count is not None
        with trio.move_on_after(_OUTDATE_S) as scope:
            scope.shield = True
            try:
                await self._start_count.advance()
            except (OSError, LedgerError) as error:
                # A bookie that is killed does not either; the next start does.
                _log.info("start count not advanced bookie=%s cause=%s", self.bookie_id, error)

    async def _record_restore(self, storage: BookieStorage) -> None:
        await record_restore(
            storage.every_ledger_id,
            self.ledgers,
            self._restores,
            bookie_id=self.bookie_id,
            now_ms=self.now_ms(),
        )

    async def _insist(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Retries `attempt` until the metadata store answers. A bookie serves entries without
        metadata, so it waits instead of ending."""
        while True:
            try:
                return await attempt()
            except MetadataUnavailable as error:
                _log.warning("%s put off bookie=%s cause=%s", what, self.bookie_id, error)
            await trio.sleep(_METADATA_RETRY_S)

    async def _open_storage(self) -> BookieStorage:
        config, disk = self.config, self.disk_monitor.disk
        layout = await load_layout(config, self._disk)
        make = partial(
            storage_of,
            config,
            disk,
            self._key_value,
            layout,
            rng=self._rng,
            now_ms=self.now_ms,
            gate=self.disk_monitor.gate,
            has_space=disk.promise_space,
            logs_open_max=self._logs_open_max,
        )
        started_at = trio.current_time()
        self.storage = storage = await start_storage(
            make,
            config,
            self._disk,
            self._index_stores,
            layout,
        )
        _log.info(
            "storage ready bookie=%s replay_s=%.3f",
            self.bookie_id,
            trio.current_time() - started_at,
        )
        return storage

    async def _serve(
        self,
        storage: BookieStorage,
        listener: Listener,
        tls_listener: Listener | None,
        task_status: trio.TaskStatus[str],
    ) -> None:
        config = self.config
        self.requests = requests = Requests(
            storage,
            long_polls_max=config.long_polls_max,
            space=self.space,
            read_limits=ReadLimits.of(config),
            key_check=KeyCheck(self._keys, self.ledgers, storage.state),
        )
        self.server = await self._make_server(storage, requests)
        self.over_replication = OverReplication(
            storage,
            self.bookie_id,
            ledgers=self.ledgers,
            marks=UnderreplicationStore(self.store, config.ledgers_root, self.now_ms),
            restores=self._restores,
            check_cluster=self._check_cluster,
            options=config.over_replication_options(),
        )
        await self.disk_monitor.take_reserves()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(storage.run)
            nursery.start_soon(self.disk_monitor.run)
            nursery.start_soon(requests.run)
            if self.access is not None:
                await nursery.start(self.access.run)  # so that nobody is refused for a table unread
            nursery.start_soon(self._limbo_repair(storage, requests).run)
            nursery.start_soon(self.server.run, listener, tls_listener)
            nursery.start_soon(self._collect_garbage, storage)
            if self._tls is not None:
                nursery.start_soon(self._tls.warn_of_expiry, self.now_ms)
            async with AsyncExitStack() as stack:
                follow = partial(self._draining.run, self.bookie_id, self.server.leave_idle_writers)
                await nursery.start(follow)  # so that it registers as what it is
                await self._insist("registration", partial(self._register, stack))
                nursery.start_soon(self._follow_disks)
                address = "{}:{}".format(*self.address)
                _log.info("serving bookie=%s address=%s", self.bookie_id, address)
                task_status.started(self.bookie_id)
                await self._stopping.wait()
            # No client chooses it any more. Those that use it get their answers.
            with trio.move_on_after(DRAIN_S_MAX):
                await self.server.drain()
            nursery.cancel_scope.cancel()

    async def _make_server(self, storage: BookieStorage, requests: Requests) -> Server:
        config = self.config
        open_it = partial(
            open_authenticator,
            config,
            self.store,
            self._rng,
            self._tokens,
            self.now_ms,
            self.audit,
        )
        return Server(
            storage,
            requests,
            limits=BackpressureLimits.of(config),
            frame_bytes_max=config.frame_bytes_max,
            peer_limits=config.peer_limits(),
            tls=self._tls,
            authenticator=await self._insist("reading who may authenticate", open_it),
            access=self.access,
            audit=self.audit,
        )

    def _limbo_repair(self, storage: BookieStorage, requests: Requests) -> LimboRepair:
        def open_client() -> LedgerClient:
            from ledger.client import LedgerClient  # takes memory, and is seldom needed

            return LedgerClient(
                self.store,
                self._network,
                rng=self._rng,
                now_ms=self.now_ms,
                options=self.config.client_options(),
                root=self.config.ledgers_root,
                layout=self._layout,
                keys=self._keys,
            )

        self.limbo_repair = LimboRepair(storage, requests, self.bookie_id, open_client)
        return self.limbo_repair

    async def space(self) -> tuple[int, int]:
        """Returns the total and the free bytes for entries. A file system is counted once, even if
        it holds several ledger directories."""
        total = free = 0
        devices: dict[int, None] = {}
        for directory in self.config.ledger_directories:
            device = await self._disk.device(directory)
            if device not in devices:
                devices[device] = None
                size, left = await self._disk.space(directory)
                total += size
                free += left
        return total, free

    async def _register(self, stack: AsyncExitStack) -> None:
        properties = {SOFTWARE_PROPERTY: OUR_SOFTWARE}
        if self.config.location:
            properties[LOCATION_PROPERTY] = self.config.location
        info = BookieInfo(
            *self.address,
            properties,
            self.http,
            starts_tls=self._tls is not None,
            tls_port=self.tls_port or None,
            is_http_encrypted=self.config.http_tls,
        )
        is_read_only = self.disk_monitor.gate.is_read_only
        # A session that died at another address keeps the id for its timeout. With SQLite it takes
        # as long again to distinguish that from a file that could not be written for a while.
        takeover_s = max(TAKEOVER_TIMEOUT_S, self.config.session_timeout_ms * 2 / 1000)
        registered = self.registry.register(
            self.bookie_id, info, is_read_only, takeover_timeout_s=takeover_s
        )
        self.registration = await stack.enter_async_context(registered)

    async def _follow_disks(self) -> None:
        """Keeps the registration in line with the disks, and collects garbage at once when one
        fills up. Requests do not depend on it: they check the disks themselves."""
        assert self.registration is not None
        seen = -1
        while True:
            seen = await self.disk_monitor.wait_change(seen)
            if self.disk_monitor.state is not DiskState.OK:
                self._collection_wanted.set()
            change = partial(self.registration.set_read_only, self.disk_monitor.gate.is_read_only)
            await self._insist("change of registration", change)

    def force_read_only(self, is_read_only: bool) -> None:
        """Sets the bookie read-only, or back, until it ends. With a full disk it is read-only
        in any case."""
        self.disk_monitor.force(is_read_only)

    def force_collection(self, compaction: CompactionKind = CompactionKind.MAJOR) -> None:
        """Requests a round of garbage collection now, or after the current one, with a compaction
        that ignores intervals and suspensions."""
        self._forced = max(compaction, self._forced or compaction)
        self._collection_wanted.set()

    @property
    def is_collection_forced(self) -> bool:
        """Whether a requested round has not ended yet."""
        return self._is_forced_running or self._forced is not None

    async def _collect_garbage(self, storage: BookieStorage) -> None:
        """Collects garbage in rounds. For each ledger that may be deleted it reads the metadata;
        after an error the ledger counts as existing."""

        restores: Sequence[Restore] = ()
        listed = ListedLedgers(self.store, self.ledgers)
        ids = UnbornIds(self.ledgers)

        async def is_deleted(ledger_id: int) -> bool:
            if await listed.exists(ledger_id):
                ids.note_existing(ledger_id)
                return False
            if is_protected(restores, ledger_id):
                return False
            # A metadata store that was emptied or replaced must not lead to emptied disks.
            await self._check_cluster()
            return True

        async def collect(compaction: CompactionKind, *, is_forced: bool = False) -> None:
            nonlocal restores, listed
            listed = ListedLedgers(self.store, self.ledgers)
            ids.begin_round()
            await self.disk_monitor.make_room_for_garbage()
            restores = await self._restores.read()
            rounds = await storage.collect_garbage(
                is_deleted, compaction=compaction, is_forced=is_forced, is_unborn=ids.contain
            )
            self._log_rounds(rounds)
            await self.disk_monitor.look()

        checkpoints = storage.checkpoints
        while True:
            is_short = self.disk_monitor.state is not DiskState.OK
            interval_s = self.config.garbage_interval_ms / 1000
            with trio.move_on_after(interval_s / (_COLLECTIONS_WHEN_SHORT if is_short else 1)):
                await self._collection_wanted.wait()
            self._collection_wanted = trio.Event()
            forced, self._forced = self._forced, None
            self._is_forced_running = forced is not None
            if checkpoints != (checkpoints := storage.checkpoints):
                await self._outdate_copies()
            try:
                await self.disk_monitor.make_room_for_garbage()
                assert self.over_replication is not None
                await self.over_replication.round(is_forced=forced is not None)
                if forced is not None:
                    await collect(forced, is_forced=True)
                elif self.disk_monitor.state is DiskState.OK:
                    await collect(CompactionKind.MAJOR)
                else:
                    await collect(CompactionKind.MINOR)
                if self.disk_monitor.state is DiskState.FULL and forced is None:
                    # Only this makes the disk writable again; it skips logs it cannot copy.
                    await collect(_most_compaction(storage), is_forced=True)
            except MetadataUnavailable as error:
                self.collections_put_off += 1
                _log.warning("garbage collection put off bookie=%s cause=%s", self.bookie_id, error)
            finally:
                self._is_forced_running = False

    def _log_rounds(self, rounds: Sequence[GarbageCollectionReport]) -> None:
        for directory, done in zip(self.config.ledger_directories, rounds, strict=True):
            for log in done.set_aside:
                _log.error("damaged entry log set aside bookie=%s %s", self.bookie_id, log)
            if done.index_problem:
                _log.error(
                    "part of the index cannot be read bookie=%s directory=%s cause=%s",
                    self.bookie_id,
                    directory,
                    done.index_problem,
                )
            if done.asks_failed:
                _log.warning(
                    "ledgers kept, because the metadata did not say whether they exist bookie=%s "
                    "directory=%s ledgers=%d",
                    self.bookie_id,
                    directory,
                    done.asks_failed,
                )
            if done.did_something:
                _log.info(
                    "garbage collected bookie=%s directory=%s %s", self.bookie_id, directory, done
                )

    async def _check_cluster(self) -> None:
        try:
            instance_id = await self.registry.instance_id()
        except NoSuchNode:
            instance_id = "none"
        if instance_id != self.instance_id:
            raise MetadataUnavailable(
                f"the metadata store holds cluster {instance_id}, this bookie belongs to "
                f"{self.instance_id}. Cure: restore the metadata it was started with"
            )

    def statistics(self) -> BookieStatistics:
        """Counters of a bookie that serves."""
        assert self.server is not None, "the bookie does not serve yet"
        assert self.storage is not None
        return BookieStatistics(self.server.statistics(), self.storage.statistics())


def _most_compaction(storage: BookieStorage) -> CompactionKind:
    """Returns the largest kind of compaction that is not suspended."""
    for kind in (CompactionKind.MAJOR, CompactionKind.MINOR):
        if not storage.is_compaction_suspended(kind):
            return kind
    return CompactionKind.NONE


def _access_of(
    config: BookieConfig, store: MetadataStore, ledgers: LedgerStore
) -> AccessControl | None:
    if not config.permissions:
        return None
    is_required = config.derived_keys_required
    return AccessControl(Permissions(store), ledgers, derived_keys_required=is_required)
