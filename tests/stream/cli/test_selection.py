"""Records are selected by times, keys and patterns, and a read ends where nothing more can be."""

from __future__ import annotations

import os

import pytest

from ledger.errors import InvalidArgument
from stream.cli.selection import SelectOption, StartOption
from stream.core.entry.encoder import encode
from stream.core.entry.records import Record, decode
from stream.core.position import (
    EARLIEST,
    FromEnd,
    FromEventTime,
    FromSequence,
    FromTime,
    Position,
)


def record(number: int, value: bytes = b"", key: bytes | None = None) -> Record:
    """Returns record `number` of a stream, appended at 1000 * number ms, with half that event time
    if it is even."""
    event_ms = None if number % 2 else 500 * number
    return Record(Position(1, number, 0), number, value, key, event_ms, 1000 * number)


def numbers(option: SelectOption) -> list[int]:
    return [r.sequence for r in option.selection().of([record(n) for n in range(6)])]


@pytest.mark.parametrize(
    ("until", "selected"),
    [
        ("1970-01-01T00:00:03Z", [0, 1, 2]),
        ("time:1970-01-01T00:00:02.001", [0, 1, 2]),
        ("event-time:1970-01-01T00:00:02", [0, 1, 2]),
        ("seq:4", [0, 1, 2, 3]),
        ("1:2:0", [0, 1]),
        ("now", [0, 1, 2, 3, 4, 5]),
    ],
)
def test_records_before_the_end_are_selected(until: str, selected: list[int]) -> None:
    assert numbers(SelectOption(until=until)) == selected


def test_a_read_is_over_where_its_end_is() -> None:
    def over(until: str) -> bool:
        payload = encode([b"x"], first_sequence=4, append_time_ms=4000, event_times=[0])
        batch = decode(payload, segment=1, entry=4)
        return SelectOption(until=until).selection().is_over(batch)

    assert over("1970-01-01T00:00:04")
    assert not over("1970-01-01T00:00:04.001")
    assert over("seq:4")
    assert not over("seq:5")
    assert over("1:4:0")
    assert not over("1:4:1")
    assert not over("event-time:1969-01-01"), "event times may go back"


def test_records_match_by_key_and_by_pattern() -> None:
    records = [record(0, b"gr\xc3\xbcn", b"a"), record(1, b"\xff", b""), record(2, b"a\nb")]

    def selected(**options: object) -> list[int]:
        option = SelectOption(**options)  # type: ignore[arg-type]
        return [found.sequence for found in option.selection().of(records)]

    assert selected(key=("a",)) == [0]
    assert selected(key=("a", "")) == [0, 1]
    assert selected(grep="^gr.n$") == [0]
    assert selected(grep="[üö]") == [0]
    assert selected(grep=os.fsdecode(b"\xff")) == [1]
    assert selected(grep="(?m)^b") == [2]
    assert selected(grep="b", key=("a",)) == []
    assert selected() == [0, 1, 2]


def test_wrong_selections_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="--grep"):
        SelectOption(grep="(").selection()
    for until in ("latest", "end:5", "cursor:a", "soon"):
        with pytest.raises(InvalidArgument, match="--until"):
            SelectOption(until=until).selection()


def test_a_read_begins_in_one_way() -> None:
    assert StartOption().first(EARLIEST) is EARLIEST
    assert StartOption(start="seq:5").first(EARLIEST) == FromSequence(5)
    assert StartOption(start="event-time:1970-01-01").first(EARLIEST) == FromEventTime(0)
    assert StartOption(since="1970-01-01").first(EARLIEST) == FromTime(0)
    assert StartOption(last=3).first(EARLIEST) == FromEnd(3)
    with pytest.raises(InvalidArgument, match="one of them"):
        StartOption(since="1h", last=3).first(EARLIEST)
    for since in ("latest", "seq:5", "soon"):
        with pytest.raises(InvalidArgument, match="--since"):
            StartOption(since=since).first(EARLIEST)
