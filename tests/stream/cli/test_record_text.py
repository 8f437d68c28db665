"""Formats print the columns of a record as they are stored, and JSON prints all of them."""

from __future__ import annotations

import json
import os

import pytest

from ledger.errors import InvalidArgument
from stream.cli.record_text import FORMAT_FIELDS, json_line, record_text
from stream.core.entry.records import NULL, Record
from stream.core.position import Position
from tests.tidy.checkout import ROOT

RECORD = Record(
    Position(1, 2, 3), 7, b"v\xff\n", b"key", -86_400_000, 1_700_000_000_001,
    (("a", b"1"), ("b", b"")),
)  # fmt: skip
BARE = Record(Position(1, 2, 4), 8, b"", None, None, 1_700_000_000_001)
FAR = BARE._replace(event_time_ms=1_700_000_000_000_000_000)


@pytest.mark.parametrize(
    ("form", "full", "bare"),
    [
        ("%v", b"v\xff\n", b""), ("%k", b"key", b""), ("%h", b"a=1,b=", b""),
        ("%p", b"1:2:3", b"1:2:4"), ("%s", b"7", b"8"),
        ("%t", b"2023-11-14T22:13:20.001Z", b"2023-11-14T22:13:20.001Z"),
        ("%T", b"1700000000001", b"1700000000001"),
        ("%e", b"1969-12-31T00:00:00.000Z", b""), ("%E", b"-86400000", b""),
        ("%V", b"3", b"0"), ("%K", b"3", b"-1"), ("%n", b"demo/s", b"demo/s"), ("%%", b"%", b"%"),
    ],
)  # fmt: skip
def test_every_field_of_a_format(form: str, full: bytes, bare: bytes) -> None:
    assert form in FORMAT_FIELDS
    text = record_text("value", f"[{form}]")
    assert text(RECORD, "demo/s") == b"[" + full + b"]"
    assert text(BARE, "demo/s") == b"[" + bare + b"]"


def test_the_format_has_no_other_fields() -> None:
    assert set(FORMAT_FIELDS) == {f"%{letter}" for letter in "vkhpstTeEVKn%"}


def test_every_field_is_documented() -> None:
    document = (ROOT / "docs/streams.md").read_text(encoding="utf-8")
    for field, meaning in FORMAT_FIELDS.items():
        assert f"| `{field}` | {meaning} |" in document


def test_a_null_value_is_none_in_json_and_empty_elsewhere() -> None:
    gone = RECORD._replace(value=NULL, headers=(("a", NULL), ("b", b"")))
    made = json.loads(json_line(gone, "demo/s"))
    assert made["value"] is None
    assert made["headers"] == [["a", None], ["b", ""]]
    assert record_text("value", "%v|%V|%h")(gone, "demo/s") == b"|-1|a=,b="
    assert json.loads(json_line(BARE, "demo/s"))["value"] == ""


def test_a_time_of_no_calendar_is_printed_as_a_number() -> None:
    assert record_text("value", "%e %E")(FAR, "n/s") == b" ".join([b"1700000000000000000"] * 2)


def test_a_format_has_escapes_and_any_bytes_and_adds_nothing() -> None:
    given = os.fsdecode(b"\xff") + "ü" + r"\t\n\r\0\x1f\\"
    assert record_text("value", given)(RECORD, "n/s") == b"\xff\xc3\xbc\t\n\r\0\x1f\\"
    assert record_text("value", "")(RECORD, "n/s") == b""


@pytest.mark.parametrize("form", ["%q", "%", "\\", "\\q", "\\x1", "\\xgg"])
def test_a_wrong_format_is_refused_with_what_is_known(form: str) -> None:
    with pytest.raises(InvalidArgument, match=r"--format: there is no .*use"):
        record_text("value", form)


def test_values_are_lines_as_they_are_or_in_base64() -> None:
    assert record_text("value", None)(RECORD, "n/s") == b"v\xff\n\n"
    assert record_text("base64", None)(RECORD, "n/s") == b"dv8K\n"
    assert record_text("base64", "%k %v %h %s")(RECORD, "n/s") == b"a2V5 dv8K a=MQ==,b= 7"


def test_json_names_the_stream_of_several() -> None:
    assert json.loads(json_line(RECORD, "s"))["stream"] == "s"
    assert "stream" not in json.loads(json_line(RECORD, None))
    assert json.loads(json_line(FAR, None))["event_time"] == 1_700_000_000_000_000_000
