"""Cursors on a simulated cluster: commits and their cost, ownership, and lag."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio

from bookie.testing import SimCluster, simulate
from ledger.errors import InvalidArgument, LedgerClosed, MetadataUnavailable
from stream import LATEST, Namespace, Position
from stream.core.metadata.cursors import CursorMoved
from stream.core.position import BEGINNING
from stream.errors import NoSuchCursor, NoSuchStream
from stream.store.cursors import CursorStore, cursor_path
from tests.effort import scaled
from tests.stream.sim_namespace import sim_namespace


@asynccontextmanager
async def a_stream(cluster: SimCluster, records: int = 0) -> AsyncIterator[Namespace]:
    """Yields a namespace with the stream "s" of `records` records, one per entry."""
    async with sim_namespace(cluster, batch_bytes=1) as namespace:
        await namespace.ensure_stream("s")
        if records:
            async with namespace.writer("s") as writer:
                await writer.append_many([b"%d" % number for number in range(records)])
        yield namespace


async def stored(namespace: Namespace, name: str = "c") -> Position:
    metadata = await namespace.stream_metadata("s")
    cursor, _ = await CursorStore(namespace.client.store).read("n", metadata, name)
    return cursor.position


async def version(namespace: Namespace, name: str = "c") -> int:
    return (await namespace.client.store.get(cursor_path("n", "s", name))).version


def test_a_cursor_is_where_it_was_left() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_stream(cluster, 10) as namespace:
            async with namespace.cursor("s", "c") as cursor:
                assert cursor.position == (await namespace.info("s")).first_position
                async with namespace.reader("s", start=cursor.position) as reader:
                    for _ in range(4):
                        cursor.advance(await reader.__anext__())
            async with namespace.cursor("s", "c", start=LATEST) as cursor:
                async with namespace.reader("s", start=cursor.position) as reader:
                    assert (await reader.__anext__()).value == b"4"
                    cursor.advance(await reader.next_batch())
                assert await cursor.commit() == cursor.position == await stored(namespace)
            with pytest.raises(LedgerClosed):
                cursor.advance(Position(9, 0, 0))

    simulate(scenario)


def test_commits_happen_at_most_once_per_interval_and_not_when_idle() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with (
            a_stream(cluster) as namespace,
            namespace.cursor("s", "c", commit_interval_ms=1000) as cursor,
        ):
            for entry in range(500):
                cursor.advance(Position(1, entry, 0))
                await trio.sleep(0.01)
            assert 5 <= await version(namespace) <= 6
            await trio.sleep(2)
            assert await stored(namespace) == cursor.position == Position(1, 499, 0)
            before = await version(namespace)
            await trio.sleep(100)
            assert await cursor.commit() == cursor.position
            assert await version(namespace) == before
            cursor.advance(Position(1, 3, 0))
            assert cursor.position == Position(1, 499, 0), "the cursor must not move back"
            # An explicit commit does not stop the commits in the background.
            cursor.advance(Position(1, 500, 0))
            await cursor.commit()
            cursor.advance(Position(1, 501, 0))
            await trio.sleep(2.5)
            assert await stored(namespace) == Position(1, 501, 0)

    simulate(scenario)


def test_the_slower_of_two_users_is_notified() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_stream(cluster) as namespace:

            async def be_slower() -> None:
                async with namespace.cursor("s", "c") as ours:
                    async with namespace.cursor("s", "c") as theirs:
                        theirs.advance(Position(1, 5, 0))
                    ours.advance(Position(1, 9, 0))
                    with pytest.raises(CursorMoved):
                        await ours.commit()
                    with pytest.raises(CursorMoved):
                        ours.advance(Position(2, 0, 0))

            with pytest.raises(CursorMoved, match="is at 1:5:0 now") as caught:
                await be_slower()
            assert caught.value.theirs == Position(1, 5, 0)
            assert await stored(namespace) == Position(1, 5, 0)

    simulate(scenario)


def test_a_block_that_fails_or_is_cancelled_still_commits_what_was_handled() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_stream(cluster) as namespace:

            async def fail() -> None:
                async with namespace.cursor("s", "c", commit_interval_ms=60_000) as cursor:
                    cursor.advance(Position(1, 1, 0))
                    await trio.sleep(1)
                    cursor.advance(Position(1, 2, 0))
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await fail()
            assert await stored(namespace) == Position(1, 2, 0)
            with trio.move_on_after(1):
                async with namespace.cursor("s", "c") as cursor:
                    cursor.advance(Position(1, 3, 0))
                    await trio.sleep(0.5)
                    cursor.advance(Position(1, 4, 0))
                    await trio.sleep_forever()
            assert await stored(namespace) == Position(1, 4, 0)

    simulate(scenario)


def test_a_cursor_continues_from_unknown_outcomes_and_late_commits() -> None:
    """Most responses get lost and some commits are applied seconds later.

    The cursor neither raises CursorMoved nor moves back.
    """

    async def scenario(cluster: SimCluster) -> None:
        async with (
            a_stream(cluster) as namespace,
            namespace.cursor("s", "c", commit_interval_ms=50) as cursor,
        ):
            cluster.metadata.options = replace(
                cluster.metadata.options,
                timeout_s=0.2,
                late_max_s=0.3,
                error_after_probability=0.3,
                error_before_probability=0.1,
                error_late_probability=0.3,
            )
            last, failures = BEGINNING, 0
            for entry in range(100):
                cursor.advance(Position(1, entry, 0))
                with trio.move_on_after(0.1 * (entry % 3)):
                    try:
                        await cursor.commit()
                    except MetadataUnavailable:
                        failures += 1
                node = cluster.metadata.tree.get(cursor_path("n", "s", "c"))
                assert node is not None
                assert cursor.committed >= last
                last = cursor.committed
                await trio.sleep(0.02)
            assert failures > 5
            cluster.metadata.options = replace(
                cluster.metadata.options,
                error_after_probability=0,
                error_before_probability=0,
                error_late_probability=0,
            )
            await trio.sleep(5)
            assert await stored(namespace) == Position(1, 99, 0)

    for seed in range(scaled(ci=1, night=40)):
        simulate(scenario, seed)


def test_cancelled_at_any_moment_a_commit_leaves_the_cursor_usable() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with (
            a_stream(cluster) as namespace,
            namespace.cursor("s", "c", commit_interval_ms=10_000) as cursor,
        ):
            for step in range(60):
                cursor.advance(Position(1, step, 0))
                with trio.move_on_after(step * 0.0003):
                    await cursor.commit()
            assert await cursor.commit() == Position(1, 59, 0)
            assert await stored(namespace) == Position(1, 59, 0)

    simulate(scenario)


def test_a_deleted_cursor_matches_no_late_commit() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_stream(cluster) as namespace:

            async def use_while_deleted() -> None:
                async with namespace.cursor("s", "c") as cursor:
                    await namespace.delete_cursor("s", "c")
                    assert await namespace.cursors("s") == []
                    with pytest.raises(NoSuchCursor):
                        await namespace.delete_cursor("s", "c")
                    with pytest.raises(NoSuchCursor):
                        await namespace.cursor_lag("s", "c")
                    cursor.advance(Position(1, 9, 0))

            with pytest.raises(CursorMoved, match="was deleted"):
                await use_while_deleted()
            async with namespace.cursor("s", "c") as cursor:
                assert cursor.position < Position(1, 9, 0)
            assert await version(namespace) == 2, "versions must not begin again"
            metadata = await namespace.stream_metadata("s")
            cursors = CursorStore(namespace.client.store)
            assert await cursors.forget_deleted("n", metadata, namespace.client.now_ms() + 1) == 0
            await namespace.delete_cursor("s", "c")
            assert await cursors.forget_deleted("n", metadata, namespace.client.now_ms() + 1) == 1
            assert (
                await namespace.client.store.children("/ledgerstream/namespaces/n/cursors/s") == []
            )

    simulate(scenario)


def test_a_stream_created_again_has_no_cursors() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_stream(cluster, 3) as namespace:
            await namespace.set_cursor("s", "c", LATEST)
            async with namespace.cursor("s", "old") as old:
                await namespace.delete_stream("s")
                await trio.sleep(1)
                await namespace.create_stream("s")
                assert await namespace.cursors("s") == []
                async with namespace.cursor("s", "c") as cursor:
                    assert cursor.position == Position(2, 0, 0)  # behind all the old one had
                with pytest.raises(NoSuchStream):
                    await old.lag()
            with pytest.raises(NoSuchStream):
                async with namespace.cursor("nowhere", "c"):
                    pass

    simulate(scenario)


def test_lag_counts_records_bytes_and_age() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_stream(cluster) as namespace, namespace.cursor("s", "c") as cursor:
            lag = await cursor.lag()
            assert (lag.records, lag.bytes, lag.seconds) == (0, 0, 0.0)
            positions = []
            for part in range(3):
                async with namespace.writer("s") as writer:
                    for number in range(5):
                        positions.append(await writer.append(b"%d/%d" % (part, number)))
            async with namespace.writer("s") as writer:
                positions += [await writer.append(b"x") for _ in range(5)]
                await trio.sleep(10)
                whole = await cursor.lag()
                assert whole.records == 20
                assert 10 <= whole.seconds < 11
                last = whole
                for handled, position in enumerate(positions, 1):
                    cursor.advance(position.after)
                    lag = await cursor.lag()
                    assert lag.records == 20 - handled
                    assert lag.bytes < last.bytes
                    last = lag
                assert (lag.bytes, lag.seconds) == (0, 0.0)
                sealed = sum(s.nbytes for s in (await namespace.stream_metadata("s")).segments)
                assert whole.bytes > sealed > 0
                # A partly handled entry counts as a whole; a truncated one does not count.
                await namespace.truncate("s", positions[12])
                await namespace.set_cursor("s", "early", positions[12])
                lag = await namespace.cursor_lag("s", "early")
                assert lag.records == 8

    simulate(scenario)


def test_invalid_positions_are_refused() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_stream(cluster) as namespace:
            with pytest.raises(InvalidArgument, match="commit_interval_ms is -1"):
                async with namespace.cursor("s", "c", commit_interval_ms=-1):
                    pass
            with pytest.raises(InvalidArgument, match="use letters"):
                async with namespace.cursor("s", "a/b"):
                    pass
            async with namespace.cursor("s", "c") as cursor:
                with pytest.raises(InvalidArgument, match="not int"):
                    cursor.advance(7)  # type: ignore[arg-type]

    simulate(scenario)
