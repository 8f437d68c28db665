"""Every number of 64 bits is a time that can be shown, and what is shown can be parsed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ledger.cli.output import time_of
from ledger.core.times import CALENDAR_MS, milliseconds_of, parse_time_ms, time_text


@given(st.integers(-(1 << 63), (1 << 63) - 1))
@example(253402300799999)
@example(253402300800000)
@example(2147483648001)
@example(-1)
@example(-62135596800000)
@example(-62135596800001)
def test_every_time_is_shown_and_a_shown_time_is_parsed_exactly(milliseconds: int) -> None:
    shown = time_text(milliseconds)
    assert isinstance(shown, str) == (milliseconds in CALENDAR_MS)
    assert (parse_time_ms(shown) if isinstance(shown, str) else shown) == milliseconds


@given(st.integers(CALENDAR_MS.start, CALENDAR_MS.stop - 1))
def test_a_time_of_the_calendar_keeps_its_milliseconds(milliseconds: int) -> None:
    assert parse_time_ms(str(time_text(milliseconds))) == milliseconds


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (-86_400_000, "1969-12-31T00:00:00.000Z"),
        (2_147_483_648_001, "2038-01-19T03:14:08.001Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, 253_402_300_800_000),
        (1_700_000_000_000_000_000, 1_700_000_000_000_000_000),
    ],
)
def test_times_are_shown_as_text_where_a_calendar_has_them(
    milliseconds: int, text: str | int
) -> None:
    assert time_text(milliseconds) == text


def test_a_moment_without_a_zone_is_in_utc_and_parts_of_milliseconds_are_rounded_down() -> None:
    assert milliseconds_of(datetime(1970, 1, 1, 0, 0, 0, 1999)) == 1
    assert milliseconds_of(datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)) == -1
    assert milliseconds_of(datetime(1970, 1, 1, tzinfo=timezone(timedelta(hours=1)))) == -3_600_000


def test_a_time_of_metadata_that_was_never_set_is_not_shown() -> None:
    assert time_of(None) is None
    assert time_of(-1) is None
    assert time_of(1 << 62) == 1 << 62
