"""A session that is bound to a cluster; each test runs against all drivers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import pytest
import trio

from ledger.errors import MetadataUnavailable, NoSuchNode
from ledger.metastore.base import Check, Create, Delete, MetadataStore

from .conftest import OpenSession
from .test_conformance import next_of


async def test_absence_counts_only_while_the_cluster_is_there(open_session: OpenSession) -> None:
    async with open_session() as store, open_session() as operator:
        await operator.create("/cluster/ID", b"one")
        store.bind("/cluster/ID", b"one")
        await absent_everywhere(store)
        await operator.delete("/cluster/ID")
        await operator.delete("/cluster")
        await unknown_everywhere(store, "node /cluster/ID .* is gone")
        assert await operator.children("/") == []  # nothing was created, not even a parent
        await operator.create("/cluster/ID", b"two")
        await unknown_everywhere(store, "node /cluster/ID .* another cluster")
        await operator.put("/cluster/ID", b"one")
        await absent_everywhere(store)
        await store.create("/a/b", b"")


async def absent_everywhere(store: MetadataStore) -> None:
    with pytest.raises(NoSuchNode):
        await store.get("/a/b")
    assert await store.children("/a") == []
    with pytest.raises(NoSuchNode):
        await store.put("/a/b", b"")
    with pytest.raises(NoSuchNode):
        await store.delete("/a/b")
    with pytest.raises(NoSuchNode):
        await store.transaction([Check("/a/b", 0)])
    async with aclosing(store.watch("/a/b")) as nodes:
        assert await next_of(nodes) is None


async def unknown_everywhere(store: MetadataStore, message: str) -> None:
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: store.get("/a/b"),
        lambda: store.children("/a"),
        lambda: store.put("/a/b", b""),
        lambda: store.delete("/a/b"),
        lambda: store.create("/a/b", b""),
        lambda: store.create("/a/b", b"", is_ephemeral=True),
        lambda: store.transaction([Create("/a/b", b"")]),
        lambda: store.transaction([Check("/a/b", 0)]),
        lambda: store.next_id("/ids/ID-"),
        lambda: store.create_numbered("/a/V_", b""),
    ]
    for call in calls:
        with pytest.raises(MetadataUnavailable, match=message):
            await call()
    async with aclosing(store.watch("/a/b")) as nodes:
        with pytest.raises(MetadataUnavailable, match=message):
            await next_of(nodes)
    async with aclosing(store.watch_children("/a")) as names:
        with pytest.raises(MetadataUnavailable, match=message):
            await next_of(names)


async def test_a_watch_waits_while_the_cluster_is_gone(open_session: OpenSession) -> None:
    async with open_session() as store, open_session() as operator:
        await operator.create("/cluster/ID", b"one")
        await operator.create("/a/b", b"x")
        store.bind("/cluster/ID", b"one")
        async with (
            aclosing(store.watch("/a/b")) as nodes,
            aclosing(store.watch_children("/a")) as names,
        ):
            assert (await next_of(nodes)) is not None
            assert await next_of(names) == ["b"]
            # All at once, as in a tree that was replaced.
            await operator.transaction([Delete("/a/b"), Delete("/a"), Delete("/cluster/ID")])
            seen: list[object] = []
            both = trio.Event()

            async def follow(values: AsyncGenerator[object, None]) -> None:
                seen.append(await anext(values))
                if len(seen) == 2:
                    both.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(follow, nodes)
                nursery.start_soon(follow, names)
                # Another watch shows that the change has arrived.
                async with aclosing(store.watch_children("/cluster")) as others:
                    with pytest.raises(MetadataUnavailable):
                        await next_of(others)
                await trio.sleep(0.2)  # in which a wrong value would arrive
                assert seen == []
                await operator.create("/cluster/ID", b"one")
                with trio.fail_after(5):
                    await both.wait()
            assert {str(value) for value in seen} == {"None", "[]"}
