"""Numbered nodes of the ZooKeeper driver whose response is lost, or which nobody waits for."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from ledger.errors import MetadataUnavailable
from ledger.metastore import open_store
from ledger.metastore.zookeeper.store import open_zookeeper
from tests.zookeeper import RunningZooKeeper

from .steps import LONG_MS, wait_children
from .test_lost_replies import lose_answer, proxied

pytestmark = pytest.mark.zookeeper


async def test_a_numbered_node_whose_response_was_lost_is_found_by_its_data(
    shared_zookeeper: RunningZooKeeper, zookeeper_uri: str
) -> None:
    async with (
        proxied(shared_zookeeper, zookeeper_uri) as (proxy, uri),
        open_zookeeper(uri, session_timeout_ms=LONG_MS) as store,
        open_store(zookeeper_uri, session_timeout_ms=LONG_MS, may_create=True) as other,
    ):
        await other.create_numbered("/e/V_", b"mine")  # the data is ours, the session is not
        made: list[str] = []

        async def create() -> None:
            made.append(await store.create_numbered("/e/V_", b"mine"))

        await lose_answer(proxy, create)
        assert made == ["/e/V_0000000001"]
        await other.create_numbered("/e/V_", b"theirs")
        assert await store.create_numbered("/e/V_", b"more") == "/e/V_0000000003"
        assert len(await store.children("/e")) == 4


async def test_a_numbered_node_that_is_not_found_is_not_made_a_second_time(
    shared_zookeeper: RunningZooKeeper, zookeeper_uri: str
) -> None:
    """The lost request may be carried out later."""
    async with (
        proxied(shared_zookeeper, zookeeper_uri) as (proxy, uri),
        open_zookeeper(uri, session_timeout_ms=LONG_MS) as store,
        open_store(zookeeper_uri, session_timeout_ms=LONG_MS, may_create=True) as other,
    ):
        await store.create("/e/persistent", b"")

        async def create() -> None:
            with pytest.raises(MetadataUnavailable, match=r"create .*V_ may have happened or not"):
                await store.create_numbered("/e/V_", b"mine")

        proxy.hold_answers()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(create)
            await proxy.answers_held.wait()
            await other.delete("/e/V_0000000001")  # as if the request had not arrived
            await proxy.break_all()
        assert await other.children("/e") == ["persistent"]


async def test_a_cancelled_numbered_node_is_not_left_behind(
    shared_zookeeper: RunningZooKeeper, zookeeper_uri: str
) -> None:
    async with (
        open_zookeeper(zookeeper_uri, session_timeout_ms=LONG_MS) as store,
        open_store(zookeeper_uri, session_timeout_ms=LONG_MS, may_create=True) as other,
    ):
        assert await store.create_numbered("/e/V_", b"0") == "/e/V_0000000000"
        cancelled = 0
        kept = ["V_0000000000"]

        async def create() -> None:
            kept.append((await store.create_numbered("/e/V_", b"1")).removeprefix("/e/"))

        for _ in range(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(create)
                await trio.testing.wait_all_tasks_blocked()
                cancelled += len(nursery.child_tasks)
                nursery.cancel_scope.cancel()
        assert cancelled > 0, "a fast server answered all of them"
        last = await store.create_numbered("/e/V_", b"2")
        assert int(last[-10:]) >= cancelled, "the cancelled ones were not sent"
        await wait_children(other, "/e", sorted([*kept, last.removeprefix("/e/")]))
