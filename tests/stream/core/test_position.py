"""Positions and starts: their order, their text form, and the errors for invalid texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import InvalidArgument
from stream.core.names import check_name
from stream.core.position import (
    EARLIEST,
    LATEST,
    NUMBER_MAX,
    SLOT_MAX,
    FromCursor,
    FromEnd,
    FromEventTime,
    FromSequence,
    FromTime,
    Position,
    parse_start,
)

_positions = st.builds(
    Position, st.integers(0, NUMBER_MAX), st.integers(0, NUMBER_MAX), st.integers(0, SLOT_MAX)
)


@given(_positions, _positions)
def test_text_round_trip_and_order_by_segment_entry_slot(a: Position, b: Position) -> None:
    assert Position.parse(str(a)) == a
    assert (a < b) == ((a.segment, a.entry, a.slot) < (b.segment, b.entry, b.slot))
    assert a < a.after


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("1:2", "got 2 part"),
        ("1:2:3:4", "got 4 part"),
        ("x:2:3", "segment 'x'"),
        ("1:-2:3", "entry '-2'"),
        ("1:2:", "slot ''"),
        ("1:2:2147483648", "slot is over"),
        ("1:9223372036854775808:0", "entry is over"),
        ("1:2:٣", "slot"),
    ],
)
def test_an_invalid_position_is_refused_with_its_wrong_part(text: str, wrong: str) -> None:
    with pytest.raises(InvalidArgument, match=wrong):
        Position.parse(text)


def test_valid_starts_are_accepted() -> None:
    assert parse_start("earliest") is EARLIEST
    assert parse_start(" LATEST ") is LATEST
    assert parse_start("3:4:5") == Position(3, 4, 5)
    assert parse_start("sequence=7") == FromSequence(7)
    assert parse_start("time=1700000000000") == FromTime(1_700_000_000_000)
    assert parse_start("event-time=5") == FromEventTime(5)
    assert parse_start("event-time=-86400000") == FromEventTime(-86_400_000)
    assert parse_start("event-time=9223372036854775807") == FromEventTime((1 << 63) - 1)
    assert parse_start("cursor=billing") == FromCursor("billing")
    assert parse_start("end=10") == FromEnd(10)


@pytest.mark.parametrize(
    "bad",
    ["", "soon", "sequence=-1", "time=", "sequence=9223372036854775808", "end=-1", "cursor=a/b",
     "cursor=", "event-time=noon", "time=-1", "event-time=--1", "event-time=9223372036854775808"],
)  # fmt: skip
def test_an_invalid_start_is_refused(bad: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_start(bad)


@pytest.mark.parametrize("name", ["a", "A-1.b_c", "0", "x" * 200])
def test_legal_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "-x", "a/b", "ä", "a b", "a\n", "x" * 201, "a\0"])
def test_illegal_names(name: str) -> None:
    with pytest.raises(InvalidArgument):
        check_name(name)
