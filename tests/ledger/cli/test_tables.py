"""Tables: in the width of a terminal, and as tab-separated lines."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from ledger.cli.tables import Page, page_of_stdout, property_lines, row_lines

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
TERMINAL = Page(width=80, is_wide=False, has_styles=False, now=NOW)
PIPE = replace(TERMINAL, width=None)
STREAMS: list[dict[str, object]] = [
    {
        "stream": f"demo/{name}",
        "records": records,
        "sealed_bytes": nbytes,
        "created": "2026-01-28T12:00:00.000Z",
        "first_position": "1:0:0",
        "end_position": "1234:56789:0",
        "lag_seconds": 7.5,
        "holder": None,
        "epoch": 12,
    }
    for name, records, nbytes in (("clicks", 12345678, 270553174016), ("views", 3, 812))
]


def test_a_terminal_shows_the_columns_that_fit_from_the_left() -> None:
    lines, left_out = row_lines(STREAMS, "streams", TERMINAL)
    assert max(map(len, lines)) <= 80
    assert lines == [
        "streams",
        "stream        records  sealed size  created  first position  end position  lag",
        "demo/clicks  12345678      252 GiB  3 d ago  1:0:0           1234:56789:0  7 s",
        "demo/views          3        812 B  3 d ago  1:0:0           1234:56789:0  7 s",
    ]
    assert left_out == ["holder", "epoch"]


@pytest.mark.parametrize("width", [1, 10, 20, 40, 79, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    page = replace(TERMINAL, width=width)
    words: list[dict[str, object]] = [{"name": "x" * 30, "why": "a sentence of words " * 5, "n": 1}]
    for items in (STREAMS, words):
        lines, _ = row_lines(items, "t", page)
        assert max(map(len, lines[2:])) <= width
    if width >= 20:
        assert max(map(len, property_lines(words[0], "t", page))) <= width


def test_sentences_are_folded_before_columns_are_left_out() -> None:
    row: dict[str, object] = {"segment": 1, "why": "a sentence of several words " * 5, "state": "x"}
    lines, left_out = row_lines([row], "faults", TERMINAL)
    assert left_out == []
    assert len(lines) > 3
    assert " ".join(line[9:73].strip() for line in lines[2:]).startswith("a sentence of several")


def test_wide_shows_every_column_and_full_times() -> None:
    lines, left_out = row_lines(STREAMS, "streams", replace(TERMINAL, is_wide=True))
    assert left_out == []
    assert "2026-01-28T12:00:00.000Z" in lines[2]
    assert lines[1].endswith("epoch")


def test_a_pipe_gets_every_column_with_tabs_and_no_decoration() -> None:
    lines, left_out = row_lines(STREAMS, "streams", PIPE)
    assert left_out == []
    assert lines[1] == "demo/views\t3\t812 B\t3 d ago\t1:0:0\t1234:56789:0\t7 s\t-\t12"
    assert property_lines(STREAMS[1], "stream demo/views", PIPE)[:3] == [
        "stream\tdemo/views",
        "records\t3",
        "sealed size\t812 B",
    ]


def test_values_cannot_break_a_row_or_move_the_cursor() -> None:
    row: dict[str, object] = {"a": "x\ty\nz\x1b[2J", "b": "\u6f22\u5b57", "c": 1}
    [line], _ = row_lines([row], "t", PIPE)
    assert line == "x\\ty\\nz\\x1b[2J\t\u6f22\u5b57\t1"
    lines, _ = row_lines([row, {"a": "", "b": "ab", "c": 22}], "t", TERMINAL)
    assert lines[2:] == ["x\\ty\\nz\\x1b[2J  \u6f22\u5b57   1", f"{' ' * 16}ab    22"]


def test_rates_and_times_that_are_to_come() -> None:
    facts: dict[str, object] = {
        "records_per_s": 12,
        "up_s": 90.0,
        "interval_ms": 2500,
        "linger_ms": "2 (of a setting, by its name)",
        "next": "2026-01-31T14:00:00Z",
        "name": "2026-tomorrow-TZ",
        "is_compacting": False,
        "bookies": ("b1", "b2"),
        "copies": {"whole": 3},
    }
    assert [line.split("\t") for line in property_lines(facts, "t", PIPE)] == [
        ["records per s", "12"],
        ["up", "1 min 30 s"],
        ["interval", "2 s"],
        ["linger ms", "2 (of a setting, by its name)"],
        ["next", "in 2 h"],
        ["name", "2026-tomorrow-TZ"],
        ["is compacting", "no"],
        ["bookies", "b1, b2"],
        ["copies", "whole=3"],
    ]


def test_styles_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    page = page_of_stdout(is_wide=False)
    assert (page.width, page.has_styles) == (100, True)
    assert row_lines(STREAMS, "streams", page)[0][0] == "\x1b[1mstreams\x1b[0m"
    for variable, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as changed:
            changed.setenv(variable, value)
            assert not page_of_stdout(is_wide=False).has_styles
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    assert page_of_stdout(is_wide=False).width is None
    assert not page_of_stdout(is_wide=False).has_styles
