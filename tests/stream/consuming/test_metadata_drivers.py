"""Consumer groups on every metadata store: joining, leaving, and lost sessions behave alike."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from ledger.client import LedgerClient, wall_ms
from ledger.metastore import open_store
from ledger.metastore.memory import MemoryStore, MemoryTree
from ledger.runtime.network import TcpNetwork
from stream import Consumer, Namespace
from tests.zookeeper import RunningZooKeeper


class Driver:
    """Clients of one metadata store, each with a session; `expire` ends all sessions."""

    def __init__(
        self,
        expire: Callable[[], Awaitable[object]],
        open_client: Callable[[], AbstractAsyncContextManager[LedgerClient]],
    ) -> None:
        self.expire = expire
        self.open_client = open_client


@asynccontextmanager
async def _client_at(uri: str) -> AsyncIterator[LedgerClient]:
    async with (
        open_store(uri, may_create=True) as store,
        LedgerClient(store, TcpNetwork(), rng=random.Random(), now_ms=wall_ms) as client,
    ):
        yield client


def _in_memory() -> Driver:
    tree = MemoryTree()
    stores: list[MemoryStore] = []

    @asynccontextmanager
    async def open_client() -> AsyncIterator[LedgerClient]:
        async with (
            MemoryStore(tree, wall_ms) as store,
            LedgerClient(store, TcpNetwork(), rng=random.Random(), now_ms=wall_ms) as client,
        ):
            stores.append(store)
            yield client

    async def expire() -> None:
        for store in stores:
            store.expire_session()

    return Driver(expire, open_client)


def _on_disk(path: Path) -> Driver:
    def expire() -> None:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        other.execute("DELETE FROM nodes WHERE owner IS NOT NULL")
        other.execute("DELETE FROM sessions")
        other.execute("UPDATE changes SET sequence = sequence + 1")
        other.execute("COMMIT")
        other.close()

    return Driver(partial(trio.to_thread.run_sync, expire), lambda: _client_at(f"sqlite://{path}"))


@pytest.fixture(params=["memory", "sqlite", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Driver]:
    if request.param == "zookeeper":
        server: RunningZooKeeper = request.getfixturevalue("zookeeper_server")
        expire = partial(trio.to_thread.run_sync, server.expire_sessions)
        yield Driver(expire, lambda: _client_at(server.uri))
    else:
        yield _in_memory() if request.param == "memory" else _on_disk(tmp_path / "cluster.db")


async def wait_for(holds: Callable[[], bool]) -> None:
    with trio.fail_after(30):
        while not holds():  # noqa: ASYNC110
            await trio.sleep(0.02)


class Member:
    """A member with a client of its own, in a task."""

    def __init__(self, driver: Driver, nursery: trio.Nursery, name: str) -> None:
        self.name = name
        self.consumer: Consumer | None = None
        self.stop = trio.Event()
        self.finished = trio.Event()
        nursery.start_soon(self._run, driver)

    async def _run(self, driver: Driver) -> None:
        async with (
            driver.open_client() as client,
            Namespace(client, "n").consumer("s", "g", member=self.name) as consumer,
        ):
            self.consumer = consumer
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(consumer.__anext__)
                    await self.stop.wait()
                    scope.cancel()
        self.finished.set()

    @property
    def partitions(self) -> set[str]:
        return set() if self.consumer is None else set(self.consumer.partitions)


async def test_members_share_lose_their_sessions_and_share_again(driver: Driver) -> None:
    async with driver.open_client() as client, trio.open_nursery() as nursery:
        namespace = Namespace(client, "n")
        await namespace.ensure()
        await namespace.create_stream("s", partitions=4)
        wanted = set(await namespace.partitions("s"))
        members = [Member(driver, nursery, "a")]
        await wait_for(lambda: members[0].partitions == wanted)
        members.append(Member(driver, nursery, "b"))
        await wait_for(lambda: [len(m.partitions) for m in members] == [2, 2])
        assert members[0].partitions | members[1].partitions == wanted
        epochs = {row.partition: row.epoch for row in (await namespace.group("s", "g")).partitions}
        assert sorted(epochs.values()) == [1, 1, 2, 2], "only two have moved"

        await driver.expire()
        # Members return under the same names, and each has its own partitions.
        while True:
            info = await namespace.group("s", "g")
            if info.members == ("a", "b") and all(
                row.holder == row.assigned_to for row in info.partitions
            ):
                break
            await trio.sleep(0.05)
        await wait_for(lambda: [len(m.partitions) for m in members] == [2, 2])

        await namespace.grow_stream("s", partitions=6)
        await wait_for(lambda: [len(m.partitions) for m in members] == [3, 3])
        members[0].stop.set()
        await members[0].finished.wait()
        await wait_for(lambda: len(members[1].partitions) == 6)
        assert (await namespace.group("s", "g")).members == ("b",)
        members[1].stop.set()
