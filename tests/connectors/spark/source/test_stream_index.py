"""Every record of a stream is found by position, by sequence and by bytes."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from connectors.spark.core.planner import ranges_between
from connectors.spark.options.options import ReadOptions, Selection
from connectors.spark.source.batch_reader import batch_ranges
from connectors.spark.source.data_loss import DataLoss, DataLossLog, LostRange
from connectors.spark.source.discovery import SelectedStreams, discover, offset_at, open_streams
from connectors.spark.source.stream_index import StreamIndex
from ledger.errors import InvalidArgument
from stream import FromEnd, Namespace, NoSuchNamespace, NoSuchStream, Position, Record
from tests.connectors.spark.source.range_reading import read_ranges
from tests.stream.real_namespace import a_namespace
from tests.stream.whole_streams import read_all


@asynccontextmanager
async def filled(tmp_path: Path, *, is_open: bool) -> AsyncIterator[tuple[Namespace, list[Record]]]:
    """Opens a stream of three segments, with records and entries of different sizes.

    It is truncated in the middle of an entry of the first segment. The last segment is open or
    closed.
    """
    async with a_namespace(tmp_path, batch_bytes=900, trash_ms=0) as namespace:
        rng = random.Random(4)
        values = [bytes([n % 256]) * rng.randrange(1, 200) for n in range(150)]
        for part in (values[:50], values[50:100]):
            async with namespace.writer("s", create=True) as writer:
                await writer.append_many(part)
        async with namespace.writer("s") as writer:
            await writer.append_many(values[100:])
            everything = await read_all(namespace, "s")
            middle = next(record for record in everything if record.position.slot == 2)
            await namespace.truncate("s", middle.position)
            if is_open:
                yield namespace, everything[middle.sequence :]
        if not is_open:
            yield namespace, everything[middle.sequence :]


async def places_of(namespace: Namespace) -> StreamIndex:
    streams = await open_streams(namespace.client, Selection(streams=("demo/s",)))
    return streams["demo/s"]


@pytest.mark.parametrize("is_open", [True, False])
async def test_offsets_are_exact_to_the_record(tmp_path: Path, is_open: bool) -> None:
    async with filled(tmp_path, is_open=is_open) as (namespace, everything):
        index = await places_of(namespace)
        first, end = await index.first(), index.end
        assert (first.position, first.sequence) == (
            everything[0].position,
            everything[0].sequence,
        )
        assert first.begin == first.sequence
        assert end.sequence == everything[-1].sequence + 1
        for record in random.Random(1).sample(everything, 30):
            found = await index.at(record.position)
            assert (found.position, found.sequence) == (record.position, record.sequence)
            assert await index.at_sequence(record.sequence) == found
            before = await index.bytes_between(first, found)
            behind = await index.bytes_between(found, end)
            assert before + behind == await index.bytes_between(first, end)
        # The position after the last record of an entry is the begin of the next entry.
        for record, following in pairwise(everything):
            if following.position.entry == record.position.entry + 1:
                assert await index.at(record.position.after) == (await index.at(following.position))


@pytest.mark.parametrize("is_open", [True, False])
async def test_an_offset_is_found_by_bytes(tmp_path: Path, is_open: bool) -> None:
    async with filled(tmp_path, is_open=is_open) as (namespace, everything):
        index = await places_of(namespace)
        offsets = [await index.at_sequence(record.sequence) for record in everything]
        offsets.append(index.end)
        rng = random.Random(2)
        for _ in range(60):
            start, end = sorted(rng.choices(offsets, k=2), key=lambda offset: offset.sequence)
            nbytes = rng.randrange(0, await index.bytes_between(start, end) + 200)
            between = [one for one in offsets if start.sequence <= one.sequence <= end.sequence]
            wanted = [one for one in between if await index.bytes_between(start, one) <= nbytes][-1]
            found = await index.ahead(start, end, nbytes)
            assert found.sequence == wanted.sequence


@pytest.mark.parametrize("is_open", [True, False])
async def test_ranges_hold_the_records_between_two_offsets(tmp_path: Path, is_open: bool) -> None:
    async with filled(tmp_path, is_open=is_open) as (namespace, everything):
        index = await places_of(namespace)
        rng = random.Random(3)
        cuts = sorted(rng.sample(range(1, len(everything)), 8))
        offsets = [await index.first()]
        offsets += [await index.at_sequence(everything[cut].sequence) for cut in cuts]
        offsets.append(index.end)
        read: list[Record] = []
        for start, end in pairwise(offsets):
            ranges = ranges_between("demo/s", index.metadata.segments, start, end)
            nbytes = sum(each.nbytes for each in ranges)
            assert nbytes == await index.bytes_between(start, end)
            read += await read_ranges(namespace.client, ranges)
        assert read == everything


async def test_an_empty_stream_has_one_offset(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        await namespace.create_stream("s")
        index = await places_of(namespace)
        assert index.end == await index.first()
        async with namespace.writer("s"):
            again = await places_of(namespace)
            assert again.end == await again.first()
            assert again.end.sequence == 0


async def test_a_position_that_is_not_written_yet_is_the_end(tmp_path: Path) -> None:
    async with filled(tmp_path, is_open=True) as (namespace, _):
        index = await places_of(namespace)
        assert await index.at(Position(3, 1000, 5)) == index.end
        assert await index.at(Position(9, 0, 0)) == index.end


async def test_an_indexed_entry_is_not_read_again(tmp_path: Path) -> None:
    async with filled(tmp_path, is_open=False) as (namespace, everything):
        index = await places_of(namespace)
        wanted = everything[40]
        await index.at_sequence(wanted.sequence)
        segment = index.metadata.segment_at(wanted.position)
        assert segment is not None
        reader = await index.reader(segment)
        before = reader.statistics().requests
        assert before > 0
        for _ in range(3):
            await index.at_sequence(wanted.sequence)
            await index.at(wanted.position)
        assert reader.statistics().requests == before


# Positions of options


def options(**given: str) -> ReadOptions:
    return ReadOptions.parse({"cluster": "sqlite:///x", **given}, {}, is_streaming=False)


@pytest.mark.parametrize(
    ("starting", "ending", "first", "behind"),
    [
        ("earliest", "latest", 0, None),
        ("sequence=60", "sequence=75", 60, 75),
        ("end=10", "latest", 140, None),
        ("earliest", "end=100", 0, 50),
        ("sequence=149", "latest", 149, None),
        ("sequence=150", "latest", 150, None),
        ("sequence=80", "end=100", 80, 50),
    ],
)
async def test_a_batch_reads_from_its_start_to_its_end(
    tmp_path: Path, starting: str, ending: str, first: int, behind: int | None
) -> None:
    async with filled(tmp_path, is_open=True) as (namespace, everything):
        ranges = await batch_ranges(
            namespace.client,
            options(stream="demo/s", startingPosition=starting, endingPosition=ending),
            DataLossLog(is_error=True),
        )
        wanted = [
            record
            for record in everything
            if first <= record.sequence and (behind is None or record.sequence < behind)
        ]
        assert await read_ranges(namespace.client, ranges) == wanted


async def test_a_distance_from_the_end_holds_while_the_end_moves(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace, namespace.writer("s", create=True) as writer:
        await writer.append_many([b"early"] * 30)
        index = await places_of(namespace)
        end = index.end.sequence
        await writer.append_many([b"late"] * 50)
        await writer.append_many([b"late"] * 50)
        for records, first in ((7, end - 7), (0, end), (10**9, 0)):
            assert (await offset_at(index, FromEnd(records))).sequence == first


async def test_a_truncated_start_is_data_loss(tmp_path: Path) -> None:
    async with filled(tmp_path, is_open=False) as (namespace, everything):
        wanted = options(stream="demo/s", startingPosition="sequence=1")
        with pytest.raises(
            DataLoss, match=r"stream 'demo/s': the record.* with sequence.* 1.*"
        ) as e:
            await batch_ranges(namespace.client, wanted, DataLossLog(is_error=True))
        assert "truncated" in str(e.value)
        assert "failOnDataLoss=false" in str(e.value)
        losses = DataLossLog(is_error=False)
        ranges = await batch_ranges(namespace.client, wanted, losses)
        assert await read_ranges(namespace.client, ranges) == everything
        assert losses.records == everything[0].sequence - 1


@pytest.mark.parametrize("starting", ["sequence=151", "3:900:0", "7:0:0"])
async def test_a_start_after_the_end_is_refused(tmp_path: Path, starting: str) -> None:
    async with filled(tmp_path, is_open=False) as (namespace, _):
        wanted = options(stream="demo/s", startingPosition=starting)
        with pytest.raises(InvalidArgument, match="is after that"):
            await batch_ranges(namespace.client, wanted, DataLossLog(is_error=True))


async def test_the_begin_of_the_next_segment_is_the_end(tmp_path: Path) -> None:
    async with filled(tmp_path, is_open=False) as (namespace, _):
        wanted = options(stream="demo/s", startingPosition="4:0:0")
        assert await batch_ranges(namespace.client, wanted, DataLossLog(is_error=True)) == []


# Selected streams


async def test_streams_are_found_by_name_and_pattern(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        for name in ("a", "b1", "b2", "c"):
            await namespace.create_stream(name)
        await namespace.create_stream("p", partitions=3)
        await namespace.delete_stream("b2")

        async def found(**given: str) -> SelectedStreams:
            return await discover(namespace.client, options(**given).selection)

        assert (await found(stream="demo/p")).names == ["demo/p#0", "demo/p#1", "demo/p#2"]
        assert (await found(streams="demo/c,demo/a")).names == ["demo/c", "demo/a"]
        opened = await open_streams(
            namespace.client, options(streamPattern="demo/b*,demo/p").selection
        )
        assert sorted(opened) == ["demo/b1", "demo/p#0", "demo/p#1", "demo/p#2"]
        missing = await found(streams="demo/a,demo/x,demo/y")
        assert missing.names == ["demo/a"]
        with pytest.raises(NoSuchStream, match="'x'"):
            missing.check(["demo/y"])
        missing.check(["demo/x#0", "demo/y"])
        with pytest.raises(NoSuchNamespace, match="'other'"):
            await found(stream="other/s")


def test_a_loss_is_counted_once() -> None:
    losses = DataLossLog(is_error=False)
    losses.record(LostRange("n/s", 1, 10, 20, "gone"))
    losses.record(LostRange("n/s", 1, 10, 20, "gone"))
    assert losses.records == 10
    losses.record(LostRange("n/s", 1, 10, 25, "gone"))
    losses.record(LostRange("n/s", 2, 0, 5, "another stream of this name"))
    losses.record(LostRange("n/t", 1, 7, None, "nobody knows"))
    assert losses.records == 20
