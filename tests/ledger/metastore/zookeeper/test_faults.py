"""The ZooKeeper driver while its server dies, is paused or ends the session."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest
import trio
import trio.testing

from ledger.errors import MetadataUnavailable
from ledger.metastore import open_store
from ledger.metastore.base import MetadataStore
from ledger.metastore.bookies import BookieInfo, BookieRegistry
from ledger.metastore.zookeeper.store import ZooKeeperStore, open_zookeeper
from tests.zookeeper import RunningZooKeeper

from .proxy import open_proxy
from .steps import (
    LONG_MS,
    PATIENCE_S,
    SHORT_MS,
    disconnected,
    expire,
    in_thread,
    insist,
    wait_children,
    wait_until,
)

pytestmark = pytest.mark.zookeeper
# The server is killed and restarted.


async def test_calls_and_watches_continue_after_kill_and_restart(
    zookeeper_server: RunningZooKeeper,
) -> None:
    uri = zookeeper_server.uri
    acknowledged: dict[str, int] = {}
    outcomes = {"done": 0, "unknown": 0}
    progress = trio.lowlevel.ParkingLot()

    async def wait_done(more: int) -> None:
        wanted = outcomes["done"] + more
        with trio.fail_after(PATIENCE_S):
            while outcomes["done"] < wanted:
                await progress.park()

    async with open_zookeeper(uri, session_timeout_ms=LONG_MS) as store:
        await store.create("/kept", b"x", is_ephemeral=True)

        async def count(path: str) -> None:
            await store.create(path, b"")
            while True:
                try:
                    acknowledged[path] = await store.put(path, b"x")
                    outcomes["done"] += 1
                    progress.unpark_all()
                except MetadataUnavailable:
                    outcomes["unknown"] += 1

        async with (
            aclosing(store.watch("/a")) as nodes,
            aclosing(store.watch_children("/")) as names,
            trio.open_nursery() as nursery,
        ):
            await anext(nodes)
            await anext(names)
            for number in range(8):
                nursery.start_soon(count, f"/counter{number}")
            for _ in range(2):
                await wait_done(50)
                zookeeper_server.kill()
                await in_thread(zookeeper_server.start)
            await wait_done(50)
            async with open_store(uri, session_timeout_ms=LONG_MS, may_create=True) as other:
                await other.create("/a", b"made by another")
            await wait_until(nodes, b"made by another")
            with trio.fail_after(PATIENCE_S):
                async for found in names:
                    if "a" in found:
                        break
            nursery.cancel_scope.cancel()
        assert outcomes["unknown"] > 0, "no call was in flight when the server died"
        for path, version in acknowledged.items():
            assert (await store.get(path)).version >= version
        assert (await store.get("/kept")).data == b"x", "the session outlived the server"


async def test_a_call_waits_for_a_server_that_is_away_for_a_while(
    zookeeper_server: RunningZooKeeper,
) -> None:
    async with open_zookeeper(zookeeper_server.uri, session_timeout_ms=60_000) as store:
        zookeeper_server.kill()
        await disconnected(store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.create, "/made/later", b"")
            nursery.start_soon(in_thread, zookeeper_server.start)
        assert await store.children("/made") == ["later"]


async def test_a_connection_that_the_server_forgot_is_opened_again_in_time(
    shared_zookeeper: RunningZooKeeper,
) -> None:
    """ZooKeeper does this with connections that it accepts while it loads its data."""
    async with open_proxy(shared_zookeeper.address) as proxy:
        uri = f"zk://{proxy.address}/forgotten/ledgers"
        async with open_zookeeper(uri, session_timeout_ms=LONG_MS // 10) as store:
            await store.create("/made/before", b"")
            proxy.silences = 1
            await proxy.break_all()
            await disconnected(store)
            await store.create("/made/later", b"")
            assert proxy.connections >= 3, "the forgotten connection was used"
            assert await store.children("/made") == ["before", "later"]


async def test_a_call_gives_up_after_the_session_timeout_and_did_not_happen(
    zookeeper_server: RunningZooKeeper,
) -> None:
    async with open_zookeeper(zookeeper_server.uri, session_timeout_ms=SHORT_MS) as store:
        zookeeper_server.kill()
        await disconnected(store)
        with trio.fail_after(PATIENCE_S):
            for call in (store.get("/a"), store.create("/a", b""), store.next_id("/a/ID-")):
                with pytest.raises(MetadataUnavailable, match="not reached for 2 s"):
                    await call
            with pytest.raises(MetadataUnavailable, match="not reached for 2 s"):
                async with aclosing(store.watch("/a")) as nodes:
                    await anext(nodes)
        await in_thread(zookeeper_server.start)
        async with open_store(
            zookeeper_server.uri, session_timeout_ms=LONG_MS, may_create=True
        ) as other:
            assert await other.children("/") == ["zookeeper"]


async def test_a_watch_waits_for_its_server_without_a_limit(
    zookeeper_server: RunningZooKeeper,
) -> None:
    uri = zookeeper_server.uri
    async with (
        open_zookeeper(uri, session_timeout_ms=SHORT_MS) as store,
        aclosing(store.watch("/a")) as nodes,
        trio.open_nursery() as nursery,
    ):
        assert await anext(nodes) is None
        nursery.start_soon(wait_until, nodes, b"at last")
        zookeeper_server.kill()
        for _ in range(2):
            with pytest.raises(MetadataUnavailable):
                await store.get("/b")  # waits for the session timeout
        await in_thread(zookeeper_server.start)
        async with open_store(uri, session_timeout_ms=LONG_MS, may_create=True) as other:
            await other.create("/a", b"at last")


async def test_requests_that_a_silent_server_does_not_accept_do_not_block_trio(
    zookeeper_server: RunningZooKeeper,
) -> None:
    """The pipe by which kazoo wakes its thread is full after a few hundred calls, and blocks."""
    async with open_zookeeper(zookeeper_server.uri, session_timeout_ms=60_000) as store:
        await store.create("/a", b"")
        zookeeper_server.pause()
        started_at = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(900):
                nursery.start_soon(store.put, "/a", bytes(30_000))
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert trio.current_time() - started_at < 30
            nursery.cancel_scope.cancel()
        zookeeper_server.resume()


async def test_closing_is_quick_although_the_server_is_dead(
    zookeeper_server: RunningZooKeeper,
) -> None:
    async with open_zookeeper(zookeeper_server.uri, session_timeout_ms=LONG_MS) as store:
        zookeeper_server.kill()
        with trio.fail_after(15):
            await store.aclose()
    assert not [t for t in threading.enumerate() if zookeeper_server.address in t.name]


async def test_closing_is_quick_although_the_server_is_paused(
    zookeeper_server: RunningZooKeeper,
) -> None:
    uri = zookeeper_server.uri
    async with open_zookeeper(uri, session_timeout_ms=60_000) as store, trio.open_nursery() as n:
        zookeeper_server.pause()
        n.start_soon(refused, store)
        await trio.testing.wait_all_tasks_blocked(0.05)
        with trio.fail_after(15):
            await store.aclose()
    assert not [t for t in threading.enumerate() if zookeeper_server.address in t.name]


async def refused(store: MetadataStore) -> None:
    with pytest.raises(MetadataUnavailable):
        await store.create("/a", b"")


# The session is ended.


async def test_calls_continue_after_a_pause_beyond_the_session_timeout(
    zookeeper_server: RunningZooKeeper,
) -> None:
    uri = zookeeper_server.uri
    async with (
        open_zookeeper(uri, session_timeout_ms=SHORT_MS) as store,
        aclosing(store.watch("/e")) as nodes,
        aclosing(store.watch("/a")) as others,
    ):
        await store.create("/e", b"x", is_ephemeral=True)
        await store.create("/a", b"0")
        await wait_until(nodes, b"x")
        await wait_until(others, b"0")
        session = store._session.session_id
        zookeeper_server.pause()
        # A call reveals how long the pause was; the server's clock keeps running.
        for _ in range(2):
            with pytest.raises(MetadataUnavailable):
                await store.put("/a", b"lost or not")
        zookeeper_server.resume()
        await insist(store, "/a", b"1")
        await wait_until(others, b"1")
        # When the server resumed, either the session ended first or we reconnected first.
        if store._session.session_id == session:
            assert (await store.get("/e")).data == b"x"
        else:
            await wait_until(nodes, None)
            await store.create("/e", b"new", is_ephemeral=True)
            await wait_until(nodes, b"new")


async def test_a_paused_server_is_given_up_although_requests_keep_coming(
    zookeeper_server: RunningZooKeeper,
) -> None:
    """kazoo's heartbeats alone would never detect it."""
    async with open_zookeeper(zookeeper_server.uri, session_timeout_ms=SHORT_MS) as store:
        zookeeper_server.pause()

        async def ask_forever() -> None:
            while True:
                with trio.move_on_after(0.1):
                    await store.next_id("/x/ID-")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_forever)
            await disconnected(store)
            nursery.cancel_scope.cancel()
        zookeeper_server.resume()
        with trio.fail_after(PATIENCE_S):
            while True:
                try:
                    await store.next_id("/x/ID-")
                    break
                except MetadataUnavailable:
                    continue


