"""The life of a bookie: lock, cookie, replay, register, serve, collect garbage, stop.

There is one way to start, and it is after a crash: the journal is always replayed. Stopping
is leaving the registry and then being cancelled; nothing is flushed on the way out.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import trio

from bookie.config import BookieConfig
from bookie.core.journal import CommitPolicy
from bookie.requests import Requests
from bookie.server import Server, ServerStatistics
from bookie.storage.disk import Disk
from bookie.storage.index import KeyValue
from bookie.storage.journal import Journal
from bookie.storage.ledger_storage import LedgerStorage
from bookie.storage.settings import StorageOptions, StorageStatistics
from ledger.errors import FinalError, MetadataUnavailable, NoSuchNode
from ledger.metastore.base import MetadataStore
from ledger.metastore.bookies import BookieInfo, BookieRegistry
from ledger.metastore.cookie import Cookie, decode_cookie, encode_cookie
from ledger.metastore.layout import layout_of_uri
from ledger.metastore.ledgers import LedgerStore
from ledger.metastore.software import OUR_SOFTWARE, SOFTWARE_PROPERTY
from ledger.runtime.network import Listener, Network

_log = logging.getLogger(__name__)

T = TypeVar("T")

COOKIE_FILE = "VERSION"
LOCK_FILE = "LOCK"
_NO_DATA = (LOCK_FILE, COOKIE_FILE, f"{COOKIE_FILE}.tmp", "lost+found")
"""What may lie in the directory of a new bookie: also after a crash, and on a new disk."""
_METADATA_RETRY_S = 1.0


class CookieMismatch(FinalError):
    """The disk is not the one this bookie was registered with."""


@dataclass(frozen=True, slots=True)
class BookieStatistics:
    server: ServerStatistics
    storage: StorageStatistics


class Bookie:
    """One bookie. `run` once; make a new object to start again.

    Args:
        config: what it does and how fast.
        network, disk, key_value, store: the doors. `key_value` opens the index in a
            directory; it is called after the directory was locked.
        now_ms: wall clock in milliseconds.
        rng: seeds of file salts and of the cluster's instance id.
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
    ) -> None:
        self.config = config
        self.registry = BookieRegistry(store, config.ledgers_root)
        self._layout = layout_of_uri(config.metadata_uri)
        self.ledgers = LedgerStore(store, config.ledgers_root, layout=self._layout)
        self._network = network
        self._disk = disk
        self._key_value = key_value
        self._now_ms = now_ms
        self._rng = rng
        self.bookie_id = config.bookie_id
        self.address = ("", 0)
        self.instance_id = ""
        self.storage: LedgerStorage | None = None
        self.server: Server | None = None

    async def run(self, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until cancelled; `task_status` gets the bookie id once it is registered.

        Raises CookieMismatch (wrong or emptied disk), JournalCorrupt, BlockingIOError (another
        process has the directories), and JournalFailed or OSError when a disk fails: the
        process must end then.
        """
        config = self.config
        for directory in (*config.journal_directories, *config.ledger_directories):
            await self._disk.make_directory(directory)
        await self._disk.lock(f"{config.ledger_directories[0]}/{LOCK_FILE}")
        listener = await self._network.listen(config.host, config.port)
        try:
            self.address = config.address(listener.address[1])
            self.bookie_id = config.id_of(listener.address[1])
            await self._insist("joining the cluster", self._join_cluster)
            storage = await self._open_storage()
            try:
                await self._serve(storage, listener, task_status)
            finally:
                storage.close()
        finally:
            listener.close()

    async def _join_cluster(self) -> None:
        await self.registry.init_cluster(self._rng, self._layout)
        self.instance_id = await self.registry.instance_id()
        await self._check_cookie()

    async def _insist(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Until the metadata store answers. A bookie serves without it, so it waits for it."""
        while True:
            try:
                return await attempt()
            except MetadataUnavailable as error:
                _log.warning("%s put off bookie=%s cause=%s", what, self.bookie_id, error)
            await trio.sleep(_METADATA_RETRY_S)

    async def _open_storage(self) -> LedgerStorage:
        config = self.config
        directory = config.ledger_directories[0]
        journal = Journal(
            self._disk,
            config.journal_directories[0],
            rng=self._rng,
            policy=CommitPolicy(
                group_wait_ms=config.journal_group_wait_ms,
                group_bytes_max=config.journal_group_bytes_max,
                group_entries_max=config.journal_group_entries_max,
                flush_when_queue_empty=config.journal_flush_when_queue_empty,
            ),
            file_bytes_max=config.journal_file_bytes_max,
            files_recycled=config.journal_files_recycled,
        )
        storage = LedgerStorage(
            self._disk,
            directory,
            self._key_value(f"{directory}/index"),
            journal,
            now_ms=self._now_ms,
            options=StorageOptions(
                write_cache_bytes=config.write_cache_bytes,
                read_cache_bytes=config.read_cache_bytes,
                read_ahead_bytes=config.read_ahead_bytes,
                entry_log_bytes_max=config.entry_log_bytes_max,
                checkpoint_interval_s=config.checkpoint_interval_ms / 1000,
            ),
        )
        self.storage = storage
        started_at = trio.current_time()
        await storage.start()
        _log.info(
            "storage ready bookie=%s replay_s=%.3f",
            self.bookie_id,
            trio.current_time() - started_at,
        )
        return storage

    async def _serve(
        self,
        storage: LedgerStorage,
        listener: Listener,
        task_status: trio.TaskStatus[str],
    ) -> None:
        config = self.config
        requests = Requests(
            storage,
            long_polls_max=config.long_polls_max,
            space=lambda: self._disk.space(config.ledger_directories[0]),
        )
        self.server = Server(
            storage,
            requests,
            frame_bytes_max=config.frame_bytes_max,
            connections_max=config.connections_max,
            queued_bytes_max=config.journal_queue_bytes_max,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(storage.run)
            nursery.start_soon(requests.run)
            nursery.start_soon(self.server.run, listener)
            nursery.start_soon(self._collect_garbage, storage)
            async with AsyncExitStack() as stack:
                await self._insist("registration", partial(self._register, stack))
                _log.info("serving bookie=%s address=%s:%d", self.bookie_id, *self.address)
                task_status.started(self.bookie_id)
                await trio.sleep_forever()

    async def _register(self, stack: AsyncExitStack) -> None:
        info = BookieInfo(*self.address, {SOFTWARE_PROPERTY: OUR_SOFTWARE})
        registered = self.registry.register(self.bookie_id, info)
        await stack.enter_async_context(registered)

    async def _collect_garbage(self, storage: LedgerStorage) -> None:
        """Asks metadata, for each ledger that might be dead, whether it is; a failed question
        means "alive"."""

        async def is_deleted(ledger_id: int) -> bool:
            if await self.ledgers.exists(ledger_id):
                return False
            # A metadata store that was emptied, or is another's, must not empty the disks too.
            await self._check_cluster()
            return True

        while True:
            await trio.sleep(self.config.garbage_interval_ms / 1000)
            try:
                await storage.collect_garbage(is_deleted)
            except MetadataUnavailable as error:
                _log.warning("garbage collection put off bookie=%s cause=%s", self.bookie_id, error)

    async def _check_cluster(self) -> None:
        try:
            instance_id = await self.registry.instance_id()
        except NoSuchNode:
            instance_id = "none"
        if instance_id != self.instance_id:
            raise MetadataUnavailable(
                f"the metadata store holds cluster {instance_id}, this bookie belongs to "
                f"{self.instance_id}. Cure: bring back the metadata it was started with"
            )

    # ---- cookie

    async def _check_cookie(self) -> None:
        """The disk must be the one this bookie was registered with (facts 7.3)."""
        config = self.config
        expected = Cookie(
            bookie_id=self.bookie_id,
            journal_directories=tuple(config.journal_directories),
            ledger_directories=tuple(config.ledger_directories),
            instance_id=self.instance_id,
        )
        directories = dict.fromkeys((*config.journal_directories, *config.ledger_directories))
        on_disk = {d: await self._cookie_of(d) for d in directories}
        registered = await self.registry.read_cookie(self.bookie_id)
        found = [(d, cookie) for d, cookie in on_disk.items() if cookie is not None]
        if registered is not None:
            found.append(("the cluster", registered[0]))
        for where, cookie in found:
            if cookie != expected:
                raise CookieMismatch(
                    f"cookie in {where} is {cookie}, this bookie is {expected}: foreign disk or "
                    "changed configuration. Cure: give it the directories and id it had"
                )
        missing = [d for d, cookie in on_disk.items() if cookie is None]
        if registered is None:
            await self._check_holds_nothing(directories)
        elif missing and not (self.config.allow_empty_disk and len(missing) == len(on_disk)):
            raise CookieMismatch(
                f"bookie {self.bookie_id} is known to the cluster, but there is no cookie in "
                f"{', '.join(missing)}: a disk is not mounted, or was emptied and what the "
                "bookie acknowledged is gone. Cure: mount the right disks; or, if they are lost, "
                f"delete the cookie of {self.bookie_id} and start it as a new bookie"
            )
        # Disks first: a crash in between leaves cookies on empty disks, which is no harm.
        for directory in missing:
            await self._disk.replace_file(f"{directory}/{COOKIE_FILE}", encode_cookie(expected))
        if registered is None:
            await self.registry.write_cookie(self.bookie_id, expected)

    async def _cookie_of(self, directory: str) -> Cookie | None:
        try:
            return decode_cookie(await self._disk.read_file(f"{directory}/{COOKIE_FILE}"))
        except FileNotFoundError:
            return None

    async def _check_holds_nothing(self, directories: dict[str, None]) -> None:
        """A bookie the cluster does not know must be a new one."""
        for directory in directories:
            names = await self._disk.list_directory(directory)
            held = [name for name in names if name not in _NO_DATA]
            if held:
                raise CookieMismatch(
                    f"{directory} holds {', '.join(held[:5])}, but the cluster does not know "
                    f"bookie {self.bookie_id}: wrong cluster address, or its cookie was deleted. "
                    "Cure: check the address; to use the disk for a new bookie, empty it"
                )

    def statistics(self) -> BookieStatistics:
        """Counters of a bookie that serves."""
        assert self.server is not None, "the bookie does not serve yet"
        assert self.storage is not None
        return BookieStatistics(self.server.statistics(), self.storage.statistics())
