"""Lines of any bytes are returned unchanged, however the input is split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.cli.lines import LineSplitter
from ledger.cli.output import text_or_base64
from ledger.errors import InvalidArgument


@given(st.binary(max_size=200).map(lambda b: b.replace(b"a", b"\n")), st.integers(1, 20))
def test_lines_are_the_same_however_the_input_is_split(data: bytes, step: int) -> None:
    splitter = LineSplitter(1000)
    lines: list[bytes] = []
    for start in range(0, len(data), step):
        lines += splitter.feed(data[start : start + step])
    lines += splitter.end()
    expected = data.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert lines == expected


@pytest.mark.parametrize("step", [1, 3, 100])
def test_a_line_over_the_limit_is_refused_with_its_number(step: int) -> None:
    data = b"one\ntwo\n" + b"x" * 11 + b"\n"
    splitter = LineSplitter(10)

    def feed_all() -> None:
        for start in range(0, len(data), step):
            splitter.feed(data[start : start + step])
            splitter.check()

    with pytest.raises(InvalidArgument, match="line 3 is longer than 10 bytes"):
        feed_all()


def test_bytes_that_are_not_text_are_kept_in_json() -> None:
    assert text_or_base64("grüß".encode()) == "grüß"
    assert text_or_base64(b"\xff\x00") == {"base64": "/wA="}
