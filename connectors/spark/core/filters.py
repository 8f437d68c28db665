"""Derives bounds on time, sequence and stream from the filters of a query.

Bounds exclude segments and entries that hold no matching row. Spark filters the rows inside them,
except where a bound is exact. Must never exclude a row that matches: a filter that is not
understood bounds nothing. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stream.core.entry.format import EntryHeader
    from stream.core.metadata.streams import Segment

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_LOW, _HIGH = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class BoundSpan:
    """The integers from `low` to `high`, both included; empty if `low` is above `high`."""

    low: int = _LOW
    high: int = _HIGH

    def __and__(self, other: BoundSpan) -> BoundSpan:
        return BoundSpan(max(self.low, other.low), min(self.high, other.high))

    def meets(self, low: int, high: int) -> bool:
        """Returns whether the span and low..high have a number in common."""
        return max(low, self.low) <= min(high, self.high)

    @property
    def is_bounded(self) -> bool:
        return self.low != _LOW or self.high != _HIGH


ALL = BoundSpan()


@dataclass(frozen=True, slots=True)
class Comparison:
    """One pushed filter: `column` `operator` `values`, without classes of Spark.

    Operators: "=", "<", "<=", ">", ">=", "in", "prefix", "not null".
    """

    column: str
    operator: str
    values: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds within which rows can match. Times are milliseconds.

    `streams` are names "ns/stream" and `partitions` are numbers; None means any. If
    `has_event_time` is set, rows without an event time do not match.
    """

    sequence: BoundSpan = ALL
    append_ms: BoundSpan = ALL
    event_ms: BoundSpan = ALL
    has_event_time: bool = False
    streams: frozenset[str] | None = None
    stream_prefix: str = ""
    partitions: frozenset[int] | None = None

    @property
    def bounds_entries(self) -> bool:
        """Whether the entries of a segment must be checked one by one."""
        return (
            self.sequence.is_bounded
            or self.append_ms.is_bounded
            or self.event_ms.is_bounded
            or self.has_event_time
        )

    def may_be_in_stream(self, stream: str, partition: int) -> bool:
        if self.streams is not None and stream not in self.streams:
            return False
        if not stream.startswith(self.stream_prefix):
            return False
        return self.partitions is None or partition in self.partitions

    def may_be_in_segment(self, segment: Segment) -> bool:
        """Returns whether a row of the segment may match, judged by its metadata.

        Values that the metadata does not have exclude nothing.
        """
        if segment.is_open:
            return self.sequence.meets(segment.first_sequence, _HIGH)
        if not self.sequence.meets(segment.first_sequence, segment.next_sequence - 1):
            return False
        if segment.first_time_ms >= 0 and not self.append_ms.meets(
            segment.first_time_ms, segment.last_time_ms
        ):
            return False
        # A segment that was sealed by recovery has -1, too: its times are not known.
        is_known = segment.event_min_ms != -1 or segment.event_max_ms != -1
        return not is_known or self.event_ms.meets(segment.event_min_ms, segment.event_max_ms)

    def may_be_in_entry(self, header: EntryHeader, append_time_ms: int) -> bool:
        """Returns whether a row of the entry may match by time; `slots` checks sequences."""
        if not self.append_ms.meets(append_time_ms, append_time_ms):
            return False
        if not self.has_event_time:
            return True
        return header.has_event_times and self.event_ms.meets(
            header.event_time_min_ms, header.event_time_max_ms
        )

    def slots(self, first_sequence: int, count: int) -> tuple[int, int]:
        """Returns the first slot in bounds, and the one after the last, of an entry's records.

        The records are numbered from `first_sequence`.
        """
        first = min(max(0, self.sequence.low - first_sequence), count)
        return first, max(first, min(count, self.sequence.high - first_sequence + 1))


NO_BOUNDS = Bounds()
_NOTHING = BoundSpan(1, 0)


def narrow(bounds: Bounds, comparison: Comparison) -> tuple[Bounds, bool]:
    """Returns `bounds` narrowed by one filter, and whether they express it exactly.

    An exact filter need not be evaluated again.
    """
    column, values = comparison.column, comparison.values
    if column in ("event_time", "append_time"):
        return _narrow_time(bounds, comparison), False
    if column == "sequence" and all(_is_whole(value) for value in values):
        span = _span(comparison, values)
        if span is None:
            return bounds, False
        is_exact = comparison.operator != "in" or len(set(values)) <= 1
        return replace(bounds, sequence=bounds.sequence & span), is_exact
    if column == "partition" and all(_is_whole(value) for value in values):
        if comparison.operator not in ("=", "in"):
            return bounds, False
        known = _intersection(bounds.partitions, values)
        return replace(bounds, partitions=known), True
    if column == "stream" and all(isinstance(value, str) for value in values):
        if comparison.operator in ("=", "in"):
            return replace(bounds, streams=_intersection(bounds.streams, values)), True
        if comparison.operator == "prefix":
            prefix = max(bounds.stream_prefix, values[0], key=len)
            if prefix.startswith(bounds.stream_prefix) and prefix.startswith(values[0]):
                return replace(bounds, stream_prefix=prefix), True
            return replace(bounds, streams=frozenset()), True  # no name begins with both
    # These columns are never null.
    return bounds, comparison.operator == "not null" and column not in ("key",)


def bounds_of(comparisons: Iterable[Comparison]) -> Bounds:
    """Returns the bounds that follow from all these filters together."""
    bounds = NO_BOUNDS
    for comparison in comparisons:
        bounds, _ = narrow(bounds, comparison)
    return bounds


def _narrow_time(bounds: Bounds, comparison: Comparison) -> Bounds:
    is_event = comparison.column == "event_time"
    if comparison.operator == "not null":
        return replace(bounds, has_event_time=bounds.has_event_time or is_event)
    times = [_us_of(value) for value in comparison.values]
    span_us = None
    if all(time is not None for time in times):
        span_us = _span(comparison, tuple(time for time in times if time is not None))
    if span_us is None:
        return bounds
    # Rounded outwards to milliseconds: rows have no finer times.
    low = span_us.low if span_us.low == _LOW else span_us.low // 1000
    high = span_us.high if span_us.high == _HIGH else -(-span_us.high // 1000)
    span = BoundSpan(low, high)
    if is_event:
        return replace(bounds, event_ms=bounds.event_ms & span, has_event_time=True)
    return replace(bounds, append_ms=bounds.append_ms & span)


def _span(comparison: Comparison, values: tuple[int, ...]) -> BoundSpan | None:
    match comparison.operator:
        case "=":
            return BoundSpan(values[0], values[0])
        case "<":
            return BoundSpan(high=values[0] - 1)
        case "<=":
            return BoundSpan(high=values[0])
        case ">":
            return BoundSpan(low=values[0] + 1)
        case ">=":
            return BoundSpan(low=values[0])
        case "in":
            return BoundSpan(min(values), max(values)) if values else _NOTHING
    return None


def _intersection(known: frozenset[Any] | None, values: Collection[Any]) -> frozenset[Any]:
    return frozenset(values) if known is None else known & frozenset(values)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _us_of(value: object) -> int | None:
    """Returns a timestamp with a zone as microseconds; None for any other value."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // _US
