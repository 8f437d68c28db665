"""`--from` and NS/STREAM are parsed, and errors about invalid ones list the valid forms."""

from __future__ import annotations

import time

import pytest

from ledger.errors import InvalidArgument
from stream.cli.arguments import (
    StreamName,
    StreamNames,
    parse_event_time,
    parse_from,
    parse_stream,
    parse_streams,
)
from stream.core.position import (
    EARLIEST,
    LATEST,
    FromCursor,
    FromEnd,
    FromEventTime,
    FromSequence,
    FromTime,
    Position,
)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", EARLIEST),
        ("latest", LATEST),
        ("3:120:0", Position(3, 120, 0)),
        ("seq:0", FromSequence(0)),
        ("seq:123456789012", FromSequence(123456789012)),
        ("time:1970-01-01T00:00:01Z", FromTime(1000)),
        ("time:1970-01-01T00:00:01.5", FromTime(1500)),
        ("time:1970-01-01T01:00:00+01:00", FromTime(0)),
        ("time:1970-01-02", FromTime(86_400_000)),
        ("event-time:1970-01-01T00:00:01Z", FromEventTime(1000)),
        ("time:2038-01-19T03:14:08.001Z", FromTime(2_147_483_648_001)),
        ("time:2242-03-16T12:56:32.001Z", FromTime(8_589_934_592_001)),
        ("event-time:1969-12-31", FromEventTime(-86_400_000)),
        ("end:10", FromEnd(10)),
        ("cursor:billing", FromCursor("billing")),
    ],
)
def test_valid_starts_are_parsed(text: str, start: object) -> None:
    assert parse_from(text) == start


@pytest.mark.parametrize(
    "text",
    [
        "",
        "newest",
        "1:2",
        "seq:-1",
        "seq:x",
        "time:yesterday",
        "1:2:x",
        "end:all",
        "event-time:1",
    ],
)
def test_invalid_starts_are_refused_with_the_valid_forms(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"--from .*"):
        parse_from(text)


NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("1h", FromTime(NOW_MS - 3_600_000)),
        ("-1h30m", FromTime(NOW_MS - 5_400_000)),
        ("+5m", FromTime(NOW_MS + 300_000)),
        ("now", FromTime(NOW_MS)),
        ("2026-01-31", FromTime(1_769_817_600_000)),
        ("time:-1d", FromTime(NOW_MS - 86_400_000)),
        ("event-time:2w", FromEventTime(NOW_MS - 1_209_600_000)),
    ],
)
def test_times_may_be_relative(text: str, start: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: NOW_MS * 1_000_000)
    assert parse_from(text) == start


@pytest.mark.parametrize(
    "text", ["20260131", "1700000000000", "1hour", "h", "-", "--1h", "5 m ago"]
)
def test_a_time_that_is_neither_relative_nor_a_date_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="1h"):
        parse_from(text)


def test_event_times_may_be_milliseconds() -> None:
    assert parse_event_time("-1") == -1
    assert parse_event_time("1700000000000000000") == 1_700_000_000_000_000_000
    assert parse_event_time("1969-12-31T23:59:59.999Z") == -1
    for wrong in ("", "noon", "9223372036854775808", "999999999999d", "1.5"):
        with pytest.raises(InvalidArgument, match="--event-time"):
            parse_event_time(wrong)


def test_several_streams_must_be_in_one_namespace() -> None:
    assert parse_streams(["demo/clicks"]) == StreamNames("demo", ("clicks",))
    assert parse_streams(["demo/a", "demo/b*"]) == StreamNames("demo", ("a", "b*"))
    with pytest.raises(InvalidArgument, match="2 namespaces"):
        parse_streams(["demo/a", "other/b"])
    for wrong in ("clicks", "demo/", "/clicks", "d*/clicks", "demo/a b", "demo/a/*"):
        with pytest.raises(InvalidArgument):
            parse_streams([wrong])


def test_a_stream_is_named_with_its_namespace() -> None:
    assert parse_stream("demo/clicks") == StreamName("demo", "clicks")
    assert str(StreamName("demo", "clicks")) == "demo/clicks"
    with pytest.raises(InvalidArgument, match="like demo/clicks"):
        parse_stream("clicks")
    for wrong in ("/x", "x/", "a/b/c", "a b/c"):
        with pytest.raises(InvalidArgument):
            parse_stream(wrong)
