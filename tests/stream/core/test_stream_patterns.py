"""The streams that names and patterns select among the nodes of a namespace."""

from __future__ import annotations

import pytest

from ledger.errors import InvalidArgument
from stream.core.stream_patterns import StreamPatterns

LISTED = ["a", "b", "clicks", "clicks#0", "clicks#1", "clicks#10", "clicks#2", "clicks-x"]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("a", ["a"]),
        (["b", "a"], ["a", "b"]),
        ("none", []),
        ("clicks", ["clicks#0", "clicks#1", "clicks#2", "clicks#10"]),
        ("clicks#2", ["clicks#2"]),
        ("clicks*", ["clicks#0", "clicks#1", "clicks#2", "clicks#10", "clicks-x"]),
        ("clicks-*", ["clicks-x"]),
        ("clicks#?", ["clicks#0", "clicks#1", "clicks#2"]),
        ("[ab]", ["a", "b"]),
        (["*", "a"], ["a", "b", "clicks#0", "clicks#1", "clicks#2", "clicks#10", "clicks-x"]),
        ("CLICKS*", []),
    ],
)
def test_names_and_patterns_select_streams(wanted: str | list[str], found: list[str]) -> None:
    assert StreamPatterns(wanted).select(LISTED) == found


def test_named_streams_must_exist() -> None:
    patterns = StreamPatterns(["clicks", "views-*", "b#1"])
    assert patterns.names == ("clicks", "b#1")
    assert [patterns.is_named(name) for name in ("clicks", "clicks#7", "b#1")] == [True] * 3
    assert not any(patterns.is_named(name) for name in ("views-1", "b", "b#2"))


@pytest.mark.parametrize(
    ("wanted", "wrong"),
    [
        ([], "0 names"),
        (["a"] * 101, "101 names"),
        ("a/b", "stream name 'a/b'"),
        ("a/*", "pattern 'a/\\*'"),
        ("*" * 201, "at most 200"),
    ],
)
def test_impossible_names_are_refused(wanted: str | list[str], wrong: str) -> None:
    with pytest.raises(InvalidArgument, match=wrong):
        StreamPatterns(wanted)
