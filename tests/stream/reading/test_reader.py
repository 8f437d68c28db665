"""Readers: where they begin, reading backward, and retention that passes a reader."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from ledger.errors import InvalidArgument
from stream import (
    EARLIEST,
    LATEST,
    FromCursor,
    FromEnd,
    FromEventTime,
    Namespace,
    NoSuchCursor,
    Position,
    Record,
    Segment,
    Truncated,
)
from tests.stream.real_namespace import a_namespace
from tests.stream.whole_streams import drain, read_all


async def fill(namespace: Namespace, *, records: int = 600, seed: int = 1) -> list[Record]:
    """Appends three segments of many entries.

    Event times are not monotonic, and some records have none.
    """
    rng = random.Random(seed)
    numbers = iter(range(records))
    for _ in range(3):
        async with namespace.writer("s", create=True) as writer:
            for _ in range(records // 15):
                part = [next(numbers) for _ in range(5)]
                await writer.append_many(
                    [b"%06d" % number + bytes(60) for number in part],
                    event_times=[
                        None if rng.random() < 0.2 else 10 * n + rng.randrange(-300, 300)
                        for n in part
                    ],
                )
    return await read_all(namespace, "s")


async def note_event_ranges(
    namespace: Namespace, everything: list[Record], *, is_known: bool
) -> None:
    """Sets whether the event-time range of each segment is known.

    Writers store the range; a recovery that reads no header does not.
    """

    def noted(segment: Segment) -> Segment:
        times = [
            record.event_time_ms
            for record in everything
            if record.position.segment == segment.number and record.event_time_ms is not None
        ]
        if not is_known:
            return replace(segment, event_min_ms=-1, event_max_ms=-1)
        return replace(segment, event_min_ms=max(0, min(times)), event_max_ms=max(times))

    await namespace.store.update_stream(
        namespace.name, "s", lambda s: replace(s, segments=tuple(map(noted, s.segments)))
    )


@pytest.mark.parametrize("is_range_known", [True, False])
async def test_a_start_by_event_time_misses_no_record_of_that_time(
    tmp_path: Path, is_range_known: bool
) -> None:
    async with a_namespace(tmp_path, batch_bytes=300) as namespace:
        everything = await fill(namespace)
        await note_event_ranges(namespace, everything, is_known=is_range_known)
        segments = (await namespace.stream_metadata("s")).segments
        assert [segment.event_max_ms >= 0 for segment in segments] == [is_range_known] * 3
        for wanted_ms in (-1000, 0, 500, 2500, 4001, 5999, 6200, 1 << 40):
            first = next(
                (
                    number
                    for number, record in enumerate(everything)
                    if record.event_time_ms is not None and record.event_time_ms >= wanted_ms
                ),
                len(everything),
            )
            assert await read_all(namespace, "s", FromEventTime(wanted_ms)) == everything[first:]


async def test_a_start_at_a_future_event_time_waits_for_it(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace, namespace.writer("s", create=True) as writer:
        await writer.append(b"old", event_time_ms=1)
        async with namespace.reader("s", start=FromEventTime(100)) as reader:
            await writer.append_many([b"early", b"none"], event_times=[99, None])
            await writer.append_many([b"x", b"now", b"after"], event_times=[3, 100, 7])
            with trio.fail_after(10):
                assert (await reader.__anext__()).value == b"now"
                assert (await reader.__anext__()).value == b"after"
        # The start may also be in the middle of an open segment.
        assert [r.value for r in await read_all(namespace, "s", FromEventTime(100))] == [
            b"now", b"after"
        ]  # fmt: skip


async def test_a_start_at_a_truncated_event_time_begins_where_the_stream_does(
    tmp_path: Path,
) -> None:
    async with a_namespace(tmp_path) as namespace:
        async with namespace.writer("s", create=True) as writer:
            await writer.append_many([b"a", b"b", b"c", b"d"], event_times=[50, 10, 60, 20])
        everything = await read_all(namespace, "s")
        await namespace.truncate("s", everything[1].position)
        assert await read_all(namespace, "s", FromEventTime(40)) == everything[2:]
        assert await read_all(namespace, "s", FromEventTime(5)) == everything[1:]


async def test_starts_before_the_end_and_at_cursors(tmp_path: Path) -> None:
    async with a_namespace(tmp_path, batch_bytes=300) as namespace:
        everything = await fill(namespace)
        for records in (0, 1, 5, 7, 250, 599, 600, 10_000):
            wanted = everything[len(everything) - min(records, 600) :]
            assert await read_all(namespace, "s", FromEnd(records)) == wanted
        await namespace.set_cursor("s", "here", everything[321].position)
        assert await read_all(namespace, "s", FromCursor("here")) == everything[321:]
        with pytest.raises(NoSuchCursor, match="'there'"):
            await read_all(namespace, "s", FromCursor("there"))
        with pytest.raises(InvalidArgument, match="-1 records"):
            await read_all(namespace, "s", FromEnd(-1))
        await namespace.truncate("s", everything[300].position)
        assert await read_all(namespace, "s", FromEnd(10_000)) == everything[300:]


async def test_the_last_records_are_read_backward_across_entries_and_segments(
    tmp_path: Path,
) -> None:
    async with a_namespace(tmp_path, batch_bytes=300) as namespace:
        everything = await fill(namespace)
        for records in (0, 1, 4, 6, 201, 600, 1000):
            wanted = everything[600 - min(records, 600) :]
            assert await namespace.read_last("s", records) == wanted
        await namespace.truncate("s", everything[411].position)
        assert await namespace.read_last("s", 1000) == everything[411:]
        with pytest.raises(InvalidArgument, match="last -1 records"):
            await namespace.read_last("s", -1)
        await namespace.create_stream("empty")
        assert await namespace.read_last("empty", 5) == []


async def test_backward_reading_continues_before_a_position(tmp_path: Path) -> None:
    async with a_namespace(tmp_path, batch_bytes=300) as namespace:
        everything = await fill(namespace, records=150)
        async with namespace.writer("s") as writer:
            await writer.append_many([b"%d" % n for n in range(30)])
            everything = await read_all(namespace, "s")
            assert await namespace.read_last("s", 35) == everything[-35:]
            for number in (0, 1, 77, 150, 151, 179):
                found: list[Record] = []
                before = everything[number].position
                async with namespace.backward_batches("s", before=before) as batches:
                    async for batch in batches:
                        found[:0] = batch.records()
                        assert batches.position == found[0].position
                assert found == everything[:number]
            # No reader ever returned such a position: there is no record after the end.
            end = everything[-1].position
            beyond = Position(end.segment, end.entry + 1000, 0)
            async with namespace.backward_batches("s", before=beyond) as batches:
                assert (await batches.__anext__()).last_position == end


async def test_a_backward_read_that_is_cancelled_loses_nothing(tmp_path: Path) -> None:
    async with a_namespace(tmp_path, batch_bytes=300) as namespace:
        everything = await fill(namespace, records=150)
        found: list[Record] = []
        async with namespace.backward_batches("s") as batches:
            while True:
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await batches.__anext__()
                try:
                    found[:0] = (await batches.__anext__()).records()
                except StopAsyncIteration:
                    break
        assert found == everything


@pytest.mark.parametrize("policy", ["error", "earliest", "latest"])
async def test_a_reader_that_retention_passed_follows_its_policy(
    tmp_path: Path, policy: str
) -> None:
    async with a_namespace(tmp_path, batch_bytes=300) as namespace:
        everything = await fill(namespace)
        reader_of = namespace.reader("s", on_truncated=policy)  # type: ignore[arg-type]
        async with reader_of as reader:
            first = await reader.next_batch()
            assert first.records() == everything[: len(first)]
            await namespace.truncate("s", everything[450].position)
            if policy == "error":
                with pytest.raises(Truncated) as caught:
                    await drain(reader)
                assert caught.value.first_available == everything[450].position
            else:
                found = [r async for b in reader.read_to_end() for r in b.records()]
                # The read-ahead may be returned; then there is one gap.
                ahead = sum(record.sequence < 450 for record in found) + len(first)
                rest = everything[450:] if policy == "earliest" else []
                assert found == everything[len(first) : ahead] + rest
        late = namespace.reader(
            "s", start=everything[3].position, on_truncated=policy  # type: ignore[arg-type]
        )  # fmt: skip
        if policy == "error":
            with pytest.raises(Truncated):
                async with late:
                    pass
        else:
            async with late as reader:
                wanted = everything[450].position
                if policy == "latest":
                    wanted = await reader.end_position()
                assert reader.position == wanted


async def test_an_unknown_policy_is_refused(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        with pytest.raises(InvalidArgument, match="'newest'; it is error, earliest or latest"):
            namespace.reader("s", start=LATEST, on_truncated="newest")  # type: ignore[arg-type]
        assert namespace.reader("s", start=EARLIEST) is not None