async def test_a_session_ended_by_force_is_replaced_and_others_see_its_nodes_vanish(
    shared_zookeeper: RunningZooKeeper, zookeeper_uri: str
) -> None:
    async with (
        open_zookeeper(zookeeper_uri, session_timeout_ms=LONG_MS) as store,
        open_store(zookeeper_uri, session_timeout_ms=LONG_MS, may_create=True) as other,
        aclosing(store.watch_children("/e")) as own,
        aclosing(store.watch("/a")) as nodes,
    ):
        await store.create("/e/x", b"", is_ephemeral=True)
        await other.create("/a", b"0")
        await wait_until(nodes, b"0")
        await expire(store, shared_zookeeper)
        await wait_children(other, "/e", [])
        with trio.fail_after(PATIENCE_S):
            async for names in own:
                if not names:
                    break
            await store.create("/e/x", b"", is_ephemeral=True)
            assert await anext(own) == ["x"]
        await other.put("/a", b"1")
        await wait_until(nodes, b"1")
        await store.aclose()
        assert await other.children("/e") == []


async def test_silence_beyond_the_session_timeout_ends_the_session(
    shared_zookeeper: RunningZooKeeper, zookeeper_uri: str
) -> None:
    async with (
        open_proxy(shared_zookeeper.address) as proxy,
        open_zookeeper(
            zookeeper_uri.replace(shared_zookeeper.address, proxy.address),
            session_timeout_ms=SHORT_MS,
        ) as store,
        open_store(zookeeper_uri, session_timeout_ms=LONG_MS, may_create=True) as other,
        aclosing(store.watch("/e")) as own,
        registered(store),
    ):
        await store.create("/e", b"x", is_ephemeral=True)
        await wait_until(own, b"x")
        session = store._session.session_id
        before = await other.get(REGISTRATION)
        proxy.is_refusing = True
        await proxy.break_all()
        async with aclosing(other.watch("/e")) as seen:
            await wait_until(seen, None)
        proxy.is_refusing = False
        await wait_until(own, None)
        assert store._session.session_id != session
        with trio.fail_after(PATIENCE_S):
            async with aclosing(other.watch(REGISTRATION)) as nodes:
                async for node in nodes:
                    if node is not None and node != before:
                        break


