"""Properties of the ZooKeeper driver alone, on a server without faults."""

from __future__ import annotations

import re
import threading
from contextlib import aclosing
from typing import Any

import pytest
import trio
import trio.testing
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import make_acl

from ledger.client import LedgerClient
from ledger.errors import (
    InvalidArgument,
    MetadataConflict,
    MetadataUnavailable,
    NodeExists,
    NoSuchNode,
    Unauthorized,
)
from ledger.metastore.base import ANY_VERSION, Change, Check, Create, Delete, Put
from ledger.metastore.zookeeper import session, transactions
from ledger.metastore.zookeeper.address import parse_address
from ledger.metastore.zookeeper.store import ZooKeeperStore, open_zookeeper
from tests.clusters import make_cluster
from tests.zookeeper import RunningZooKeeper

pytestmark = pytest.mark.zookeeper
SESSION_MS = 20_000


def is_zookeeper_thread(thread: threading.Thread) -> bool:
    return thread.name.startswith("zookeeper ")


async def raw(server: RunningZooKeeper, call: Any) -> Any:
    """Returns the result of `call` with a plain client of the whole tree."""

    def run() -> Any:
        client = KazooClient(hosts=server.address)
        client.start()
        try:
            return call(client)
        finally:
            client.stop()
            client.close()

    return await trio.to_thread.run_sync(run)


async def count_server_watches(server: RunningZooKeeper) -> int:
    host, _, port = server.address.rpartition(":")
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        await stream.send_all(b"mntr")
        answer = b"".join([chunk async for chunk in stream])
    found = re.search(rb"zk_watch_count\s+(\d+)", answer)
    assert found, answer
    return int(found.group(1))


async def test_the_tree_begins_at_the_parent_of_the_ledgers_root(
    shared_zookeeper: RunningZooKeeper, zookeeper_uri: str
) -> None:
    address = parse_address(zookeeper_uri)
    other_uri = zookeeper_uri.replace("/cluster/", "/other/")
    async with open_zookeeper(zookeeper_uri) as store, open_zookeeper(other_uri) as other:
        await store.create("/ledgers/LAYOUT", b"x")
        await store.create("/ledgerstream/y", b"")
        await other.create("/ledgers/LAYOUT", b"other")
        found = await raw(shared_zookeeper, lambda client: client.get_children(address.chroot))
        assert sorted(found) == ["ledgers", "ledgerstream"]
        assert (await store.get("/ledgers/LAYOUT")).data == b"x"
        assert await other.children("/") == ["ledgers"]


async def test_clusters_whose_roots_have_one_parent_are_separate(
    shared_zookeeper: RunningZooKeeper, zookeeper_uri: str
) -> None:
    """Otherwise a janitor of one would delete ledgers of the other that have the same ids."""
    chroot = parse_address(zookeeper_uri).chroot
    red_uri = zookeeper_uri.replace("/ledgers", "/red")
    async with open_zookeeper(zookeeper_uri) as store, open_zookeeper(red_uri) as red:
        await store.create("/ledgerstream/x", b"", is_ephemeral=True)
        await red.transaction([Create("/ledgerstream/y", b"red"), Check("/ledgerstream", 0)])
        await red.create("/ledgerstreams", b"")
        assert await red.create_numbered("/ledgerstream/n_", b"") == "/ledgerstream/n_0000000001"
        await red.delete("/ledgerstream/n_0000000001")
        assert await store.children("/ledgerstream") == ["x"]
        assert await red.children("/ledgerstream") == ["y"]
        async with aclosing(red.watch("/ledgerstream/y")) as nodes:
            node = await anext(nodes)
            assert node is not None
            assert node.data == b"red"
        found = await raw(shared_zookeeper, lambda client: client.get_children(chroot))
        assert sorted(found) == ["ledgerstream", "ledgerstream-red", "ledgerstreams"]


