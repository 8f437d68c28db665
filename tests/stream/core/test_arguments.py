"""Arguments as applications give them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from ledger.core.times import CALENDAR_MS
from ledger.errors import InvalidArgument
from stream.core.arguments import columns_of, header_pairs, to_duration_ms, to_ms
from stream.core.position import FromEventTime, FromTime

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        (5, 5),
        (-1, -1),
        (10**18, 10**18),
        (NOON, 1_772_366_400_000),
        (NOON.astimezone(timezone(timedelta(hours=5))), 1_772_366_400_000),
        (NOON.astimezone().replace(tzinfo=None), 1_772_366_400_000),  # local, as in Python
        (datetime(1969, 12, 31, tzinfo=UTC), -86_400_000),
        (datetime(1, 1, 1, tzinfo=UTC), -62_135_596_800_000),
        (datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), 253_402_300_799_999),
        (datetime(2300, 1, 1, 0, 0, 0, 1999, tzinfo=UTC), 10_413_792_000_001),
    ],
)
def test_times_are_exact_milliseconds(time: int | datetime, expected: int) -> None:
    assert to_ms(time) == expected
    assert FromTime(time).append_time_ms == FromEventTime(time).event_time_ms == expected


@pytest.mark.parametrize("hours", [-23, 0, 23])
@pytest.mark.parametrize("end", [datetime.min, datetime.max])
def test_the_ends_of_the_calendar_are_times_in_every_zone(end: datetime, hours: int) -> None:
    assert to_ms(end.replace(tzinfo=timezone(timedelta(hours=hours)))) in range(
        CALENDAR_MS.start - 86_400_000, CALENDAR_MS.stop + 86_400_000
    )
    assert abs(to_ms(end) - to_ms(end.replace(tzinfo=UTC))) <= 86_400_000


@pytest.mark.parametrize("time", [1.5, "2026-01-01", None, True, b"1"])
def test_anything_else_is_no_time(time: int) -> None:
    with pytest.raises(InvalidArgument, match="is not a time: give milliseconds"):
        FromTime(time)


def test_durations_are_numbers_texts_or_timedeltas() -> None:
    assert [to_duration_ms(each) for each in (5, "7d", "1h30m", timedelta(seconds=2))] == [
        5, 604_800_000, 5_400_000, 2000,
    ]  # fmt: skip


def test_columns_may_be_iterators() -> None:
    values, keys, times, headers = columns_of(
        (b"%d" % n for n in range(2)), iter([b"k", None]), (NOON, 3), iter([{"a": b"1"}, None])
    )
    assert (list(values), list(keys or ()), list(times or ())) == (
        [b"0", b"1"], [b"k", None], [1_772_366_400_000, 3],
    )  # fmt: skip
    assert headers == [(("a", b"1"),), None]
    assert columns_of([b"x"], None, None) == ([b"x"], None, None, None)


def test_headers_of_one_record_are_not_those_of_many() -> None:
    with pytest.raises(InvalidArgument, match="one item per value"):
        columns_of([b"x"], None, None, {"a": b"1"})  # type: ignore[dict-item]


def test_headers_may_be_a_mapping() -> None:
    assert header_pairs({"a": b"1", "b": b"2"}) == (("a", b"1"), ("b", b"2"))
    assert header_pairs([("a", b"1"), ("a", b"2")]) == (("a", b"1"), ("a", b"2"))
