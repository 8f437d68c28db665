"""Lines, JSON and whole inputs become records of exactly their bytes, or are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.cli.lines import Input, opened
from ledger.errors import InvalidArgument
from stream.cli.inputs import (
    NewRecord,
    RecordInput,
    RecordTemplate,
    parse_header,
    parse_json_record,
)
from stream.cli.record_text import json_of
from stream.core.entry.format import RECORD_BYTES_MAX
from stream.core.entry.records import Record
from stream.core.position import Position

some_bytes = st.binary(max_size=30) | st.text(max_size=10).map(str.encode)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)


@given(
    some_bytes,
    st.none() | some_bytes,
    st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
    st.lists(st.tuples(names, some_bytes), max_size=3).map(tuple),
)
def test_what_read_prints_as_json_becomes_the_same_record(
    value: bytes, key: bytes | None, time: int | None, headers: tuple[tuple[str, bytes], ...]
) -> None:
    record = Record(Position(1, 2, 3), 7, value, key, time, 1_700_000_000_000, headers)
    line = json.dumps(json_of(record, "clicks"), ensure_ascii=False).encode()
    assert parse_json_record(line) == NewRecord(value, key, time, headers or None)


def test_json_may_be_short_and_headers_an_object() -> None:
    assert parse_json_record(b'{"value": ""}') == NewRecord(b"")
    assert parse_json_record(b" \r") is None
    found = parse_json_record(b'{"value": "x", "headers": {"a": "1", "b": {"base64": "/w=="}}}')
    assert found == NewRecord(b"x", headers=(("a", b"1"), ("b", b"\xff")))
    found = parse_json_record(b'{"value": "x", "event_time": "1969-12-31", "key": null}')
    assert found == NewRecord(b"x", None, -86_400_000)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (b"plain", "not JSON"), (b"\xff", "not JSON"), (b"[" * 100_000, "not JSON"),
        (b"7", "JSON object"), (b"{}", "'value' is missing"),
        (b'{"value": "x", "keys": "y"}', "unknown field 'keys'"),
        (b'{"value": null}', "value null"), (b'{"value": 7}', "value 7"),
        (b'{"value": {"base64": "?"}}', "value"), (b'{"value": {"hex": ""}}', "value"),
        (b'{"value": "\\ud800"}', "value"), (b'{"value": "", "key": []}', "key"),
        (b'{"value": "", "event_time": "noon"}', "event_time"),
        (b'{"value": "", "event_time": 1.5}', "event_time"),
        (b'{"value": "", "event_time": true}', "event_time"),
        (b'{"value": "", "headers": ["a"]}', "headers"),
        (b'{"value": "", "headers": {"a": null}}', "header 'a'"),
        (b'{"value": "", "headers": {"\\ud800": ""}}', "not UTF-8"),
    ],
)  # fmt: skip
def test_json_that_is_no_record_is_refused_with_the_cause(line: bytes, cause: str) -> None:
    with pytest.raises(InvalidArgument, match=cause):
        parse_json_record(line)


def test_a_line_is_a_value_with_what_all_records_of_the_append_have() -> None:
    headers = (("a", b"1"),)
    template = RecordTemplate(key=b"k", event_time_ms=-1, headers=headers)
    assert template.record(b"a\xff\r") == NewRecord(b"a\xff\r", b"k", -1, headers)
    split = RecordTemplate(key_separator=b"\xa7")
    assert split.record("a§b".encode("latin-1")) == NewRecord(b"b", b"a")
    assert split.record(b"ab") == NewRecord(b"ab")


def test_headers_of_the_command_line_have_any_bytes_as_values() -> None:
    assert parse_header("a=b=c") == ("a", b"b=c")
    assert parse_header("a=") == ("a", b"")
    assert parse_header(os.fsdecode(b"a=\xff")) == ("a", b"\xff")
    for wrong in ("a", "=b", os.fsdecode(b"\xff=b")):
        with pytest.raises(InvalidArgument):
            parse_header(wrong)


async def read_all(path: Path, records: RecordInput) -> list[bytes]:
    return [line async for lines in records.batches() for line in lines]


async def test_a_raw_input_is_one_value(tmp_path: Path) -> None:
    path = tmp_path / "in"
    for data in (b"", b"a\nb\n\x00\xff", b"x" * RECORD_BYTES_MAX):
        path.write_bytes(data)
        with opened(path) as source:
            assert await read_all(path, RecordInput(source, "raw")) == [data]
    path.write_bytes(b"x" * (RECORD_BYTES_MAX + 1))
    with opened(path) as source, pytest.raises(InvalidArgument, match="the most"):
        await read_all(path, RecordInput(source, "raw"))


async def test_the_lines_before_one_that_is_too_long_are_records(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"a\nb\n" + b"x" * (RECORD_BYTES_MAX + 1) + b"\nc\n")
    with opened(path) as source:
        batches = RecordInput(source).batches()
        assert await anext(batches) == [b"a", b"b"]
        with pytest.raises(InvalidArgument, match="line 3 is longer"):
            await anext(batches)


def test_what_cannot_be_read_is_refused_by_name_before_it_is_used(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as refused, opened(tmp_path):
        pass
    assert refused.value.filename == str(tmp_path)
    with pytest.raises(FileNotFoundError) as missing, opened(tmp_path / "none"):
        pass
    assert missing.value.filename == str(tmp_path / "none")
    with pytest.raises(InvalidArgument, match="no such option"), opened(Path("--jsn")):
        pass


async def test_an_input_that_fails_later_is_named(tmp_path: Path) -> None:
    source = Input(os.open(tmp_path, os.O_RDONLY), Path("name"))
    try:
        with pytest.raises(IsADirectoryError) as failed:
            await source.read()
    finally:
        os.close(source.descriptor)
    assert failed.value.filename == "name"
