"""Merging by time, checked against a twin that sorts with a watermark, and promise by promise."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.errors import InvalidArgument
from stream.core.merge import NO_WATERMARK, Merge, MergeSource

Row = tuple[int, int, int, int]
"""Time, source, number of the batch and slot, so that sorted rows are in the expected order."""


@dataclass
class Twin:
    """A naive merge that keeps all rows in one list and examines all of them each time."""

    lateness_ms: int
    bytes_max: int
    waiting: list[Row] = field(default_factory=list)
    late: set[Row] = field(default_factory=set)
    newest: dict[int, int | None] = field(default_factory=dict)
    idle: set[int] = field(default_factory=set)
    finished: set[int] = field(default_factory=set)
    sizes: dict[tuple[int, int], int] = field(default_factory=dict)
    watermark_ms: int = NO_WATERMARK
    batches: int = 0

    def push(self, source: int, times: list[int], nbytes: int) -> None:
        for slot, time in enumerate(times):
            row = (time, source, self.batches, slot)
            self.waiting.append(row)
            if time < self.watermark_ms:
                self.late.add(row)
            newest = self.newest[source]
            self.newest[source] = time if newest is None else max(newest, time)
        self.sizes[source, self.batches] = nbytes
        self.batches += 1
        self.idle.discard(source)

    def held(self, source: int) -> int:
        batches = {row[1:3] for row in self.waiting if row[1] == source}
        return sum(self.sizes[batch] for batch in batches)

    def wants(self, source: int) -> bool:
        if source in self.finished:
            return False
        shares = [n for n in self.newest if n not in self.finished or self.held(n)]
        return self.held(source) < self.bytes_max / len(shares)

    def bound(self, source: int) -> int:
        newest = self.newest[source]
        if newest is None:
            return NO_WATERMARK
        bound = newest - self.lateness_ms
        if not self.wants(source):
            bound = max(bound, min(row[0] for row in self.waiting if row[1] == source))
        return bound

    def pop(self) -> Row | None:
        if not self.waiting:
            return None
        first = min(self.waiting)
        if first[0] > self.watermark_ms:
            counted = self.newest.keys() - self.finished - self.idle
            bounds = [self.bound(source) for source in counted]
            bound = min(bounds) if bounds else max(t for t in self.newest.values() if t is not None)
            self.watermark_ms = max(self.watermark_ms, bound)
            if first[0] > self.watermark_ms:
                return None
        self.waiting.remove(first)
        return first


_times = st.lists(st.integers(0, 30), min_size=1, max_size=6)
_steps = st.lists(
    st.tuples(st.just("push"), st.integers(0, 3), _times, st.integers(1, 40))
    | st.tuples(
        st.sampled_from(["pop", "drain", "idle", "finish", "add"]),
        st.integers(0, 3),
        st.just([]),
        st.just(0),
    ),
    max_size=40,
)


class Both:
    """A merge and its twin with the same input; `returned` and `expected` are their outputs."""

    def __init__(self, lateness_ms: int, bytes_max: int) -> None:
        self.merge: Merge[int] = Merge(lateness_ms=lateness_ms, bytes_max=bytes_max)
        self.twin = Twin(lateness_ms, bytes_max)
        self.sources: list[MergeSource[int]] = []
        self.times: list[list[int]] = []
        self.returned: list[tuple[Row, bool]] = []
        self.expected: list[tuple[Row, bool]] = []
        self.add()

    def add(self) -> None:
        if len(self.sources) < 4:
            self.twin.newest[len(self.sources)] = None
            self.sources.append(self.merge.add(f"s{len(self.sources)}"))

    def push(self, number: int, times: list[int], nbytes: int) -> None:
        if not self.sources[number].is_finished:
            self.merge.push(self.sources[number], len(self.times), times, nbytes)
            self.twin.push(number, times, nbytes)
            self.times.append(times)

    def pop(self) -> bool:
        span = self.merge.pop()
        if span is None:
            assert self.twin.pop() is None
            return False
        times, ordinal = self.times[span.batch], self.sources.index(span.source)
        for slot in span.slots:
            self.returned.append(((times[slot], ordinal, span.batch, slot), span.is_late))
            row = self.twin.pop()
            assert row is not None
            self.expected.append((row, row in self.twin.late))
        return True

    def drain(self) -> None:
        while self.pop():
            pass

    def idle(self, number: int) -> None:
        self.merge.note_idle(self.sources[number])
        self.twin.idle.add(number)

    def finish(self, number: int) -> None:
        self.merge.finish(self.sources[number])
        self.twin.finished.add(number)

    def check_buffers(self) -> None:
        twin, numbers = self.twin, range(len(self.sources))
        assert [self.merge.wants(s) for s in self.sources] == [twin.wants(n) for n in numbers]
        assert self.merge.nbytes == sum(twin.held(n) for n in numbers)
        for number in numbers:
            left = [row[2:] for row in twin.waiting if row[1] == number]
            assert self.sources[number].unread() == min(left, default=None)


@settings(deadline=None)
@given(_steps, st.integers(0, 20), st.integers(1, 200), st.booleans())
def test_the_merge_equals_sorting_with_a_watermark(
    steps: list[tuple[str, int, list[int], int]], lateness_ms: int, bytes_max: int, is_ended: bool
) -> None:
    both = Both(lateness_ms, bytes_max)
    for kind, number, times, nbytes in steps:
        number %= len(both.sources)
        if kind == "push":
            both.push(number, sorted(times) if nbytes % 2 else times, nbytes)
        elif kind in ("idle", "finish"):
            getattr(both, kind)(number)
        else:
            getattr(both, kind)()
        both.check_buffers()
    if is_ended:
        for number in range(len(both.sources)):
            both.finish(number)
        both.drain()
        assert both.merge.is_finished
        rows = {row for row, _ in both.returned}
        assert len(both.returned) == sum(map(len, both.times)) == len(rows)
    assert both.returned == both.expected
    assert both.merge.watermark_ms == both.twin.watermark_ms
    on_time = [row[0] for row, is_late in both.returned if not is_late]
    assert on_time == sorted(on_time), "records that are not late must be in order"


@settings(deadline=None)
@given(
    st.lists(st.lists(_times, max_size=12), min_size=1, max_size=4),
    st.integers(0, 100),
    st.integers(1, 100),
)
def test_pushing_only_wanted_sources_returns_all_in_bounded_memory(
    feeds: list[list[list[int]]], lateness_ms: int, bytes_max: int
) -> None:
    merge: Merge[int] = Merge(lateness_ms=lateness_ms, bytes_max=bytes_max)
    sources = [merge.add(f"s{number}") for number in range(len(feeds))]
    total, taken, batches = sum(len(times) for feed in feeds for times in feed), 0, 0
    while not merge.is_finished:
        span = merge.pop()
        if span is not None:
            taken += len(span.slots)
            continue
        moved = False
        for source, feed in zip(sources, feeds, strict=True):
            if merge.wants(source):
                moved = True
                if feed:
                    merge.push(source, batches, feed.pop(0), 10)
                    batches += 1
                else:
                    merge.finish(source)
        assert moved or merge.is_finished, "no source may deliver, yet no record is returned"
        assert merge.nbytes <= bytes_max + 10 * len(sources)
    assert taken == total


def take(merge: Merge[str]) -> list[tuple[str, list[int], bool]]:
    spans = []
    while (span := merge.pop()) is not None:
        spans.append((span.batch, list(span.slots), span.is_late))
    return spans


def test_nothing_is_returned_before_every_stream_has_delivered() -> None:
    merge: Merge[str] = Merge(lateness_ms=0, bytes_max=1000)
    a, b = merge.add("a"), merge.add("b")
    merge.push(a, "a1", [1, 2, 9], 1)
    assert take(merge) == []
    merge.push(b, "b1", [2, 5], 1)
    assert take(merge) == [("a1", [0, 1], False), ("b1", [0, 1], False)]
    assert merge.watermark_ms == 5
    merge.note_idle(b)
    assert take(merge) == [("a1", [2], False)]


def test_a_stream_that_was_idle_is_late_but_not_lost() -> None:
    merge: Merge[str] = Merge(lateness_ms=0, bytes_max=1000)
    a, b = merge.add("a"), merge.add("b")
    merge.note_idle(b)
    merge.push(a, "a1", [10, 20], 1)
    assert take(merge) == [("a1", [0, 1], False)]
    merge.push(b, "b1", [15, 30], 1)
    assert take(merge) == [("b1", [0], True)]
    merge.push(a, "a2", [30], 1)
    assert take(merge) == [("a2", [0], False), ("b1", [1], False)]


def test_lateness_puts_a_stream_in_order() -> None:
    merge: Merge[str] = Merge(lateness_ms=10, bytes_max=1000)
    a = merge.add("a")
    merge.push(a, "a1", [20, 14, 25], 1)
    assert take(merge) == [("a1", [1], False)]
    merge.push(a, "a2", [14, 15, 40], 1)
    assert take(merge) == [
        ("a2", [0], True), ("a2", [1], False), ("a1", [0, 2], False)
    ]  # fmt: skip
    assert merge.watermark_ms == 30


def test_a_stream_far_ahead_has_to_wait() -> None:
    merge: Merge[str] = Merge(lateness_ms=0, bytes_max=100)
    ahead, behind = merge.add("ahead"), merge.add("behind")
    merge.push(ahead, "x", [1000], 30)
    assert merge.wants(ahead)
    merge.push(ahead, "y", [2000], 30)
    assert not merge.wants(ahead)
    assert merge.wants(behind)
    merge.push(behind, "z", [1], 90)
    assert take(merge) == [("z", [0], False)]
    assert (merge.wants(ahead), merge.wants(behind)) == (False, True)
    merge.finish(behind)
    assert merge.wants(ahead), "its share must be the whole buffer"


def test_lateness_that_needs_more_memory_than_the_bound_is_not_waited_for() -> None:
    merge: Merge[str] = Merge(lateness_ms=1000, bytes_max=100)
    only = merge.add("only")
    merge.push(only, "x", [1, 3], 50)
    assert take(merge) == []
    merge.push(only, "y", [2, 4], 60)
    assert take(merge) == [("x", [0], False), ("y", [0], False), ("x", [1], False)]
    assert merge.wants(only)
    assert merge.watermark_ms == 3


def test_invalid_bounds_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="lateness_ms is -1"):
        Merge(lateness_ms=-1, bytes_max=1)
    with pytest.raises(InvalidArgument, match="bytes_max is 0"):
        Merge(lateness_ms=0, bytes_max=0)
