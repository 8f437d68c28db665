"""Tasks read exactly the ranges they were planned from, and have about the same bytes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from connectors.spark.core.offsets import StreamOffset
from connectors.spark.core.planner import SegmentRange, plan, ranges_between
from stream.core.metadata.streams import Segment, SegmentEnd, StreamMetadata

KIB = 1 << 10


def a_segment(number: int, first_sequence: int, entries: int, nbytes: int) -> Segment:
    end = SegmentEnd(entries - 1, 10 * entries, nbytes)
    return Segment(number, 100 + number, first_sequence, 5).sealed(end, 6)


def a_range(number: int, entries: int, entry_bytes: int) -> SegmentRange:
    segment = a_segment(number, 0, entries, entries * entry_bytes)
    return SegmentRange("n/s", segment, 0, 0, entries - 1, None, segment.nbytes)


def entries_of(ranges: list[SegmentRange]) -> list[tuple[int, int, int, int | None]]:
    """Returns (segment, entry, first slot, end slot) of every entry."""
    found = []
    for each in ranges:
        for entry in range(each.first_entry, each.last_entry + 1):
            first_slot = each.first_slot if entry == each.first_entry else 0
            end_slot = each.end_slot if entry == each.last_entry else None
            found.append((each.segment.number, entry, first_slot, end_slot))
    return found


@st.composite
def some_ranges(draw: st.DrawFn) -> list[SegmentRange]:
    ranges = []
    for number in range(1, draw(st.integers(0, 8)) + 1):
        entries = draw(st.integers(1, 40))
        each = a_range(number, entries, draw(st.integers(0, 1000)))
        first_slot = draw(st.integers(0, 9))
        end_slot = draw(st.none() | st.integers(first_slot + 1, 11))
        ranges.append(replace(each, first_slot=first_slot, end_slot=end_slot))
    return ranges


@given(some_ranges(), st.integers(1, 20_000), st.integers(1, 12), st.integers(0, 5000))
def test_tasks_read_every_record_once_and_in_order(
    ranges: list[SegmentRange], task_bytes_max: int, tasks_min: int, task_bytes_min: int
) -> None:
    tasks = plan(
        ranges, task_bytes_max=task_bytes_max, tasks_min=tasks_min, task_bytes_min=task_bytes_min
    )
    assert all(tasks), "no task is without work"
    parts = [part for task in tasks for part in task]
    assert entries_of(parts) == entries_of(ranges)
    assert sum(part.nbytes for part in parts) == sum(each.nbytes for each in ranges)


@given(st.integers(1, 5), st.integers(50, 400), st.integers(1, 8))
def test_tasks_have_the_requested_number_and_size(
    segments: int, entries: int, tasks_min: int
) -> None:
    ranges = [a_range(number, entries, KIB) for number in range(1, segments + 1)]
    total = segments * entries * KIB
    task_bytes_max = 64 * KIB
    tasks = plan(ranges, task_bytes_max=task_bytes_max, tasks_min=tasks_min)
    sizes = [sum(part.nbytes for part in task) for task in tasks]
    assert len(tasks) == max(tasks_min, -(-total // task_bytes_max))
    assert max(sizes) - min(sizes) <= 2 * KIB


def test_one_segment_uses_every_core() -> None:
    (first, second) = plan([a_range(1, 100, KIB)], task_bytes_max=1 << 30, tasks_min=2)
    assert [part.entries for part in (*first, *second)] == [50, 50]


def test_small_ranges_share_a_task() -> None:
    ranges = [a_range(number, 1, 100) for number in range(1, 1001)]
    tasks = plan(ranges, task_bytes_max=1 << 20, tasks_min=4)
    assert [len(task) for task in tasks] == [250, 250, 250, 250]
    assert len(plan(ranges, task_bytes_max=1 << 20, tasks_min=4, task_bytes_min=1 << 20)) == 1


def test_a_small_task_is_not_forced_where_tasks_would_be_too_large() -> None:
    tasks = plan([a_range(1, 100, KIB)], task_bytes_max=25 * KIB, task_bytes_min=1 << 20)
    assert len(tasks) == 4


def test_one_giant_entry_leaves_the_others_evenly_spread() -> None:
    giant = a_range(1, 1, 1 << 20)
    tasks = plan([giant, a_range(2, 90, KIB)], task_bytes_max=1 << 30, tasks_min=4)
    assert [sum(part.entries for part in task) for task in tasks] == [1, 30, 30, 30]


def test_an_empty_plan_has_no_tasks() -> None:
    assert plan([], task_bytes_max=1, tasks_min=3) == []


def at(segment: int, entry: int, slot: int, sequence: int, nbytes: int) -> StreamOffset:
    return StreamOffset(segment, entry, slot, sequence, nbytes, 0, 1)


@st.composite
def a_stream_and_two_offsets(
    draw: st.DrawFn,
) -> tuple[StreamMetadata, StreamOffset, StreamOffset, list[tuple[int, int, int]]]:
    """Makes a stream of entries with 10 records and 50 bytes; returns all offsets, too."""
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    segments: list[Segment] = []
    index: list[tuple[int, int, int]] = []
    for number, entries in enumerate(counts, 1):
        segments.append(a_segment(number, len(index), entries, entries * 50))
        index += [(number, entry, slot) for entry in range(entries) for slot in range(10)]
    if draw(st.booleans()):
        segments[-1] = Segment(segments[-1].number, 9, segments[-1].first_sequence, 5)
    stream = StreamMetadata(
        name="s", created_ms=1, segments=tuple(segments), next_segment=len(segments) + 1,
        next_sequence=segments[-1].first_sequence + segments[-1].records,
    )  # fmt: skip

    def offset(sequence: int) -> StreamOffset:
        if sequence == len(index):
            last = segments[-1]
            return at(last.number, counts[-1], 0, sequence, counts[-1] * 50)
        number, entry, slot = index[sequence]
        return at(number, entry, slot, sequence, entry * 50 + slot * 5)

    low, high = sorted(draw(st.tuples(*[st.integers(0, len(index))] * 2)))
    return stream, offset(low), offset(high), index[low:high]


@given(a_stream_and_two_offsets())
def test_ranges_are_the_records_between_two_offsets(
    case: tuple[StreamMetadata, StreamOffset, StreamOffset, list[tuple[int, int, int]]],
) -> None:
    stream, start, end, wanted = case
    ranges = ranges_between("n/s", stream.segments, start, end)
    index = [
        (segment, entry, slot)
        for segment, entry, first, behind in entries_of(ranges)
        for slot in range(first, 10 if behind is None else behind)
    ]
    assert index == wanted
    assert sum(each.nbytes for each in ranges) == 5 * len(wanted)