async def test_cancelled_ids_leave_no_nodes(zookeeper_uri: str) -> None:
    async with open_zookeeper(zookeeper_uri, session_timeout_ms=SESSION_MS) as store:
        assert await store.next_id("/ids/ID-") == 0
        is_given_up = False
        while not is_given_up:  # a fast server may have answered all of them
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(store.next_id, "/ids/ID-")
                await trio.testing.wait_all_tasks_blocked()
                is_given_up = bool(nursery.child_tasks)
                nursery.cancel_scope.cancel()
        assert await store.next_id("/ids/ID-") > 0
        with trio.fail_after(20):
            async with aclosing(store.watch_children("/ids")) as names:
                async for found in names:
                    if not found:
                        break


async def test_a_client_finds_its_cluster_where_the_address_says(
    shared_zookeeper: RunningZooKeeper, zookeeper_uri: str
) -> None:
    uri = zookeeper_uri.replace("/ledgers", "/mine")
    instance = await make_cluster(uri)
    async with LedgerClient.connect(uri) as client:
        assert await client.list_ledgers() == []
    place = f"{parse_address(uri).chroot}/mine/INSTANCEID"
    data, _ = await raw(shared_zookeeper, lambda plain: plain.get(place))
    assert data.decode() == instance


async def test_nodes_are_open_to_all_clients_as_apaches_are(
    shared_zookeeper: RunningZooKeeper, zookeeper_uri: str
) -> None:
    async with open_zookeeper(zookeeper_uri) as store:
        await store.create("/a/b", b"")
    whole = f"{parse_address(zookeeper_uri).chroot}/a"
    for path in (whole, f"{whole}/b"):
        acls, _ = await raw(shared_zookeeper, lambda client, path=path: client.get_acls(path))
        assert [(acl.perms, acl.id.scheme, acl.id.id) for acl in acls] == [(31, "world", "anyone")]


async def test_a_node_without_permission_is_an_error_that_names_the_cause(
    shared_zookeeper: RunningZooKeeper, zookeeper_uri: str
) -> None:
    chroot = parse_address(zookeeper_uri).chroot
    no_client = [make_acl("digest", "someone:else", all=True)]
    await raw(shared_zookeeper, lambda client: client.ensure_path(chroot))
    await raw(shared_zookeeper, lambda client: client.create(f"{chroot}/a", b"", acl=no_client))
    async with open_zookeeper(zookeeper_uri) as store:
        with pytest.raises(Unauthorized, match=r"/a .*ACL") as refusal:
            await store.get("/a")
        assert isinstance(refusal.value.__cause__, NoAuthError)
        with pytest.raises(Unauthorized):
            await store.transaction([Put("/a", b"")])
        with pytest.raises(Unauthorized):
            async with aclosing(store.watch("/a")) as nodes:
                await anext(nodes)


async def test_a_name_that_zookeeper_does_not_accept_is_refused(zookeeper_uri: str) -> None:
    async with open_zookeeper(zookeeper_uri) as store:
        await store.create("/fine", b"")
        with pytest.raises(InvalidArgument, match="character"):
            await store.create("/bell\x07", b"")
        assert await store.children("/") == ["fine"]


async def test_a_transaction_creates_parents_that_its_own_changes_need(
    zookeeper_uri: str,
) -> None:
    async with open_zookeeper(zookeeper_uri) as store:
        await store.create("/gone", b"old")
        changes: list[Change] = [
            Delete("/gone"),
            Create("/gone/a/b", b"1"),
            Create("/gone/a/c", b"2"),
            Create("/own", b"3"),
            Create("/own/child", b"4"),
            Check("/", ANY_VERSION),
        ]
        await store.transaction(changes)
        assert await store.children("/gone/a") == ["b", "c"]
        assert (await store.get("/gone")).data == b""
        assert (await store.get("/own")).data == b"3"
        with pytest.raises(InvalidArgument, match="/own/e is ephemeral"):
            await store.transaction(
                [Create("/own/e", b"", is_ephemeral=True), Create("/own/e/x/y", b"")]
            )
        assert await store.children("/own") == ["child"]


