"""The range of event times of a segment is known if its writer sealed it, and never wrong."""

from __future__ import annotations

from pathlib import Path

from stream import Namespace, SegmentState
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
