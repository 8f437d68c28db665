"""Micro-batches of streams that are appended, rolled, taken over, truncated, made and deleted."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from bookie.testing import SimCluster, simulate
from connectors.spark.core.admission import Limits
from connectors.spark.core.offsets import Offsets
from connectors.spark.losses import DataLoss
from ledger.errors import LedgerError
from stream import Janitor, Namespace, NoSuchStream, StreamWriter
from tests.connectors.query_world import Query, Seen, by_stream
from tests.stream.whole_streams import read_all


@asynccontextmanager
async def a_world(cluster: SimCluster, *streams: str) -> AsyncIterator[Namespace]:
    """Namespace "n" with small entries and these streams, in a client of its own."""
    async with cluster.client() as client:
        namespace = Namespace(client, "n")
        await namespace.ensure(batch_bytes=300, trash_ms=60_000)
        for stream in streams:
            await namespace.create_stream(stream)
        yield namespace


async def append(namespace: Namespace, stream: str, count: int, mark: str = "v") -> None:
    """So many records in a segment of their own, sealed."""
    async with namespace.writer(stream) as writer:
        await writer.append_many([b"%s-%d" % (mark.encode(), n) for n in range(count)])


async def sequences(namespace: Namespace, stream: str) -> list[tuple[int, bytes]]:
    return [(record.sequence, record.value) for record in await read_all(namespace, stream)]


async def all_of(namespace: Namespace, *streams: str) -> dict[tuple[str, int], object]:
    """What a query that has read all must have seen."""
    found: dict[tuple[str, int], object] = {}
    for stream in streams:
        created_ms = (await namespace.stream_metadata(stream)).created_ms
        if rows := await sequences(namespace, stream):
            found[f"n/{stream}", created_ms] = rows
    return found


def told(story: Callable[[SimCluster], Awaitable[None]], seed: int = 0) -> None:
    simulate(story, seed)


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
    async def story(cluster: SimCluster) -> None:
        async with a_world(cluster, "a", "b", "c") as namespace:
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

    told(story)


async def bytes_of(query: Query) -> int:
    """Stored bytes of the last micro-batch."""
    start, end = (Offsets.from_json(json.loads(text)) for text in query.log[-2:])
    return sum(each.nbytes for each in await query.batches.ranges(start, end))


def test_streams_share_a_limit_fairly() -> None:
    async def story(cluster: SimCluster) -> None:
        async with a_world(cluster, "a", "b", "c") as namespace:
            for stream, count in (("a", 200), ("b", 200), ("c", 3)):
                await append(namespace, stream, count)
            query = Query(namespace.client, [], streamPattern="n/*")
            async with query.running():
                rows = await query.step(Limits(records_max=43))
            assert rows is not None
            counts = [sum(row.stream == name for row in rows) for name in ("n/a", "n/b", "n/c")]
            assert counts == [20, 20, 3]

    told(story)


def test_a_micro_batch_waits_for_records_but_not_longer_than_it_may() -> None:
    async def story(cluster: SimCluster) -> None:
        async with a_world(cluster, "a") as namespace:
            await append(namespace, "a", 5)
            limits = Limits(records_min=10, delay_ms_max=1000)
            query = Query(namespace.client, [], stream="n/a")
            async with query.running():
                assert await query.step(limits, 999) is None
                assert len(await query.step(limits, 1000) or ()) == 5
                await append(namespace, "a", 10)
                await trio.sleep(1)
                assert len(await query.step(limits, 0) or ()) == 10

    told(story)


# What nobody may see, and what everybody must


def test_an_open_segment_is_read_up_to_what_is_confirmed_as_it_grows() -> None:
    async def story(cluster: SimCluster) -> None:
        async with a_world(cluster, "a") as namespace, namespace.writer("a") as writer:
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

    told(story)


def test_nothing_is_asked_of_anybody_while_nothing_happens() -> None:
    async def story(cluster: SimCluster) -> None:
        async with a_world(cluster, "a", "b") as namespace, namespace.writer("a") as writer:
            await writer.append(b"x")
            await trio.sleep(1)
            query = Query(namespace.client, [], streamPattern="n/*")
            async with query.running():
                await query.drain()
                await trio.sleep(5)
                version = query.batches.followers.version
                await trio.sleep(60)
                assert query.batches.followers.version == version
                await writer.append(b"y")
                await trio.sleep(1)
                assert query.batches.followers.version > version
                assert await query.step() is not None

    told(story)


def test_a_query_that_is_behind_is_not_told_of_every_entry() -> None:
    """Work goes with the queries: news nobody has taken are followed by none."""

    async def story(cluster: SimCluster) -> None:
        async with a_world(cluster, "a") as namespace, namespace.writer("a") as writer:
            query = Query(namespace.client, [], stream="n/a")
            async with query.running():
                version = query.batches.followers.version
                for number in range(200):
                    await writer.append(b"%d" % number)
                assert query.batches.followers.version - version <= 2
                rows = await query.step()
                assert rows is not None
                assert len(rows) >= 199

    told(story)


def test_streams_that_are_not_followed_are_looked_at_in_turn() -> None:
    async def story(cluster: SimCluster) -> None:
        names = [f"s{number}" for number in range(7)]
        async with a_world(cluster, *names) as namespace:
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

    told(story)


# AvailableNow


def test_available_now_ends_at_the_record_that_was_last_when_it_began() -> None:
    async def story(cluster: SimCluster) -> None:
        async with a_world(cluster, "a", "b") as namespace:
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
                    # Fewer than the minimum is no reason to wait.
                    await query.drain(Limits(records_max=10, records_min=8, delay_ms_max=10**9))
            counts = {stream: len(rows) for (stream, _), rows in by_stream(query.seen).items()}
            assert counts == {"n/a": 25, "n/b": 33}
            assert b"late" not in [value for batch in query.seen for value in map(_value, batch)]
            # The next run reads the rest, and the stream that was new.
            rest = Query(namespace.client, query.log, streamPattern="n/*")
            async with rest.running():
                await rest.batches.settle_end()
                await rest.drain(Limits(records_max=10))
            assert by_stream(query.seen + rest.seen) == await all_of(namespace, "a", "b", "c")

    told(story)


def _value(row: Seen) -> bytes:
    return row.value


# Streams come and go


def test_new_streams_and_new_partitions_begin_at_their_first_record() -> None:
    async def story(cluster: SimCluster) -> None:
        async with a_world(cluster, "a") as namespace:
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
            # While no query runs, too.
            await namespace.create_stream("c")
            await append(namespace, "c", 6)
            again = Query(namespace.client, log, streamPattern="n/*", startingPosition="latest")
            async with again.running():
                await again.drain()
            assert by_stream(again.seen) == await all_of(namespace, "c")

    told(story)


def test_a_stream_that_is_not_meant_any_more_goes_on_where_it_was() -> None:
    async def story(cluster: SimCluster) -> None:
        async with a_world(cluster, "a", "b") as namespace:
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

    told(story)


def test_a_stream_that_is_named_and_not_there_is_an_error_of_a_new_query() -> None:
    async def story(cluster: SimCluster) -> None:
        async with a_world(cluster, "a") as namespace:
            with pytest.raises(NoSuchStream, match="'x'"):
                async with Query(namespace.client, [], streams="n/a,n/x").running():
                    pass

    told(story)


def test_a_deleted_stream_is_a_loss_unless_all_of_it_was_read() -> None:
    async def story(cluster: SimCluster) -> None:
        async with a_world(cluster, "a", "b", "c") as namespace:
            for stream in ("a", "b", "c"):
                await append(namespace, stream, 5)
            query = Query(namespace.client, [], streamPattern="n/*")
            async with query.running():
                await query.drain()
                await namespace.delete_stream("a")
                await trio.sleep(1)
                assert await query.step() is None
                await append(namespace, "b", 5)
                await trio.sleep(1)
                assert len(await query.step() or ()) == 5
                assert list(query.position) == ["n/b", "n/c"]
                await append(namespace, "c", 4)
                await namespace.delete_stream("c")
                await trio.sleep(1)
                with pytest.raises(DataLoss, match=r"'n/c'.* 5 to 8 \(4 records\).*undelete n/c"):
                    await query.step()
            # In the trash nothing is lost: it comes back, and is read.
            await namespace.undelete_stream("c")
            again = Query(namespace.client, query.log, streamPattern="n/*")
            async with again.running():
                await again.drain()
            assert [row.sequence for batch in again.seen for row in batch] == [5, 6, 7, 8]

    told(story)


def test_a_stream_that_was_made_again_begins_at_its_first_record() -> None:
    async def story(cluster: SimCluster) -> None:
        async with a_world(cluster, "a") as namespace:
            await append(namespace, "a", 5, "old")
            query = Query(namespace.client, [], stream="n/a")
            async with query.running():
                await query.drain()
                first = await all_of(namespace, "a")
                await namespace.delete_stream("a")
                await trio.sleep(3)
                assert await query.step() is None
                await namespace.create_stream("a")
                await append(namespace, "a", 3, "new")
                await trio.sleep(3)
                await query.drain()
                assert by_stream(query.seen) == {**first, **await all_of(namespace, "a")}
                await append(namespace, "a", 2, "lost")
                await namespace.delete_stream("a")
                await namespace.create_stream("a")
                await append(namespace, "a", 1)
                await trio.sleep(3)
                with pytest.raises(DataLoss, match="sequences 3 to 4"):
                    await query.step()

    told(story)


def test_what_was_purged_with_its_stream_is_a_loss_of_unknown_size() -> None:
    async def story(cluster: SimCluster) -> None:
        async with a_world(cluster, "a", "b") as namespace:
            await append(namespace, "a", 5)
            query = Query(namespace.client, [], streamPattern="n/*", fail_on_data_loss=False)
            async with query.running():
                await query.step(Limits(records_max=2))
                await namespace.delete_stream("a")
                await trio.sleep(100)
                await Janitor(namespace.client, "n", orphan_age_ms=0).sweep()
                await append(namespace, "b", 1)
                await trio.sleep(1)
                await query.drain()
                assert list(query.position) == ["n/b"]

    told(story)


# Truncation


def test_truncated_records_are_an_error_that_names_range_and_rule() -> None:
    async def story(cluster: SimCluster) -> None:
        async with a_world(cluster, "a") as namespace:
            for _ in range(3):
                await append(namespace, "a", 10)
            query = Query(namespace.client, [], stream="n/a")
            async with query.running():
                await query.step(Limits(records_max=4))
                await namespace.set_policy(retention_ms=1000)
                await trio.sleep(5)
                await append(namespace, "a", 2)
                await Janitor(namespace.client, "n").sweep()
                await trio.sleep(1)
                with pytest.raises(DataLoss) as caught:
                    await query.step()
            text = str(caught.value)
            assert "stream 'n/a': the records with sequences 4 to 29 (26 records)" in text
            assert "retention_ms of 1 s of namespace 'n'" in text
            assert "untruncate n/a" in text
            # An operator who brings them back brings the query on its way again.
            await namespace.set_policy(retention_ms=None)
            await namespace.untruncate("a")
            again = Query(namespace.client, query.log, stream="n/a")
            async with again.running():
                await again.drain()
            assert by_stream(query.seen + again.seen) == await all_of(namespace, "a")

    told(story)


def test_a_query_that_may_lose_goes_on_at_the_first_record_and_counts() -> None:
    async def story(cluster: SimCluster) -> None:
        async with a_world(cluster, "a") as namespace:
            for _ in range(3):
                await append(namespace, "a", 10)
            everything = await read_all(namespace, "a")
            query = Query(namespace.client, [], stream="n/a", fail_on_data_loss=False)
            async with query.running():
                await query.step(Limits(records_max=4))
                await namespace.truncate("a", everything[17].position)
                await trio.sleep(1)
                await query.drain(Limits(records_max=5))
            read = [row.sequence for batch in query.seen for row in batch]
            assert read == [*range(4), *range(17, 30)]
            assert query.losses.records == 13

    told(story)


def test_a_micro_batch_that_was_planned_and_truncated_is_a_loss_when_it_is_read_again() -> None:
    async def story(cluster: SimCluster) -> None:
        async with a_world(cluster, "a") as namespace:
            await append(namespace, "a", 20)
            everything = await read_all(namespace, "a")
            log: list[str] = []
            query = Query(namespace.client, log, stream="n/a")
            async with query.running():
                await query.step(Limits(records_max=10))
            await namespace.truncate("a", everything[6].position)
            strict = Query(namespace.client, log, stream="n/a")
            async with strict.running():
                with pytest.raises(DataLoss, match="sequences 0 to 5"):
                    await strict.again()
            lenient = Query(namespace.client, log, stream="n/a", fail_on_data_loss=False)
            async with lenient.running():
                assert [row.sequence for row in await lenient.again()] == [6, 7, 8, 9]
                assert lenient.losses.records == 6
                await lenient.drain()
            assert [row.sequence for row in lenient.seen[0]] == list(range(10, 20))

    told(story)


# Trouble


def test_a_query_outlives_a_store_that_is_away_for_a_while() -> None:
    async def story(cluster: SimCluster) -> None:
        async with a_world(cluster, "a", "b") as namespace:
            for stream in ("a", "b"):
                await append(namespace, stream, 30)
            async with cluster.client("query") as client:
                query = Query(client, [], executor=namespace.client, streamPattern="n/*")
                async with query.running():
                    await query.step(Limits(records_max=11))
                    cluster.metadata.cut_off("query")
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(query.drain, Limits(records_max=7))
                        await trio.sleep(20)
                        cluster.metadata.heal()
                    await append(namespace, "b", 5)
                    await trio.sleep(5)
                    await query.drain()
            assert by_stream(query.seen) == await all_of(namespace, "a", "b")

    told(story)


# Everything at once


class _Torment:
    """Writers, takeovers and new streams beside a query that is stopped and started again."""

    def __init__(self, namespace: Namespace, seed: int) -> None:
        self.namespace = namespace
        self.rng = random.Random(seed)
        self.is_over = False

    async def write(self, stream: str) -> None:
        """Appends; now and then another writer takes over in the middle of it."""
        number = 0
        while not self.is_over:
            try:
                async with self.namespace.writer(stream, create=True) as writer:
                    for _ in range(self.rng.randrange(1, 30)):
                        number += await self._append(writer, number)
                        await trio.sleep(self.rng.random() / 5)
            except LedgerError:
                continue

    async def _append(self, writer: StreamWriter, number: int) -> int:
        count = self.rng.choice([1, 1, 5, 60])
        await writer.append_many(
            [b"%d" % (number + n) + bytes(self.rng.randrange(900)) for n in range(count)]
        )
        return count

    async def take_over(self, streams: list[str]) -> None:
        while not self.is_over:
            await trio.sleep(self.rng.random() * 3)
            try:
                await self.namespace.seal_stream(self.rng.choice(streams))
            except LedgerError:
                continue


@pytest.mark.parametrize("seed", range(2))
def test_every_record_of_moving_streams_comes_out_once_and_in_order(seed: int) -> None:
    async def story(cluster: SimCluster) -> None:
        async with a_world(cluster, "a", "b") as namespace:
            await namespace.set_policy(roll_bytes=1 << 16)
            torment = _Torment(namespace, seed)
            rng = random.Random(seed + 100)
            log: list[str] = []
            batches: list[list[Seen]] = []
            async with trio.open_nursery() as nursery:
                for stream in ("a", "b", "c"):
                    nursery.start_soon(torment.write, stream)
                nursery.start_soon(torment.take_over, ["a", "b"])
                for _ in range(4):
                    query = Query(namespace.client, log, streamPattern="n/*")
                    async with query.running():
                        if query.log[1:]:
                            assert sorted(map(repr, await query.again())) == sorted(
                                map(repr, batches[-1])
                            )
                        if rng.random() < 0.4:
                            await query.batches.settle_end()
                        for _ in range(rng.randrange(1, 8)):
                            limits = rng.choice(
                                [Limits(), Limits(records_max=37), Limits(bytes_max=500)]
                            )
                            await query.step(limits)
                            await trio.sleep(rng.random() / 2)
                    batches += query.seen
                torment.is_over = True
            last = Query(namespace.client, log, streamPattern="n/*")
            async with last.running():
                await last.drain(Limits(records_max=500))
            batches += last.seen
            assert by_stream(batches) == await all_of(namespace, "a", "b", "c")

    told(story, seed)
