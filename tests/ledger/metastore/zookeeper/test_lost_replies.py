"""The ZooKeeper driver when connections break: lost responses, and watches that continue."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from kazoo.exceptions import ConnectionLoss

from ledger.errors import InvalidArgument, LedgerError, MetadataUnavailable, NodeExists, NoSuchNode
from ledger.metastore import open_store
from ledger.metastore.base import Create
from ledger.metastore.clients import ClientRegistration
from ledger.metastore.zookeeper.ephemerals import Ephemerals
from ledger.metastore.zookeeper.errors import OutcomeUnknown
from ledger.metastore.zookeeper.store import open_zookeeper
from tests.zookeeper import RunningZooKeeper

from .proxy import Proxy, open_proxy
from .steps import (
    LONG_MS,
    PATIENCE_S,
    disconnected,
    insist,
    wait_children,
    wait_until,
)

pytestmark = pytest.mark.zookeeper


@asynccontextmanager
async def proxied(server: RunningZooKeeper, uri: str) -> AsyncIterator[tuple[Proxy, str]]:
    async with open_proxy(server.address) as proxy:
        yield proxy, uri.replace(server.address, proxy.address)


async def lose_answer(proxy: Proxy, call: Callable[[], Awaitable[None]]) -> None:
    """Runs `call` so that the server executes it and its response is lost."""
    proxy.hold_answers()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        with trio.fail_after(PATIENCE_S):
            await proxy.answers_held.wait()
        await proxy.break_all()


async def test_a_change_whose_response_was_lost_is_unknown_and_not_failed(
    shared_zookeeper: RunningZooKeeper, zookeeper_uri: str
) -> None:
    async with (
        proxied(shared_zookeeper, zookeeper_uri) as (proxy, uri),
        open_zookeeper(uri, session_timeout_ms=LONG_MS) as store,
    ):
        await store.create("/n", b"0")

        async def put() -> None:
            with pytest.raises(MetadataUnavailable, match="put /n may have happened or not"):
                await store.put("/n", b"1", 0)

        async def create() -> None:
            with pytest.raises(MetadataUnavailable, match="create /made may have happened"):
                await store.create("/made", b"")

        await lose_answer(proxy, put)
        assert (await store.get("/n")).data == b"1"
        await lose_answer(proxy, create)
        # A read is retried until the connection is up; another change would be unknown, too.
        assert (await store.get("/made")).data == b""


async def test_a_read_whose_response_was_lost_is_retried(
    shared_zookeeper: RunningZooKeeper, zookeeper_uri: str
) -> None:
    async with (
        proxied(shared_zookeeper, zookeeper_uri) as (proxy, uri),
        open_zookeeper(uri, session_timeout_ms=LONG_MS) as store,
    ):
        await store.create("/n", b"0")

        async def read() -> None:
            assert (await store.get("/n")).data == b"0"
            assert proxy.connections == 2

        async def take() -> None:
            # 1 was taken and its response lost, which leaves a gap.
            assert await store.next_id("/ids/ID-") == 2

        await lose_answer(proxy, read)
        assert await store.next_id("/ids/ID-") == 0
        # Neither the response to that deletion must be the lost one, nor that to the removal of the
        # watch, which is sent before the read.
        await wait_children(store, "/ids", [])
        await store.get("/n")
        await lose_answer(proxy, take)


async def test_an_ephemeral_create_whose_response_was_lost_is_recognised_as_ours(
    shared_zookeeper: RunningZooKeeper, zookeeper_uri: str
) -> None:
    async with (
        proxied(shared_zookeeper, zookeeper_uri) as (proxy, uri),
        open_zookeeper(uri, session_timeout_ms=LONG_MS) as store,
    ):
        await store.create("/e/persistent", b"")

        async def create() -> None:
            await store.create("/e/x", b"mine", is_ephemeral=True)

        async def create_again() -> None:
            # It is ours, but not by this call, which must not report that it created the node.
            with pytest.raises(MetadataUnavailable, match="may have happened or not"):
                await store.create("/e/x", b"mine", is_ephemeral=True)

        async def register() -> None:
            await ClientRegistration(store, random.Random(5)).register()

        await lose_answer(proxy, create)
        assert (await store.get("/e/x")).data == b"mine"
        with pytest.raises(NodeExists):
            await store.create("/e/x", b"mine", is_ephemeral=True)
        await lose_answer(proxy, create_again)
        await store.delete("/e/x")
        await lose_answer(proxy, create)
        await lose_answer(proxy, register)
        assert len(await store.children("/ledgerstream/clients")) == 1


async def test_an_ephemeral_create_that_arrived_late_is_recognised_as_ours(
    shared_zookeeper: RunningZooKeeper, zookeeper_uri: str
) -> None:
    """The paused server answers a read first, and then the requests in its buffers."""
    async with open_zookeeper(zookeeper_uri, session_timeout_ms=LONG_MS) as store:
        link, path, tries = store._session, store._whole("/x"), list[bool]()

        async def create() -> None:
            tries.append(True)
            if len(tries) == 1:
                raise OutcomeUnknown("it lies in a buffer")
            await link.call(  # now it is executed
                lambda client: client.create_async(path, b"", ephemeral=True), "", is_change=True
            )
            raise NodeExists("that was before")

        async def look() -> object:
            return await store._changes.stat("/x")

        ephemerals = Ephemerals(link)
        await store.create("/y", b"")
        await ephemerals.create("/x", create, look)
        assert len(tries) == 2
        tries.clear()
        await store.delete("/x")
        with pytest.raises(NodeExists):  # it has /x already: not by this call
            await ephemerals.create("/x", create, look)


async def test_an_ephemeral_create_that_never_arrived_is_repeated(
    shared_zookeeper: RunningZooKeeper, zookeeper_uri: str
) -> None:
    async with (
        proxied(shared_zookeeper, zookeeper_uri) as (proxy, uri),
        open_zookeeper(uri, session_timeout_ms=LONG_MS) as store,
        open_store(zookeeper_uri, session_timeout_ms=LONG_MS, may_create=True) as other,
    ):
        await store.create("/e/persistent", b"")

        async def create() -> None:
            await store.create("/e/x", b"mine", is_ephemeral=True)

        await lose_answer(proxy, create)
        await store.delete("/e/x")
        proxy.hold_answers()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(create)
            await proxy.answers_held.wait()
            await other.delete("/e/x")  # as if it had never existed
            await proxy.break_all()
        assert (await other.get("/e/x")).data == b"mine"


async def test_only_one_of_two_calls_with_lost_responses_reports_that_it_created_the_node(
    shared_zookeeper: RunningZooKeeper, zookeeper_uri: str
) -> None:
    made, unknown = 0, 0
    async with (
        proxied(shared_zookeeper, zookeeper_uri) as (proxy, uri),
        open_zookeeper(uri, session_timeout_ms=LONG_MS) as store,
    ):
        await store.create("/locks/other", b"")

        async def lock() -> None:
            nonlocal made, unknown
            try:
                await store.create("/locks/x", b"", is_ephemeral=True)
                made += 1
            except LedgerError:
                unknown += 1

        async def both() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lock)
                nursery.start_soon(lock)

        await lose_answer(proxy, both)
    assert (made, unknown) == (1, 1)


async def test_watches_survive_connections_that_break_repeatedly(
    shared_zookeeper: RunningZooKeeper, zookeeper_uri: str
) -> None:
    async with (
        proxied(shared_zookeeper, zookeeper_uri) as (proxy, uri),
        open_zookeeper(uri, session_timeout_ms=LONG_MS) as store,
        open_store(zookeeper_uri, session_timeout_ms=LONG_MS, may_create=True) as other,
        aclosing(store.watch("/a")) as nodes,
    ):
        assert await anext(nodes) is None
        for number in range(10):
            data = b"%d" % number
            await (other.create("/a", data) if number == 0 else insist(other, "/a", data))
            if number % 2:
                await proxy.break_all()
            await wait_until(nodes, data)
        assert proxy.connections >= 5


async def test_a_broken_connection_alone_yields_no_value(
    shared_zookeeper: RunningZooKeeper, zookeeper_uri: str
) -> None:
    async with (
        proxied(shared_zookeeper, zookeeper_uri) as (proxy, uri),
        open_zookeeper(uri, session_timeout_ms=LONG_MS) as store,
    ):
        await store.create("/a", b"0")
        seen: list[bytes | list[str]] = []

        async def follow_node() -> None:
            async with aclosing(store.watch("/a")) as nodes:
                async for node in nodes:
                    seen.append(node.data if node is not None else b"")

        async def follow_children() -> None:
            async with aclosing(store.watch_children("/")) as names:
                async for found in names:
                    seen.append(found)

        async def all_quiet() -> None:
            await store.get("/a")  # answered after the requests of the watches
            await trio.testing.wait_all_tasks_blocked(0.05)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow_node)
            await all_quiet()
            nursery.start_soon(follow_children)
            await all_quiet()
            for _ in range(3):
                await proxy.break_all()
                await disconnected(store)
                await all_quiet()
            await store.put("/a", b"1")
            await all_quiet()
            await store.create("/b", b"")
            with trio.fail_after(PATIENCE_S):
                while seen[-1] != ["a", "b"]:
                    await all_quiet()
            nursery.cancel_scope.cancel()
        assert seen == [b"0", ["a"], b"1", ["a", "b"]]


async def test_a_transaction_whose_parents_make_it_too_large_is_refused(
    zookeeper_uri: str,
) -> None:
    """ZooKeeper would close the connection, and fail the calls of all other tasks."""
    async with open_zookeeper(zookeeper_uri, session_timeout_ms=LONG_MS) as store:
        changes = [Create(f"/{'a' * 500}{i}/{'b' * 500}", b"") for i in range(900)]
        with pytest.raises(InvalidArgument, match=r"900 changes and 90[0-9] parents"):
            await store.transaction(changes)
        assert await store.children("/") == []


async def test_a_read_that_is_lost_repeatedly_ends_in_an_error(
    shared_zookeeper: RunningZooKeeper, zookeeper_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_zookeeper(zookeeper_uri, session_timeout_ms=LONG_MS) as store:
        client = store._session._client

        def lost(_path: str) -> Any:
            result = client.handler.async_result()
            result.set_exception(ConnectionLoss())
            return result

        monkeypatch.setattr(client, "get_async", lost)
        with trio.fail_after(PATIENCE_S), pytest.raises(MetadataUnavailable, match="5 times"):
            await store.get("/n")
        assert await store.children("/n") == []


async def test_a_read_from_a_server_that_may_lag_is_repeated(
    shared_zookeeper: RunningZooKeeper, zookeeper_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks between a sync and its read; another server answers the read."""
    async with open_zookeeper(zookeeper_uri, session_timeout_ms=LONG_MS) as store:
        await store.create("/n/child", b"")
        client = store._session._client
        sync, syncs = client.sync_async, list[str]()

        def lost_at_first(path: str) -> Any:
            syncs.append(path)
            if len(syncs) > 1:
                return sync(path)
            lost = client.handler.async_result()
            lost.set_exception(ConnectionLoss())
            return lost

        monkeypatch.setattr(client, "sync_async", lost_at_first)

        async def first(values: AsyncGenerator[object, None]) -> object:
            async with aclosing(values):
                return await anext(values)

        async def absent() -> None:
            with pytest.raises(NoSuchNode):
                await store.get("/x")

        reads: list[Callable[[], Awaitable[object]]] = [
            lambda: store.get("/n"),
            absent,
            lambda: store.children("/n"),
            lambda: first(store.watch("/n")),
            lambda: first(store.watch("/x")),
            lambda: first(store.watch_children("/n")),
        ]
        for number, read in enumerate(reads):
            syncs.clear()
            await read()
            assert len(syncs) >= 2, f"read {number} was accepted"
