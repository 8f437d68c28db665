"""The index and the micro-batches of a stream most of whose segments are in pages."""

from __future__ import annotations

import random

from bookie.testing import SimCluster
from connectors.spark.core.admission import Limits
from connectors.spark.core.offsets import StreamOffset
from connectors.spark.core.planner import ranges_between
from connectors.spark.options.options import Selection
from connectors.spark.source import stream_index
from connectors.spark.source.admission import ReadSpan, admit_spans
from connectors.spark.source.discovery import open_streams
from connectors.spark.source.stream_index import StreamIndex
from stream import Namespace, Record
from stream.core.position import Position
from tests.connectors.spark.source.range_reading import read_ranges
from tests.connectors.spark.source.sample_namespaces import append, run_scenario, sample_namespace
from tests.stream.whole_streams import read_all


async def index_of(namespace: Namespace, stream: str = "a") -> StreamIndex:
    return (await open_streams(namespace.client, Selection(streams=(f"n/{stream}",))))[
        f"n/{stream}"
    ]


async def check_bytes(
    index: StreamIndex, offsets: list[StreamOffset], start: StreamOffset, end: StreamOffset
) -> None:
    """Checks that an offset is found by its bytes, among all offsets of the stream."""
    between = [one for one in offsets if start.sequence <= one.sequence <= end.sequence]
    sizes = [await index.bytes_between(start, one) for one in between]
    assert sizes == sorted(sizes)
    nbytes = random.Random(end.sequence).randrange(sizes[-1] + 50)
    wanted = [one for one, size in zip(between, sizes, strict=True) if size <= nbytes][-1]
    assert (await index.ahead(start, end, nbytes)).sequence == wanted.sequence


async def check_ranges(
    index: StreamIndex, everything: list[Record], start: StreamOffset, end: StreamOffset
) -> None:
    """Checks that the records between two offsets are counted and read."""
    wanted = [one for one in everything if start.sequence <= one.sequence < end.sequence]
    ranges = ranges_between(index.name, await index.segments_between(start, end), start, end)
    assert await read_ranges(index.client, ranges) == wanted
    assert sum(each.nbytes for each in ranges) == await index.bytes_between(start, end)
    assert await index.records_between(start, end) == len(wanted)


def test_offsets_in_pages_are_exact_also_around_the_gap_of_a_restore() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace:
            for number in range(14):
                await append(namespace, "a", 3 + number % 4, f"v{number}")
                if number == 5:
                    await namespace.store.update_stream(
                        "n", "a", lambda s: s.continued_after(s.restores + 1)
                    )
            everything = await read_all(namespace, "a")
            cut = next(one for one in everything[5:] if one.position.slot == 1)
            await namespace.truncate("a", cut.position)
            everything = await read_all(namespace, "a")
            index = await index_of(namespace)
            assert len(index.metadata.pages.levels) > 1
            first = await index.first()
            assert (first.position, first.sequence) == (cut.position, cut.sequence)
            offsets = [await index.at(record.position) for record in everything]
            for record, offset in zip(everything, offsets, strict=True):
                assert (offset.position, offset.sequence) == (record.position, record.sequence)
                assert await index.at_sequence(record.sequence) == offset
            offsets.append(index.end)
            rng = random.Random(1)
            for _ in range(15):
                start, end = sorted(rng.sample(offsets, 2), key=lambda one: one.sequence)
                await check_bytes(index, offsets, start, end)
                await check_ranges(index, everything, start, end)

    run_scenario(scenario)


def test_segments_that_go_to_pages_while_a_micro_batch_is_planned_are_counted() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a", "b") as namespace:
            for stream in ("a", "b"):
                for _ in range(3):
                    await append(namespace, stream, 5)
            spans = {}
            for stream in ("a", "b"):
                index = await index_of(namespace, stream)
                spans[f"n/{stream}"] = await ReadSpan.of(index, await index.first(), index.end)
            limits = Limits(bytes_max=150)
            wanted, _ = await admit_spans(spans, limits, "")
            for _ in range(9):  # as another task may, whenever something is awaited
                await append(namespace, "b", 1)
            index = spans["n/b"].index
            assert not index.metadata.pages
            index.update(await namespace.stream_metadata("b"))
            assert len(index.metadata.pages.levels) > 1
            assert (await admit_spans(spans, limits, ""))[0] == wanted
            assert 0 < wanted["n/b"].sequence < 15

    run_scenario(scenario)


def test_a_long_backlog_of_a_stream_at_rest_is_not_kept_in_memory() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace:
            for _ in range(30):
                await append(namespace, "a", 1)
            index = await index_of(namespace)
            for sequence in range(30):
                found = await index.at_sequence(sequence)
                assert found.position == Position(sequence + 1, 0, 0)
                assert len(index._loaded) <= stream_index._PAGES_MAX
            assert len(index._loaded) == stream_index._PAGES_MAX

    run_scenario(scenario)
