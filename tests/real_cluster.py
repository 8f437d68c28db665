"""A cluster in the test's process: real files, real sockets, real RocksDB, metadata in memory."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from bookie.bookie import Bookie
from bookie.config import BookieConfig
from bookie.process import open_audit
from bookie.storage.disk.real_disk import RealDisk
from bookie.storage.index.rocksdb import RocksStores, index_opener
from ledger.client import LedgerClient
from ledger.core.ledger_keys import NO_KEYS, LedgerKeys
from ledger.metastore.base import MetadataStore
from ledger.metastore.memory import MemoryStore, MemoryTree
from ledger.options import ClientOptions
from ledger.runtime.network import TcpNetwork

SMALL = {
    "journal_file_bytes_max": 1 << 20,
    "write_cache_bytes": 2 << 20,
    "journal_queue_bytes_max": 1 << 20,
    "frame_bytes_max": 256 << 10,
    "entry_log_bytes_max": 1 << 20,
    "read_cache_bytes": 1 << 20,
    "checkpoint_interval_ms": 200,
    "garbage_interval_ms": 200,
}
"""Settings under which a short test rolls, checkpoints and collects many times."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def bookie_of(
    config: BookieConfig,
    disk: RealDisk,
    store: MetadataStore,
    number: int = 0,
    boot_id: str = "",
    keys: LedgerKeys = NO_KEYS,
) -> Bookie:
    """A bookie with everything real but its metadata; not begun."""
    return Bookie(
        config,
        network=TcpNetwork(),
        disk=disk,
        key_value=index_opener(config.index_cache_bytes, len(config.ledger_directories)),
        store=store,
        now_ms=now_ms,
        rng=random.Random(number),
        boot_id=boot_id,
        index_stores=RocksStores(disk),
        keys=keys,
    )


class RealCluster:
    def __init__(self, directory: Path, nursery: trio.Nursery, settings: dict[str, Any]) -> None:
        self.directory = directory
        self.tree = MemoryTree()
        self.boot_id = ""
        """Of the machine, for bookies that start from now on."""
        self.keys: LedgerKeys = settings.pop("keys", NO_KEYS)
        """The secrets of the cluster, for bookies and clients that start from now on."""
        self.bookies: dict[int, Bookie] = {}
        self.disks: dict[int, RealDisk] = {}
        self._nursery = nursery
        self._settings = settings
        self._counts: tuple[int, int] = settings.pop("counts", (1, 1))
        self._scopes: dict[int, tuple[trio.CancelScope, trio.Event]] = {}
        self._ports: dict[int, int] = {}
        self._clients = 0

    async def start(self, number: int) -> str:
        """Starts a bookie, again on the port and directory it had; returns its id."""
        bookie_id: str = await self._nursery.start(self._run, number)
        return bookie_id

    async def _run(self, number: int, task_status: trio.TaskStatus[str]) -> None:
        at = f"{self.directory}/{number}"
        journals, directories = self._counts
        settings: dict[str, Any] = {
            "metadata_uri": "memory:",
            "journal_directories": tuple(f"{at}/journal{n or ''}" for n in range(journals)),
            "ledger_directories": tuple(f"{at}/ledgers{n or ''}" for n in range(directories)),
            "port": self._ports.get(number, 0),
        }
        config = BookieConfig(**settings | self._settings)
        disk = self.disks[number] = RealDisk()
        ended = trio.Event()
        with trio.CancelScope() as scope:
            try:
                async with MemoryStore(self.tree, now_ms) as store:
                    bookie = bookie_of(config, disk, store, number, self.boot_id, self.keys)
                    bookie.audit = await open_audit(config, self._nursery)
                    self._scopes[number] = (scope, ended)
                    self.bookies[number] = bookie
                    await bookie.run(task_status)
            finally:
                self._ports[number] = bookie.address[1]
                disk.close()
                ended.set()

    async def ended(self, number: int) -> None:
        """Returns when a bookie that was asked to stop has ended."""
        await self._scopes[number][1].wait()

    async def stop(self, number: int) -> None:
        """Ends a bookie suddenly; `Bookie.stop` is the orderly way."""
        scope, ended = self._scopes[number]
        scope.cancel()
        await ended.wait()

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[LedgerClient]:
        self._clients += 1
        async with (
            MemoryStore(self.tree, now_ms) as store,
            LedgerClient(
                store,
                TcpNetwork(),
                rng=random.Random(self._clients),
                now_ms=now_ms,
                options=ClientOptions(**options),
                keys=self.keys,
            ) as client,
        ):
            yield client


@asynccontextmanager
async def real_cluster(
    directory: Path, bookies: int = 3, **settings: Any
) -> AsyncIterator[RealCluster]:
    """`settings`: of each bookie; `counts` are those of its journals and its ledger directories,
    and `keys` the secrets of the cluster."""
    async with AsyncExitStack() as stack:
        nursery = await stack.enter_async_context(trio.open_nursery())
        cluster = RealCluster(directory, nursery, settings)
        for number in range(bookies):
            await cluster.start(number)
        yield cluster
        nursery.cancel_scope.cancel()
