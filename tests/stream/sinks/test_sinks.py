"""Batches of closed ledgers become segments, once and in all their streams at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio

from bookie.testing import SimCluster, simulate
from bookie.testing.metastore import MetadataOptions
from ledger.errors import InvalidArgument, NoSuchLedger
from stream import CommitOutOfOrder, IsPartitioned, Namespace, NoSuchStream
from stream.core.entry.records import Record
from stream.core.position import EARLIEST, FromTime, Position
from stream.sinks.sinks import SinkLedger, commit_batch, discard_ledgers, is_committed
from stream.store.sinks import forget_sink, list_sinks, read_sink
from tests.stream.sim_namespace import sim_namespace
from tests.stream.sinks.sink_ledgers import with_many, write_ledger


@asynccontextmanager
async def two_streams(cluster: SimCluster) -> AsyncIterator[Namespace]:
    async with sim_namespace(cluster) as namespace:
        await namespace.create_stream("a")
        await namespace.create_stream("b")
        yield namespace


async def read_all(namespace: Namespace, stream: str) -> list[Record]:
    async with namespace.reader(stream, start=EARLIEST) as reader:
        return [record async for batch in reader.read_to_end() for record in batch.records()]


async def values(namespace: Namespace, stream: str) -> list[bytes]:
    records = await read_all(namespace, stream)
    assert [record.sequence for record in records] == list(range(len(records)))
    times = [record.append_time_ms for record in records]
    assert times == sorted(times)
    return [record.value for record in records]


def test_a_batch_is_committed_once_to_all_its_streams() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with two_streams(cluster) as namespace:
            client = namespace.client

            async def batch(number: int) -> list[SinkLedger]:
                return [
                    await write_ledger(client, stream, entries, sink_id="k", batch_id=number)
                    for stream, entries in (
                        ("a", [[b"a%d" % number] * 2, [b"x"]]),
                        ("b", []),
                        ("b", [[b"b%d" % number]]),
                        ("a", [[b"last"]]),
                    )
                ]

            first = await batch(0)
            assert not await is_committed(client, first, sink_id="k", batch_id=0)
            done = await commit_batch(client, first, sink_id="k", batch_id=0)
            assert not done.is_repeat
            assert [(s.stream, s.segments, s.records) for s in done.streams] == [
                ("n/a", 2, 4), ("n/b", 1, 1),
            ]  # fmt: skip
            assert await is_committed(client, first, sink_id="k", batch_id=0)
            again = await commit_batch(client, await batch(0), sink_id="k", batch_id=0)
            assert again.is_repeat
            assert again.streams == done.streams
            await commit_batch(client, await batch(5), sink_id="k", batch_id=5)
            with pytest.raises(CommitOutOfOrder, match="committed batch 5 already, 4 is older"):
                await commit_batch(client, first, sink_id="k", batch_id=4)
            assert await is_committed(client, first, sink_id="k", batch_id=4)
            assert await values(namespace, "a") == [
                b"a0", b"a0", b"x", b"last", b"a5", b"a5", b"x", b"last",
            ]  # fmt: skip
            assert await values(namespace, "b") == [b"b0", b"b5"]
            sink = await read_sink(client.store, "k")
            assert (sink.batch_id, sink.records, sink.stream_count) == (5, 5, 2)
            assert await list_sinks(client.store) == ["k"]
            await forget_sink(client.store, "k")
            with pytest.raises(InvalidArgument, match="no sink 'k'"):
                await forget_sink(client.store, "k")

    simulate(scenario)


def test_a_repeat_may_touch_other_streams() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with two_streams(cluster) as namespace:
            client = namespace.client
            ledger = await write_ledger(client, "a", [[b"1"]])
            await commit_batch(client, [ledger], sink_id="k", batch_id=0)
            other = await write_ledger(client, "b", [[b"1"]])
            assert (await commit_batch(client, [other], sink_id="k", batch_id=0)).is_repeat
            assert await values(namespace, "b") == []
            assert await discard_ledgers(client, [ledger, other], sink_id="k", batch_id=0) == 1
            assert await values(namespace, "a") == [b"1"]
            assert other.ledger_id not in await client.list_ledgers()

    simulate(scenario)


def test_without_a_sink_ledgers_are_committed_once() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with two_streams(cluster) as namespace:
            client = namespace.client
            ledgers = [
                await write_ledger(client, "a", [[b"1"]]),
                await write_ledger(client, "b", [[b"2"], [b"3"]]),
            ]
            assert not await is_committed(client, ledgers)
            done = await commit_batch(client, ledgers)
            again = await commit_batch(client, ledgers)
            assert (done.is_repeat, again.is_repeat) == (False, True)
            assert done.streams == again.streams
            assert await is_committed(client, ledgers)
            assert await discard_ledgers(client, ledgers) == 0
            more = [ledgers[0], await write_ledger(client, "a", [[b"1"]])]
            with pytest.raises(InvalidArgument, match="has ledger"):
                await commit_batch(client, more)
            assert await values(namespace, "b") == [b"2", b"3"]
            assert (await commit_batch(client, [])).streams == ()

    simulate(scenario)


def test_the_report_of_a_task_is_checked() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with two_streams(cluster) as namespace:
            client = namespace.client
            right = await write_ledger(client, "a", [[b"1"], [b"2"]])

            async def refused(match: str, *ledgers: SinkLedger) -> None:
                with pytest.raises(InvalidArgument, match=match):
                    await commit_batch(client, ledgers, sink_id="k", batch_id=0)

            await refused(
                "its task reported 0", replace(right, end=replace(right.end, last_entry=0))
            )
            await refused(
                "its task reported 1 and 7", replace(right, end=replace(right.end, nbytes=7))
            )
            await refused("was made for n/a", replace(right, stream="b"))
            await refused(
                "1 records in 2 entries", replace(right, end=replace(right.end, records=1))
            )
            await refused("named twice", right, right)
            ledger = await client.create_ledger()
            await refused("not closed", replace(right, ledger_id=ledger.ledger_id))
            with pytest.raises(NoSuchLedger):
                await commit_batch(client, [replace(right, ledger_id=10**6)])
            with pytest.raises(InvalidArgument, match="give both"):
                await commit_batch(client, [right], sink_id="k")
            with pytest.raises(InvalidArgument, match="batch id -1"):
                await commit_batch(client, [right], sink_id="k", batch_id=-1)
            with pytest.raises(InvalidArgument, match="sink name"):
                await commit_batch(client, [right], sink_id="a/b", batch_id=1)
            await namespace.delete_stream("a")
            with pytest.raises(NoSuchStream):
                await commit_batch(client, [right], sink_id="k", batch_id=0)
            assert await list_sinks(client.store) == []

    simulate(scenario)


def test_nothing_is_committed_of_a_batch_whose_ledger_was_deleted() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with two_streams(cluster) as namespace:
            client = namespace.client
            ledgers = [
                await write_ledger(client, "a", [[b"1"]]),
                await write_ledger(client, "b", [[b"2"]]),
            ]
            assert await discard_ledgers(client, ledgers[1:]) == 1
            assert await discard_ledgers(client, ledgers[1:]) == 0
            with pytest.raises(NoSuchLedger):
                await commit_batch(client, ledgers, sink_id="k", batch_id=0)
            assert await values(namespace, "a") == []
            assert not await is_committed(client, ledgers, sink_id="k", batch_id=0)

    simulate(scenario)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("sink_id", ["k", None])
def test_an_outcome_that_is_not_known_is_looked_up(seed: int, sink_id: str | None) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with two_streams(cluster) as namespace:
            client = namespace.client
            ledgers = [
                await write_ledger(client, "a", [[b"1"]]),
                await write_ledger(client, "b", [[b"2"]]),
            ]
            cluster.metadata.options = MetadataOptions(
                timeout_s=0.5, error_before_probability=0.05, error_after_probability=0.2,
                error_late_probability=0.1, late_max_s=1.0,
            )  # fmt: skip
            batch_id = None if sink_id is None else 0
            done = await commit_batch(client, ledgers, sink_id=sink_id, batch_id=batch_id)
            assert not done.is_repeat
            assert sorted(share.stream for share in done.streams) == ["n/a", "n/b"]
            cluster.metadata.options = MetadataOptions()
            await trio.sleep(5)
            assert await values(namespace, "a") == [b"1"]
            assert await values(namespace, "b") == [b"2"]
            assert await discard_ledgers(client, ledgers, sink_id=sink_id, batch_id=batch_id) == 0

    simulate(scenario, seed)


def test_the_append_time_is_that_of_the_commit() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with two_streams(cluster) as namespace:
            client = namespace.client
            async with namespace.writer("a") as writer:
                await writer.append(b"before")
            ledger = await write_ledger(client, "a", [[b"1"], [b"2"]])
            await trio.sleep(60)
            committed_ms = client.now_ms()
            await commit_batch(client, [ledger])
            before, *rest = await read_all(namespace, "a")
            assert before.append_time_ms < committed_ms - 59_000
            assert all(0 <= r.append_time_ms - committed_ms < 1000 for r in rest)
            start = FromTime(committed_ms - 30_000)
            async with namespace.reader("a", start=start) as reader:
                found = [r async for batch in reader.read_to_end() for r in batch.records()]
            assert found == rest
            assert rest[0].position == Position(2, 0, 0)

    simulate(scenario)


def test_a_batch_goes_to_partitions_and_not_to_the_stream_of_them() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sim_namespace(cluster) as namespace:
            client = namespace.client
            await namespace.create_stream("p", partitions=2)
            ledgers = [await write_ledger(client, f"p#{n}", [[b"%d" % n]]) for n in range(2)]
            async with namespace.writer("p#1") as writer:
                await writer.append(b"own")
                await commit_batch(client, ledgers, sink_id="k", batch_id=0)
                await writer.append(b"more")
            assert await values(namespace, "p#0") == [b"0"]
            assert await values(namespace, "p#1") == [b"own", b"1", b"more"]
            whole = replace(ledgers[0], stream="p")
            with pytest.raises(IsPartitioned):
                await commit_batch(client, [whole], sink_id="k", batch_id=1)

    simulate(scenario)


def test_a_stream_of_many_segments_takes_batches_beside_its_writer() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with two_streams(cluster) as namespace:
            client = namespace.client
            await namespace.store.update_stream("n", "a", with_many)
            async with namespace.writer("a") as writer:
                for batch in range(70):
                    ledger = await write_ledger(client, "a", [[b"1"]])
                    done = await commit_batch(client, [ledger], sink_id="k", batch_id=batch)
                    assert (done.is_repeat, done.streams[0].segments) == (False, 1)
                    again = await commit_batch(client, [ledger], sink_id="k", batch_id=batch)
                    assert again.is_repeat
                await writer.append(b"own")
            stream = await namespace.stream_metadata("a")
            assert len(stream.segments) < 128
            assert sum(run.count for run in stream.pages.roots) + len(stream.segments) == 2_071
            named = await namespace.store.pages.listed(stream, limit=10_000)
            assert len({segment.ledger_id for segment in named}) == 2_071
            with pytest.raises(InvalidArgument, match=r"has ledger \d+ already"):
                await commit_batch(client, [ledger], sink_id="other", batch_id=1)

    simulate(scenario)
