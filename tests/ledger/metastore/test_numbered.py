"""Numbered nodes; each test runs against all drivers."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import aclosing, closing
from pathlib import Path

import pytest
import trio

from ledger.errors import InvalidArgument, MetadataUnavailable, NodeExists, NoSuchNode
from ledger.metastore.base import MetadataStore
from ledger.metastore.memory import MemoryStore
from ledger.metastore.paths import NODE_BYTES_MAX
from ledger.metastore.sqlite.store import SqliteStore
from tests.zookeeper import RunningZooKeeper

from .conftest import OpenSession

EndSession = Callable[[MetadataStore], Awaitable[None]]


@pytest.fixture
def end_session(request: pytest.FixtureRequest, tmp_path: Path) -> EndSession:
    """Returns a function that ends the session of a store which lives on."""

    async def end(store: MetadataStore) -> None:
        if isinstance(store, MemoryStore):
            store.expire_session()
        elif isinstance(store, SqliteStore):
            with closing(sqlite3.connect(tmp_path / "cluster.db")) as other:
                row = (store._session,)
                other.execute("DELETE FROM nodes WHERE owner = ?", row)
                other.execute("DELETE FROM sessions WHERE id = ?", row)
                other.execute("UPDATE changes SET sequence = sequence + 1")
                other.commit()
        else:
            from ledger.metastore.zookeeper.store import ZooKeeperStore

            from .zookeeper.steps import expire

            assert isinstance(store, ZooKeeperStore)
            server = request.getfixturevalue("shared_zookeeper")
            assert isinstance(server, RunningZooKeeper)
            await expire(store, server)

    return end


async def test_numbers_count_up_for_each_parent_across_sessions(open_session: OpenSession) -> None:
    async with open_session() as one, open_session() as two:
        made = [
            await one.create_numbered("/e/V_", b"a"),
            await two.create_numbered("/e/V_", b"b"),
            await two.create_numbered("/e/W_", b"c"),
            await one.create_numbered("/other/V_", b"d"),
            await one.create_numbered("/e/V_", b"e"),
        ]
        assert made == [
            "/e/V_0000000000",
            "/e/V_0000000001",
            "/e/W_0000000002",
            "/other/V_0000000000",
            "/e/V_0000000003",
        ]
        node = await two.get("/e/V_0000000000")
        assert (node.data, node.version) == (b"a", 0)
        parent = await one.get("/e")
        assert (parent.data, parent.version) == (b"", 0)


async def test_a_number_is_not_used_again_after_its_node_is_gone(open_session: OpenSession) -> None:
    async with open_session() as stays:
        async with open_session() as leaves:
            assert await leaves.create_numbered("/e/V_", b"a") == "/e/V_0000000000"
            assert await stays.create_numbered("/e/V_", b"b") == "/e/V_0000000001"
        await stays.delete("/e/V_0000000001")
        assert await stays.children("/e") == []
        assert await stays.create_numbered("/e/V_", b"c") == "/e/V_0000000002"


async def test_a_numbered_node_vanishes_with_its_session(open_session: OpenSession) -> None:
    async with open_session() as watching, aclosing(watching.watch_children("/e")) as names:
        assert await anext(names) == []
        async with open_session() as other:
            await other.create_numbered("/e/V_", b"a")
            with trio.fail_after(5):
                assert await anext(names) == ["V_0000000000"]
            with pytest.raises(InvalidArgument, match="ephemeral"):
                await other.create_numbered("/e/V_0000000000/V_", b"b")
        with trio.fail_after(5):
            assert await anext(names) == []


async def test_after_its_session_was_lost_a_store_makes_numbered_nodes_in_the_next_one(
    open_session: OpenSession, end_session: EndSession
) -> None:
    async with open_session() as watching, open_session() as store:
        first = await store.create_numbered("/e/V_", b"a")
        await watching.create("/e/kept", b"")
        async with aclosing(watching.watch(first)) as nodes:
            assert await anext(nodes) is not None
            await end_session(store)
            with trio.fail_after(30):
                assert await anext(nodes) is None
        with trio.fail_after(30):
            second = await insist(store)
        assert second > first
        assert await watching.children("/e") == [second.removeprefix("/e/"), "kept"]
        await store.aclose()
        assert await watching.children("/e") == ["kept"]


async def insist(store: MetadataStore) -> str:
    """Repeats a create until the next session has begun. It is not in doubt here: a session that
    has ended leaves no node."""
    while True:
        try:
            return await store.create_numbered("/e/V_", b"b")
        except MetadataUnavailable:
            continue


async def test_each_of_many_calls_at_once_makes_one_node(open_session: OpenSession) -> None:
    made: list[str] = []
    async with open_session() as one, open_session() as two:

        async def create(number: int) -> None:
            path = await (one, two)[number % 2].create_numbered("/e/V_", b"%d" % number)
            made.append(path)
            assert (await one.get(path)).data == b"%d" % number

        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(create, number)
        assert sorted(made) == [f"/e/{name}" for name in await two.children("/e")]
        assert len(set(made)) == 40


async def test_a_node_that_has_the_next_number_by_name_is_kept(open_session: OpenSession) -> None:
    async with open_session() as store:
        await store.create("/e/V_0000000001", b"mine")  # counted by ZooKeeper, not by the others
        made = []
        try:
            for _ in range(2):
                made.append(await store.create_numbered("/e/V_", b"x"))
        except NodeExists as error:
            made.append(str(error))
        assert "/e/V_" in made[-1]
        assert "exists" in made[-1]
        assert (await store.get("/e/V_0000000001")).data == b"mine"


async def test_wrong_prefixes_and_too_much_data_are_refused(open_session: OpenSession) -> None:
    async with open_session() as store:
        for prefix in ("", "V_", "//V_", "/a//V_", "/../V_", "/a\0"):
            with pytest.raises(InvalidArgument):
                await store.create_numbered(prefix, b"")
        with pytest.raises(InvalidArgument, match=str(NODE_BYTES_MAX + 1)):
            await store.create_numbered("/e/V_", bytes(NODE_BYTES_MAX + 1))
        assert await store.children("/") == []
        assert await store.create_numbered("/e/", b"only digits") == "/e/0000000000"


async def test_nothing_is_made_where_the_cluster_is_gone(open_session: OpenSession) -> None:
    async with open_session() as store, open_session() as operator:
        store.bind("/cluster/ID", b"one")
        with pytest.raises(MetadataUnavailable, match="is gone"):
            await store.create_numbered("/e/V_", b"a")
        with pytest.raises(NoSuchNode):
            await operator.get("/e")
        await operator.create("/cluster/ID", b"one")
        assert (await store.create_numbered("/e/V_", b"a")).startswith("/e/V_")


async def test_a_closed_store_makes_no_numbered_node(open_session: OpenSession) -> None:
    async with open_session() as store, open_session() as other:
        await store.aclose()
        with pytest.raises(MetadataUnavailable):
            await store.create_numbered("/e/V_", b"a")
        assert await other.children("/") == []
