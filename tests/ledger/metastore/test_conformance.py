"""The promises of every metadata driver; each test runs against all drivers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

import pytest
import trio

from ledger.errors import (
    InvalidArgument,
    MetadataConflict,
    MetadataUnavailable,
    NodeExists,
    NoSuchNode,
)
from ledger.metastore.base import Change, Check, Create, Delete, Put
from ledger.metastore.paths import NODE_BYTES_MAX, TRANSACTION_CHANGES_MAX

from .conftest import OpenSession

T = TypeVar("T")


async def next_of(values: AsyncGenerator[T, None]) -> T:
    with trio.fail_after(5):
        return await anext(values)


async def wait_for(values: AsyncGenerator[T, None], wanted: T) -> list[T]:
    """Returns all values up to `wanted`, and fails if it never arrives."""
    seen: list[T] = []
    with trio.fail_after(5):
        async for value in values:
            seen.append(value)
            if value == wanted:
                return seen
    raise AssertionError(f"expected {wanted}, received only {seen}")


async def test_a_created_node_has_version_zero_and_each_put_adds_one(
    open_session: OpenSession,
) -> None:
    async with open_session() as store:
        await store.create("/a", b"one")
        first = await store.get("/a")
        assert (first.data, first.version) == (b"one", 0)
        assert await store.put("/a", b"two", 0) == 1
        assert await store.put("/a", b"three") == 2
        last = await store.get("/a")
        assert (last.data, last.version, last.created_ms) == (b"three", 2, first.created_ms)


async def test_creation_time_is_wall_clock(open_session: OpenSession) -> None:
    async with open_session() as store:
        await store.create("/a", b"")
        assert (await store.get("/a")).created_ms > 1_600_000_000_000


async def test_missing_nodes_are_reported_by_every_call(open_session: OpenSession) -> None:
    async with open_session() as store:
        with pytest.raises(NoSuchNode, match="/a"):
            await store.get("/a")
        with pytest.raises(NoSuchNode, match="/a"):
            await store.put("/a", b"")
        with pytest.raises(NoSuchNode, match="/a"):
            await store.delete("/a")
        assert await store.children("/a") == []


async def test_create_refuses_what_exists(open_session: OpenSession) -> None:
    async with open_session() as store:
        await store.create("/a", b"one")
        with pytest.raises(NodeExists, match="/a"):
            await store.create("/a", b"two")
        assert (await store.get("/a")).data == b"one"


async def test_a_stale_version_changes_nothing(open_session: OpenSession) -> None:
    async with open_session() as store:
        await store.create("/a", b"one")
        await store.put("/a", b"two")
        with pytest.raises(MetadataConflict, match=r"version 1, expected 0"):
            await store.put("/a", b"three", 0)
        with pytest.raises(MetadataConflict):
            await store.delete("/a", 0)
        assert (await store.get("/a")).data == b"two"
        await store.delete("/a", 1)
        with pytest.raises(NoSuchNode):
            await store.get("/a")


async def test_missing_parents_are_created_and_children_are_sorted(
    open_session: OpenSession,
) -> None:
    async with open_session() as store:
        for name in ("b", "a", "B", "10", "9"):
            await store.create(f"/top/mid/{name}", b"")
        assert await store.children("/top/mid") == ["10", "9", "B", "a", "b"]
        assert await store.children("/top") == ["mid"]
        assert await store.children("/") == ["top"]
        parent = await store.get("/top/mid")
        assert (parent.data, parent.version) == (b"", 0)


async def test_children_are_only_those_of_the_node_itself(open_session: OpenSession) -> None:
    async with open_session() as store:
        await store.create("/a/b", b"")
        await store.create("/a/b/c", b"")
        await store.create("/ab", b"")
        await store.create("/a%/x", b"")
        assert await store.children("/a") == ["b"]
        assert await store.children("/a%") == ["x"]


async def test_a_node_with_children_is_not_deleted(open_session: OpenSession) -> None:
    async with open_session() as store:
        await store.create("/a/b", b"")
        with pytest.raises(InvalidArgument, match="1 child"):
            await store.delete("/a")
        await store.delete("/a/b")
        await store.delete("/a")
        assert await store.children("/") == []


async def test_the_root_exists_and_stays(open_session: OpenSession) -> None:
    async with open_session() as store:
        assert (await store.get("/")).data == b""
        with pytest.raises(InvalidArgument):
            await store.create("/", b"")
        with pytest.raises(InvalidArgument):
            await store.put("/", b"x")
        with pytest.raises(InvalidArgument):
            await store.delete("/")


@pytest.mark.parametrize("path", ["", "a", "/a/", "//a", "/a//b", "/a\0", "/.", "/a/..", "/" * 3])
async def test_malformed_paths_are_refused(open_session: OpenSession, path: str) -> None:
    async with open_session() as store:
        with pytest.raises(InvalidArgument):
            await store.create(path, b"")
        with pytest.raises(InvalidArgument):
            await store.get(path)
        with pytest.raises(InvalidArgument):
            await store.children(path)
        with pytest.raises(InvalidArgument):
            await store.next_id(path)
        assert await store.children("/") == []


async def test_data_is_bounded(open_session: OpenSession) -> None:
    async with open_session() as store:
        await store.create("/a", bytes(NODE_BYTES_MAX))
        with pytest.raises(InvalidArgument, match=str(NODE_BYTES_MAX + 1)):
            await store.create("/b", bytes(NODE_BYTES_MAX + 1))
        with pytest.raises(InvalidArgument):
            await store.put("/a", bytes(NODE_BYTES_MAX + 1))
        too_many: list[Change] = [Check("/a", 0)] * (TRANSACTION_CHANGES_MAX + 1)
        with pytest.raises(InvalidArgument):
            await store.transaction(too_many)


async def test_any_bytes_are_read_back(open_session: OpenSession) -> None:
    async with open_session() as store:
        every = bytes(range(256))
        await store.create("/ü/名", every)
        assert (await store.get("/ü/名")).data == every
        assert await store.children("/ü") == ["名"]


async def test_a_transaction_sees_its_own_changes(open_session: OpenSession) -> None:
    async with open_session() as store:
        await store.create("/old", b"")
        await store.transaction(
            [
                Create("/a", b"1"),
                Put("/a", b"2", 0),
                Check("/a", 1),
                Delete("/old", 0),
                Create("/old", b"new"),
            ]
        )
        assert (await store.get("/a")).data == b"2"
        renewed = await store.get("/old")
        assert (renewed.data, renewed.version) == (b"new", 0)


@pytest.mark.parametrize(
    ("failing", "error"),
    [
        (Check("/there", 7), MetadataConflict),
        (Check("/missing", -1), NoSuchNode),
        (Create("/there", b""), NodeExists),
        (Put("/missing", b""), NoSuchNode),
        (Put("/there", b"", 9), MetadataConflict),
        (Delete("/full"), InvalidArgument),
        (Delete("/made/by/me", 3), MetadataConflict),
        (Create("bad", b""), InvalidArgument),
    ],
)
async def test_a_failing_transaction_leaves_no_trace(
    open_session: OpenSession, failing: Change, error: type[Exception]
) -> None:
    async with open_session() as store:
        await store.create("/there", b"kept")
        await store.create("/gone", b"kept too")
        await store.create("/full/child", b"")
        before = await store.get("/gone")
        with pytest.raises(error):
            await store.transaction(
                [
                    Create("/made/by/me", b""),
                    Put("/there", b"lost"),
                    Delete("/gone"),
                    Create("/mine", b"", is_ephemeral=True),
                    failing,
                    Create("/never", b""),
                ]
            )
        assert await store.children("/") == ["full", "gone", "there"]
        kept = await store.get("/there")
        assert (kept.data, kept.version) == (b"kept", 0)
        assert await store.get("/gone") == before


async def test_ids_count_up_for_each_path_across_sessions(open_session: OpenSession) -> None:
    async with open_session() as one, open_session() as two:
        taken = [await store.next_id("/x/ID-") for store in (one, two, one)]
        assert sorted(set(taken)) == taken
        assert taken[0] == 0
        assert await two.next_id("/y/ID-") == 0


async def test_ephemeral_nodes_vanish_with_their_session(open_session: OpenSession) -> None:
    async with open_session() as stays:
        async with open_session() as leaves:
            await leaves.create("/e/leaves", b"x", is_ephemeral=True)
            await leaves.create("/e/kept", b"")
            await stays.create("/e/stays", b"", is_ephemeral=True)
            assert await stays.children("/e") == ["kept", "leaves", "stays"]
        assert await stays.children("/e") == ["kept", "stays"]


async def test_an_ephemeral_node_can_be_deleted_by_any_session(open_session: OpenSession) -> None:
    async with open_session() as one, open_session() as two:
        await one.create("/e", b"", is_ephemeral=True)
        await two.delete("/e")
        await two.create("/e", b"persistent now")
        await one.aclose()
        assert (await two.get("/e")).data == b"persistent now"


async def test_an_ephemeral_node_has_no_children(open_session: OpenSession) -> None:
    async with open_session() as store:
        await store.create("/e", b"", is_ephemeral=True)
        with pytest.raises(InvalidArgument, match="ephemeral"):
            await store.create("/e/child", b"")


async def test_a_closed_store_refuses_every_call(open_session: OpenSession) -> None:
    async with open_session() as store:
        await store.aclose()
        await store.aclose()
        with pytest.raises(MetadataUnavailable):
            await store.get("/a")
        with pytest.raises(MetadataUnavailable):
            await store.create("/a", b"")
        with pytest.raises(MetadataUnavailable):
            async with aclosing(store.watch("/a")) as nodes:
                await anext(nodes)


async def test_closing_ends_a_waiting_watch(open_session: OpenSession) -> None:
    async with open_session() as store, aclosing(store.watch("/a")) as nodes:
        assert await next_of(nodes) is None
        await store.aclose()
        with pytest.raises(MetadataUnavailable):
            await next_of(nodes)


async def test_a_watch_yields_the_present_value_and_then_the_latest_change(
    open_session: OpenSession,
) -> None:
    async with open_session() as one, open_session() as two, aclosing(two.watch("/a")) as nodes:
        assert await next_of(nodes) is None
        await one.create("/a", b"0")
        created = await next_of(nodes)
        assert created is not None
        assert created.data == b"0"
        for number in range(1, 6):
            await one.put("/a", b"%d" % number)
        last = await one.get("/a")
        seen = await wait_for(nodes, last)
        assert [node.version for node in seen if node] == sorted(
            node.version for node in seen if node
        )
        await one.delete("/a")
        assert await next_of(nodes) is None


async def test_a_watch_misses_nothing_between_its_first_value_and_the_wait(
    open_session: OpenSession,
) -> None:
    async with open_session() as store:
        await store.create("/a", b"0")
        async with aclosing(store.watch("/a")) as nodes:
            await next_of(nodes)
            await store.put("/a", b"1")  # no task waits in the iterator at this moment
            changed = await next_of(nodes)
            assert changed is not None
            assert changed.data == b"1"


async def test_a_watch_is_quiet_about_other_nodes(open_session: OpenSession) -> None:
    async with open_session() as store, aclosing(store.watch("/a")) as nodes:
        await next_of(nodes)
        await store.create("/b", b"")
        await store.create("/a/b", b"")  # creates /a as a parent, which is a change
        made = await next_of(nodes)
        assert made is not None
        await store.put("/a/b", b"x")
        await store.put("/b", b"x")
        await store.put("/a", b"mine")
        changed = await next_of(nodes)
        assert changed is not None
        assert changed.data == b"mine"


async def test_watching_children_shows_sessions_that_begin_and_end(
    open_session: OpenSession,
) -> None:
    async with open_session() as watching, aclosing(watching.watch_children("/e")) as names:
        assert await next_of(names) == []
        async with open_session() as other:
            await other.create("/e/x", b"", is_ephemeral=True)
            assert await next_of(names) == ["x"]
            await other.create("/e/w", b"", is_ephemeral=True)
            assert await next_of(names) == ["w", "x"]
            await other.put("/e/w", b"data is not a child")
        assert (await wait_for(names, []))[-1] == []


async def test_a_failed_transaction_yields_no_value_to_watches(open_session: OpenSession) -> None:
    async with open_session() as store:
        await store.create("/a", b"0")
        async with aclosing(store.watch("/a")) as nodes:
            await next_of(nodes)
            with pytest.raises(NoSuchNode):
                await store.transaction([Put("/a", b"never"), Check("/missing", 0)])
            await store.put("/a", b"real")
            changed = await next_of(nodes)
            assert changed is not None
            assert changed.data == b"real"


async def test_many_watches_end_when_their_iterators_are_closed(open_session: OpenSession) -> None:
    async with open_session() as store:
        for _ in range(50):
            async with aclosing(store.watch("/a")) as nodes:
                await next_of(nodes)
        await store.create("/a", b"")
        assert (await store.get("/a")).version == 0


async def test_concurrent_counters_lose_no_update(open_session: OpenSession) -> None:
    async with open_session() as one, open_session() as two:
        await one.create("/n", b"0")

        async def add(count: int, which: int) -> None:
            store = (one, two)[which]
            while count:
                node = await store.get("/n")
                try:
                    await store.put("/n", b"%d" % (int(node.data) + 1), node.version)
                except MetadataConflict:
                    continue
                count -= 1

        async with trio.open_nursery() as nursery:
            for task in range(4):
                nursery.start_soon(add, 10, task % 2)
        assert (await one.get("/n")).data == b"40"


async def test_a_node_created_again_is_a_change_even_if_it_looks_the_same(
    open_session: OpenSession,
) -> None:
    async with open_session() as store, aclosing(store.watch_children("/e")) as names:
        await store.create("/e/x", b"")
        await wait_for(names, ["x"])
        await store.delete("/e/x")
        await store.create("/e/x", b"")
        assert await wait_for(names, ["x"])