async def test_creators_and_removers_of_the_same_parents_do_not_disturb_each_other(
    zookeeper_uri: str,
) -> None:
    async with (
        open_zookeeper(zookeeper_uri, session_timeout_ms=SESSION_MS) as one,
        open_zookeeper(zookeeper_uri, session_timeout_ms=SESSION_MS) as two,
    ):

        async def create_and_delete(store: ZooKeeperStore, number: int) -> None:
            for _ in range(5):
                path = f"/p/q/r/{number}"
                await store.create(path, b"")
                await store.delete(path)
                for parent in ("/p/q/r", "/p/q", "/p"):
                    try:
                        await store.delete(parent)
                    except (InvalidArgument, NoSuchNode):
                        break

        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(create_and_delete, (one, two)[number % 2], number)
        assert await one.children("/") == []


async def test_parents_that_are_removed_every_time_lead_to_an_error(
    zookeeper_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "TRIES_MAX", 0)
    async with open_zookeeper(zookeeper_uri) as store:
        with pytest.raises(MetadataConflict, match="created and removed its parents"):
            await store.create("/a/b", b"")


async def test_a_transaction_too_large_for_the_server_is_refused_before_it_is_sent(
    zookeeper_uri: str,
) -> None:
    async with open_zookeeper(zookeeper_uri) as store:
        half = bytes(510_000)
        await store.transaction([Create("/a", half), Create("/b", half)])
        with pytest.raises(InvalidArgument, match="1040000 at most with ZooKeeper"):
            await store.transaction([Put("/a", half), Put("/b", half), Put("/c", half)])
        long_name = "x" * 1000
        await store.transaction([Create(f"/{long_name}{n}", b"") for n in range(970)])
        with pytest.raises(InvalidArgument, match="at most"):
            await store.transaction([Check(f"/{long_name}{n}", 0) for n in range(1000)])
        assert (await store.get("/b")).version == 0


async def test_ids_leave_no_nodes_behind_and_are_counted_by_the_server(
    shared_zookeeper: RunningZooKeeper, zookeeper_uri: str
) -> None:
    whole = f"{parse_address(zookeeper_uri).chroot}/ledgers/idgen"
    async with open_zookeeper(zookeeper_uri, session_timeout_ms=SESSION_MS) as store:
        assert [await store.next_id("/ledgers/idgen/ID-") for _ in range(3)] == [0, 1, 2]
        async with aclosing(store.watch_children("/ledgers/idgen")) as names:
            async for left in names:
                if not left:
                    break
        taken = await raw(
            shared_zookeeper,
            lambda client: client.create(f"{whole}/ID-", b"", ephemeral=True, sequence=True),
        )
        assert taken == f"{whole}/ID-0000000003"
        assert await store.next_id("/ledgers/idgen/ID-") == 4


async def test_closing_iterators_removes_the_watches_from_the_server(
    zookeeper_server: RunningZooKeeper,
) -> None:
    async with open_zookeeper(zookeeper_server.uri, session_timeout_ms=SESSION_MS) as store:
        await store.create("/there", b"")
        for _ in range(20):
            for path in ("/there", "/missing"):
                async with (
                    aclosing(store.watch(path)) as nodes,
                    aclosing(store.watch_children(path)) as names,
                ):
                    await anext(nodes)
                    await anext(names)
        await store.get("/there")  # answered after all earlier requests
        assert await count_server_watches(zookeeper_server) == 0
        client = store._session._client
        assert not any(client._data_watchers.values())
        assert not any(client._child_watchers.values())


