"""Micro-batches of streams that are appended, rolled, taken over, truncated and deleted."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
import trio

from bookie.testing import SimCluster
from connectors.spark.core.admission import Limits
from connectors.spark.monitoring.lag import lag_of
from ledger.metastore.base import Node
from stream.core.position import Position
from tests.connectors.spark.source.sample_namespaces import (
    all_of,
    append,
    run_scenario,
    sample_namespace,
)
from tests.connectors.spark.source.simulated_query import Query, ReadRecord, by_stream
from tests.stream.whole_streams import read_all

# Limits


@pytest.mark.parametrize(
    "limits",
    [
        Limits(records_max=7),
        Limits(bytes_max=400),
        Limits(bytes_max=1),
        Limits(records_max=11, bytes_max=350),
    ],
)
def test_micro_batches_keep_their_limits_and_lose_nothing(limits: Limits) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a", "b", "c") as namespace:
            await append(namespace, "a", 90)
            await append(namespace, "b", 20)
            await append(namespace, "b", 15)
            query = Query(namespace.client, [], streams="n/a,n/b,n/c")
            async with query.running():
                while rows := await query.step(limits):
                    if limits.records_max is not None:
                        assert len(rows) <= limits.records_max
                    if limits.bytes_max is not None and len(rows) > 1:
                        assert await bytes_of(query) <= limits.bytes_max
            assert by_stream(query.seen) == await all_of(namespace, "a", "b", "c")

    run_scenario(scenario)


async def bytes_of(query: Query) -> int:
    """Returns the stored bytes of the last micro-batch."""
    ranges = await query.batches.ranges(await query.start_of_last(), query.position)
    return sum(each.nbytes for each in ranges)


def test_streams_share_a_limit_fairly() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a", "b", "c") as namespace:
            for stream, count in (("a", 200), ("b", 200), ("c", 3)):
                await append(namespace, stream, count)
            query = Query(namespace.client, [], streamPattern="n/*")
            async with query.running():
                rows = await query.step(Limits(records_max=43))
            assert rows is not None
            counts = [sum(row.stream == name for row in rows) for name in ("n/a", "n/b", "n/c")]
            assert counts == [20, 20, 3]

    run_scenario(scenario)


def test_a_micro_batch_waits_for_records_but_not_longer_than_it_may() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace:
            await append(namespace, "a", 5)
            limits = Limits(records_min=10, delay_ms_max=1000)
            query = Query(namespace.client, [], stream="n/a")
            async with query.running():
                assert await query.step(limits, 999) is None
                assert len(await query.step(limits, 1000) or ()) == 5
                await append(namespace, "a", 10)
                await trio.sleep(1)
                assert len(await query.step(limits, 0) or ()) == 10

    run_scenario(scenario)


# Confirmed and unconfirmed records


def test_an_open_segment_is_read_up_to_what_is_confirmed_as_it_grows() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace, namespace.writer("a") as writer:
            query = Query(namespace.client, [], stream="n/a")
            async with query.running():
                assert await query.step() is None
                for round_ in range(5):
                    await writer.append_many([b"%d-%d" % (round_, n) for n in range(40)])
                    await trio.sleep(1)
                    rows = await query.step()
                    assert rows is not None
                    assert len(rows) == 40
                    assert await query.step() is None
            assert by_stream(query.seen) == await all_of(namespace, "a")

    run_scenario(scenario)


def test_an_idle_query_sends_no_requests() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with (
            sample_namespace(cluster, "a", "b") as namespace,
            namespace.writer("a") as writer,
        ):
            await writer.append(b"x")
            await trio.sleep(1)
            query = Query(namespace.client, [], streamPattern="n/*")
            async with query.running():
                await query.drain()
                await trio.sleep(5)
                version = query.batches.tracker.version
                await trio.sleep(60)
                assert query.batches.tracker.version == version
                await writer.append(b"y")
                await trio.sleep(1)
                assert query.batches.tracker.version > version
                assert await query.step() is not None

    run_scenario(scenario)


def test_a_query_that_is_behind_does_not_poll_for_every_entry() -> None:
    """The work grows with the queries: no polls follow a notification that is not consumed."""

    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace, namespace.writer("a") as writer:
            query = Query(namespace.client, [], stream="n/a")
            async with query.running():
                version = query.batches.tracker.version
                for number in range(200):
                    await writer.append(b"%d" % number)
                assert query.batches.tracker.version - version <= 2
                rows = await query.step()
                assert rows is not None
                assert len(rows) >= 199

    run_scenario(scenario)


def test_streams_that_are_not_followed_are_polled_in_turn() -> None:
    async def scenario(cluster: SimCluster) -> None:
        names = [f"s{number}" for number in range(7)]
        async with sample_namespace(cluster, *names) as namespace:
            query = Query(namespace.client, [], streamPattern="n/s*", followed_max=2)
            async with query.running():
                for round_ in range(3):
                    for name in names:
                        await append(namespace, name, 3, f"{round_}")
                    await trio.sleep(6)
                    rows = await query.step()
                    assert rows is not None
                    assert len(rows) == 21
            assert by_stream(query.seen) == await all_of(namespace, *names)

    run_scenario(scenario)


# AvailableNow


def test_available_now_ends_at_the_record_that_was_last_when_it_began() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a", "b") as namespace:
            await append(namespace, "a", 25)
            async with namespace.writer("b") as writer:
                await writer.append_many([b"b-%d" % n for n in range(33)])
                await trio.sleep(1)
                query = Query(namespace.client, [], streamPattern="n/*")
                async with query.running():
                    await query.batches.settle_end()
                    await writer.append_many([b"late"] * 50)
                    await append(namespace, "a", 10, "late")
                    await namespace.create_stream("c")
                    await append(namespace, "c", 5, "late")
                    await trio.sleep(2)
                    # Fewer records than the minimum do not delay it.
                    await query.drain(Limits(records_max=10, records_min=8, delay_ms_max=10**9))
            counts = {stream: len(rows) for (stream, _), rows in by_stream(query.seen).items()}
            assert counts == {"n/a": 25, "n/b": 33}
            assert b"late" not in [value for batch in query.seen for value in map(_value, batch)]
            # The next run reads the rest, and the new stream.
            rest = Query(namespace.client, query.log, streamPattern="n/*")
            async with rest.running():
                await rest.batches.settle_end()
                await rest.drain(Limits(records_max=10))
            assert by_stream(query.seen + rest.seen) == await all_of(namespace, "a", "b", "c")

    run_scenario(scenario)


def _value(row: ReadRecord) -> bytes:
    return row.value


# Streams that are created and deleted


def test_new_streams_and_new_partitions_begin_at_their_first_record() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace:
            await append(namespace, "a", 5, "before")
            await namespace.create_stream("p", partitions=1)
            log: list[str] = []
            query = Query(namespace.client, log, streamPattern="n/*", startingPosition="latest")
            async with query.running():
                assert await query.step() is None
                await namespace.create_stream("b")
                await append(namespace, "b", 4)
                await namespace.grow_stream("p", partitions=2)
                await append(namespace, "p#1", 3)
                await trio.sleep(2)
                await query.drain(Limits(records_max=2))
            assert by_stream(query.seen) == await all_of(namespace, "b", "p#1")
            # This holds while no query runs, too.
            await namespace.create_stream("c")
            await append(namespace, "c", 6)
            again = Query(namespace.client, log, streamPattern="n/*", startingPosition="latest")
            async with again.running():
                await again.drain()
            assert by_stream(again.seen) == await all_of(namespace, "c")

    run_scenario(scenario)


def test_the_lag_of_an_unread_stream_is_all_its_records() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a", "b") as namespace:
            await append(namespace, "a", 5)
            query = Query(namespace.client, [], streamPattern="n/*")
            async with query.running():
                await query.drain()
                position = query.position
                await append(namespace, "a", 2)
                await namespace.create_stream("new")
                await append(namespace, "new", 30)
                await append(namespace, "new", 7)
                await namespace.truncate("new", Position(2, 0, 0))
                await trio.sleep(2)
                newest, lag = await query.batches.reported(position)
            assert (newest["n/new"].begin, newest["n/new"].sequence) == (30, 37)
            assert newest["n/a"].begin == position["n/a"].begin
            assert lag.records == 2 + 7
            assert (lag.streams, lag.least, lag.most) == (3, 0, 7)
            reported = {**newest.to_json(), "lag": {"records": 9, "bytes": 1, "seconds": 0}}
            source = {"endOffset": position.to_json(), "latestOffset": reported}
            found = lag_of({"sources": [source]})
            assert found is not None
            assert found.records_by_stream == {"n/a": 2, "n/new": 7}

    run_scenario(scenario)


def test_a_name_that_became_partitioned_is_not_polled_repeatedly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace:
            await append(namespace, "a", 5)
            client = namespace.client
            query = Query(client, [], stream="n/a")
            async with query.running():
                await query.drain()
                await namespace.delete_stream("a")
                await namespace.create_stream("a", partitions=2)
                await append(namespace, "a#1", 3)
                await trio.sleep(5)
                await query.drain()
                asked: list[str] = []
                watch = client.store.watch

                def counted(path: str) -> AsyncGenerator[Node | None, None]:
                    asked.append(path)
                    return watch(path)

                monkeypatch.setattr(client.store, "watch", counted)
                await trio.sleep(60)
                assert asked == []
                # A new plain stream of this name is still noticed.
                await namespace.delete_stream("a")
                await namespace.create_stream("a")
                await append(namespace, "a", 4, "again")
                await trio.sleep(5)
                await query.drain()
            found = by_stream(query.seen)
            assert [len(rows) for rows in found.values()] == [5, 3, 4]

    run_scenario(scenario)


def test_a_stream_that_is_selected_again_continues_at_its_offset() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a", "b") as namespace:
            log: list[str] = []
            queries = []
            for streams in ("n/a,n/b", "n/a", "n/a,n/b"):
                await append(namespace, "a", 3)
                await append(namespace, "b", 3)
                query = Query(namespace.client, log, streams=streams)
                async with query.running():
                    await query.drain()
                queries += query.seen
            assert by_stream(queries) == await all_of(namespace, "a", "b")

    run_scenario(scenario)


def test_a_planned_micro_batch_keeps_the_rows_of_a_stream_that_is_not_selected() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with (
            sample_namespace(cluster, "a", "b") as namespace,
            namespace.writer("b") as writer,
        ):
            await append(namespace, "a", 3)
            await writer.append_many([b"%d" % n for n in range(40)])
            await trio.sleep(1)
            query = Query(namespace.client, [], streams="n/a,n/b")
            async with query.running():
                await query.step()
            again = Query(namespace.client, query.log, streams="n/a")
            async with again.running():
                assert await again.again() == query.seen[0]

    run_scenario(scenario)


@pytest.mark.parametrize("position", ["end=10", "latest", "cursor=c", "earliest"])
def test_the_first_micro_batch_is_the_same_after_another_initial_offset(
    position: str,
) -> None:
    # Spark does not store it: it asks again after it has stored the end, and after restarts.
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace, namespace.writer("a") as writer:
            await writer.append_many([b"%d" % n for n in range(30)])
            everything = await read_all(namespace, "a")
            async with namespace.cursor("a", "c") as cursor:
                cursor.advance(everything[12])
            log: list[str] = []
            query = Query(namespace.client, log, stream="n/a", startingPosition=position)
            async with query.running():
                began = query.position["n/a"].sequence
                await writer.append_many([b"%d" % n for n in range(30, 50)])
                await trio.sleep(1)
                rows = await query.step()
            assert rows is not None
            assert [row.sequence for row in rows] == list(range(began, 50))
            await writer.append_many([b"%d" % n for n in range(50, 90)])
            async with namespace.cursor("a", "c") as cursor:
                cursor.advance(everything[25])
            await trio.sleep(1)
            again = Query(namespace.client, log, stream="n/a", startingPosition=position)
            async with again.running():
                assert await again.again() == rows
                assert await again.step() is not None
            assert [row.sequence for row in again.seen[0]] == list(range(50, 90))

    run_scenario(scenario)


def test_one_large_first_record_reduces_the_other_quotas() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a", "b") as namespace:
            async with namespace.writer("a") as writer:
                await writer.append(bytes(40_000))
                for _ in range(300):
                    await writer.append(bytes(10))
            await append(namespace, "b", 20_000)
            query = Query(namespace.client, [], streamPattern="n/*")
            async with query.running():
                assert await query.step(Limits(bytes_max=50_000)) is not None
                assert 40_000 < await bytes_of(query) <= 50_000

    run_scenario(scenario)
