"""The range of event times of a segment is known if its writer sealed it, and never wrong."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from stream import FromEventTime, Namespace, SegmentState
from stream.cli.record_text import json_of
from tests.stream.real_namespace import a_namespace


async def ranges(namespace: Namespace) -> list[tuple[int, int]]:
    stream = await namespace.stream_metadata("s")
    assert all(segment.state is SegmentState.SEALED for segment in stream.segments)
    return [(segment.event_min_ms, segment.event_max_ms) for segment in stream.segments]


async def test_a_writer_stores_the_range_of_each_segment_it_seals(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        for times in ([5, 9], [None, None], [7, None, 3], [-4, 8]):
            async with namespace.writer("s", create=True) as writer:
                for time in times:
                    await writer.append(b"x", event_time_ms=time)
                await writer.append_many([b"y", b"z"], event_times=times[:2])
        # A range with times before 1970 is unknown: -1 could not be distinguished from it.
        assert await ranges(namespace) == [(5, 9), (-1, -1), (3, 7), (-1, -1)]


async def test_recovery_stores_the_range_if_it_has_read_all_headers(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        for producers in (["a"], ["a", "b"]):
            block = namespace.writer("s", create=True)
            old = await block.__aenter__()
            for name in producers:
                producer = await old.producer(name)
                first = producer.next_sequence
                await producer.append(b"", first, event_time_ms=first + 10)
                await producer.append(b"", first + 1, event_time_ms=first + 20)
            await namespace.seal_stream("s")
            await block.__aexit__(None, None, None)
        assert await ranges(namespace) == [(-1, -1), (10, 22)]


ANY_TIMES = [
    -(1 << 63), -62_135_596_800_001, -86_400_000, -1, 0, 1_700_000_000_000,
    253_402_300_799_999, 253_402_300_800_000, 1_700_000_000_000_000_000, (1 << 63) - 1,
]  # fmt: skip


async def test_records_of_every_event_time_can_be_read(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        for stream in ("s", "t"):
            async with namespace.writer(stream, create=True) as writer:
                for time in reversed(ANY_TIMES):
                    await writer.append(b"x", event_time_ms=time)
        async with namespace.reader("s") as reader:
            records = [r async for batch in reader.read_to_end() for r in batch.records()]
        assert [record.event_time_ms for record in records] == ANY_TIMES[::-1]
        shown = [json_of(record)["event_time"] for record in records]
        assert shown[0] == (1 << 63) - 1
        assert shown[-3] == "1969-12-31T00:00:00.000Z"
        async with namespace.merged_reader(["s", "t"], follow=False, lateness_ms=1 << 62) as merged:
            times = [m.record.event_time_ms async for m in merged]
        assert sorted(times, key=str) == sorted(ANY_TIMES * 2, key=str)
        for time in ANY_TIMES:
            async with namespace.reader("s", start=FromEventTime(time)) as reader:
                first = await anext(aiter(reader.read_to_end()))
            assert first.records()[0].event_time_ms == max(t for t in ANY_TIMES if t >= time)
            some = first.arrow_column("event_time_ms")
            assert some.to_pylist()[0] in ANY_TIMES


async def test_a_writer_warns_once_of_times_outside_every_calendar(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with a_namespace(tmp_path) as namespace:
        async with namespace.writer("s", create=True) as writer:
            await writer.append(b"x", event_time_ms=253_402_300_799_999)
            await writer.append(b"x", event_time_ms=-1)
            assert caplog.messages == []
            for _ in range(3):
                await writer.append(b"x", event_time_ms=1_700_000_000_000_000_000)
        (message,) = caplog.messages
        assert "1700000000000000000" in message
        assert "milliseconds" in message
        async with namespace.writer("s") as writer:
            await writer.append_many([b"x", b"y"], event_times=[None, -(1 << 63)])
        assert len(caplog.messages) == 2
