"""Compares bounds with rows filtered one by one: no matching row may be excluded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.spark.core.filters import NO_BOUNDS, Bounds, Comparison, bounds_of, narrow
from stream.core.entry.encoder import encode
from stream.core.entry.format import read_header
from stream.core.metadata.streams import Segment, SegmentEnd

Row = dict[str, Any]


def at(us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


def matches(row: Row, comparison: Comparison) -> bool:
    """Evaluates filters on one row like Spark; a comparison with null is no match."""
    value = row[comparison.column]
    if value is None:
        return False
    wanted = comparison.values
    match comparison.operator:
        case "=":
            return bool(value == wanted[0])
        case "<":
            return bool(value < wanted[0])
        case "<=":
            return bool(value <= wanted[0])
        case ">":
            return bool(value > wanted[0])
        case ">=":
            return bool(value >= wanted[0])
        case "in":
            return value in wanted
        case "prefix":
            return bool(value.startswith(wanted[0]))
    assert comparison.operator == "not null"
    return True


_ms = st.integers(-5, 40)
_times_us = st.integers(-6000, 42_000)
_ORDERED = ["=", "<", "<=", ">", ">="]
_ints = st.integers(-3, 30)


def _compared(column: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Comparison]:
    one = st.builds(lambda op, v: Comparison(column, op, (v,)), st.sampled_from(_ORDERED), values)
    many = st.builds(lambda v: Comparison(column, "in", tuple(v)), st.lists(values, max_size=3))
    return one | many | st.just(Comparison(column, "not null"))


_names = st.sampled_from(["ns/a", "ns/ab", "other/a"])
_comparisons = st.lists(
    _compared("sequence", _ints)
    | _compared("event_time", _times_us.map(at))
    | _compared("append_time", _times_us.map(at))
    | _compared("partition", st.integers(0, 3))
    | _compared("stream", _names)
    | st.builds(
        lambda v: Comparison("stream", "prefix", (v,)), st.sampled_from(["", "ns/", "ns/ab", "x"])
    )
    | _compared("value", st.binary(max_size=1)),
    max_size=4,
)


@given(
    _comparisons,
    st.integers(0, 25),
    _ms.filter(lambda ms: ms >= 0),
    st.lists(st.none() | _ms, min_size=1, max_size=6),
    _names,
    st.integers(0, 3),
)
def test_no_matching_row_is_excluded(
    comparisons: list[Comparison],
    first_sequence: int,
    append_ms: int,
    event_ms: list[int | None],
    stream: str,
    partition: int,
) -> None:
    rows: list[Row] = [
        {
            "stream": stream, "partition": partition, "sequence": first_sequence + slot,
            "append_time": at(1000 * append_ms), "value": b"v",
            "event_time": None if ms is None else at(1000 * ms),
        }
        for slot, ms in enumerate(event_ms)
    ]  # fmt: skip
    payload = encode(
        [b"v"] * len(rows), first_sequence=first_sequence, append_time_ms=append_ms,
        event_times=event_ms,
    )  # fmt: skip
    header = read_header(payload)
    known = [ms for ms in event_ms if ms is not None]
    segment = Segment(1, 1, first_sequence, 0).sealed(
        SegmentEnd(
            0, len(rows), len(payload), append_ms, append_ms,
            min(known, default=-1), max(known, default=-1),
        ),
        append_ms,
    )  # fmt: skip
    bounds = bounds_of(comparisons)
    is_read = (
        bounds.may_be_in_stream(stream, partition)
        and bounds.may_be_in_segment(segment)
        and bounds.may_be_in_entry(header, append_ms)
    )
    first, stop = bounds.slots(first_sequence, len(rows)) if is_read else (0, 0)
    wanted = [
        slot for slot, row in enumerate(rows) if all(matches(row, each) for each in comparisons)
    ]
    assert set(wanted) <= set(range(first, stop))


@given(_comparisons, st.lists(st.tuples(st.integers(0, 30), _names, st.integers(0, 3)), max_size=9))
def test_an_exact_bound_needs_no_filter(
    comparisons: list[Comparison], rows: list[tuple[int, str, int]]
) -> None:
    bounds, exact = NO_BOUNDS, []
    for each in comparisons:
        bounds, is_exact = narrow(bounds, each)
        if is_exact and each.column in ("sequence", "stream", "partition"):
            exact.append(each)
    exact_bounds = bounds_of(exact)
    for sequence, stream, partition in rows:
        row = {"sequence": sequence, "stream": stream, "partition": partition}
        first, stop = exact_bounds.slots(sequence, 1)
        is_read = exact_bounds.may_be_in_stream(stream, partition) and stop > first
        assert is_read == all(matches(row, each) for each in exact)


def test_an_unknown_filter_bounds_nothing() -> None:
    for strange in (
        Comparison("event_time", ">", (datetime(2026, 1, 1),)),
        Comparison("event_time", ">", ("2026",)),
        Comparison("sequence", ">", (1.5,)),
        Comparison("sequence", ">", (True,)),
        Comparison("partition", ">", (1,)),
        Comparison("value", "=", (b"x",)),
    ):
        assert narrow(NO_BOUNDS, strange) == (Bounds(), False), strange


@pytest.mark.parametrize("is_open", [True, False])
def test_a_segment_without_times_is_read(is_open: bool) -> None:
    segment = Segment(1, 1, 10, 0)
    if not is_open:
        segment = segment.sealed(SegmentEnd(0, 5, 100), 7)
    assert bounds_of([Comparison("event_time", "<", (at(0),))]).may_be_in_segment(segment)
    assert bounds_of([Comparison("append_time", "<", (at(0),))]).may_be_in_segment(segment)
    assert not bounds_of([Comparison("sequence", "<", (10,))]).may_be_in_segment(segment)