REGISTRATION = "/ledgers/available/b1:3181"


@asynccontextmanager
async def registered(store: MetadataStore) -> AsyncIterator[None]:
    registry = BookieRegistry(store)
    async with registry.register("b1:3181", BookieInfo("b1", 3181)):
        yield


async def wait_registered(store: ZooKeeperStore) -> None:
    """Waits for a registration that belongs to the store's present session."""
    with trio.fail_after(PATIENCE_S):
        while True:
            try:
                stat = await store._changes.stat(REGISTRATION)
            except MetadataUnavailable:
                continue
            if stat is not None and stat.ephemeralOwner == store._session.session_id:
                return
            await trio.testing.wait_all_tasks_blocked(0.01)


async def test_a_bookie_registers_again_after_force_pause_and_kill(
    zookeeper_server: RunningZooKeeper,
) -> None:
    uri = zookeeper_server.uri
    async with open_zookeeper(uri, session_timeout_ms=SHORT_MS) as store, registered(store):
        await wait_registered(store)
        forced = store._session.session_id
        await expire(store, zookeeper_server)
        await wait_registered(store)
        assert store._session.session_id != forced

        zookeeper_server.pause()
        await disconnected(store)
        with pytest.raises(MetadataUnavailable):
            await store.get("/")  # waits for the session timeout
        zookeeper_server.resume()
        await wait_registered(store)

        zookeeper_server.kill()
        await in_thread(zookeeper_server.start)
        await wait_registered(store)
        assert list(await BookieRegistry(store).available()) == ["b1:3181"]