async def test_iterators_of_one_path_share_one_watch_and_each_sees_the_change(
    zookeeper_server: RunningZooKeeper,
) -> None:
    async with open_zookeeper(zookeeper_server.uri, session_timeout_ms=SESSION_MS) as store:
        await store.create("/a", b"0")
        seen: list[bytes] = []

        async def follow(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
            async with aclosing(store.watch("/a")) as nodes:
                async for node in nodes:
                    assert node is not None
                    if node.version == 0:
                        task_status.started()
                    else:
                        seen.append(node.data)
                        return

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    await nursery.start(follow)
                assert await count_server_watches(zookeeper_server) == 1
                async with aclosing(store.watch("/a")) as early:
                    await anext(early)  # closing it must not remove the others' watch
                await store.put("/a", b"1")
        assert seen == [b"1"] * 10


async def test_a_store_has_one_thread_which_ends_with_it(zookeeper_uri: str) -> None:
    before = [thread for thread in threading.enumerate() if is_zookeeper_thread(thread)]
    for _ in range(3):
        async with open_zookeeper(zookeeper_uri) as store:
            for number in range(20):
                await store.create(f"/{number}x", b"", is_ephemeral=True)
            now = [thread for thread in threading.enumerate() if is_zookeeper_thread(thread)]
            assert len(now) == len(before) + 1
    assert [t for t in threading.enumerate() if is_zookeeper_thread(t)] == before


async def test_more_calls_than_may_be_in_flight_wait_their_turn(
    zookeeper_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "IN_FLIGHT_MAX", 10)
    most = 0
    async with open_zookeeper(zookeeper_uri, session_timeout_ms=SESSION_MS) as store:
        await store.create("/a", b"")

        async def count_up() -> None:
            nonlocal most
            await store.put("/a", b"")
            most = max(most, len(store._session._in_flight))

        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(count_up)
        assert (await store.get("/a")).version == 200
    assert 5 < most <= 10


async def test_thousands_of_calls_at_once_do_not_block_trio(zookeeper_uri: str) -> None:
    """The pipe by which kazoo wakes its thread would be full after a few hundred calls."""
    async with open_zookeeper(zookeeper_uri, session_timeout_ms=SESSION_MS) as store:
        await store.create("/a", b"")
        async with trio.open_nursery() as nursery:
            for _ in range(2000):
                nursery.start_soon(store.get, "/a")


async def test_cancelled_calls_do_not_affect_others(zookeeper_uri: str) -> None:
    async with open_zookeeper(zookeeper_uri, session_timeout_ms=SESSION_MS) as store:
        await store.create("/n", b"")

        async def watch_once() -> None:
            async with aclosing(store.watch("/n")) as nodes:
                async for _ in nodes:
                    pass

        for number in range(30):
            async with trio.open_nursery() as nursery:
                for task in range(10):
                    nursery.start_soon(store.put, "/n", b"x")
                    nursery.start_soon(store.create, f"/c/{number}/{task}", b"")
                    nursery.start_soon(store.children, "/c")
                    nursery.start_soon(store.next_id, "/ids/ID-")
                    nursery.start_soon(watch_once)
                if number % 3:
                    await trio.lowlevel.checkpoint()
                if number % 2:
                    await store.get("/n")
                nursery.cancel_scope.cancel()
        with trio.fail_after(20):
            before = await store.get("/n")
            assert await store.put("/n", b"last", before.version) == before.version + 1
            with pytest.raises(NodeExists):
                await store.create("/n", b"")
        assert not store._session._in_flight
        assert store._session._slots.value == session.IN_FLIGHT_MAX


async def test_closing_wakes_all_waits(zookeeper_uri: str) -> None:
    async with open_zookeeper(zookeeper_uri) as store:
        refused = 0

        async def wait_forever() -> None:
            nonlocal refused
            async with aclosing(store.watch("/a")) as nodes:
                assert await anext(nodes) is None
                with pytest.raises(MetadataUnavailable, match="closed"):
                    await anext(nodes)
            refused += 1

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(wait_forever)
                await trio.testing.wait_all_tasks_blocked(0.05)
                await store.aclose()
        assert refused == 5
