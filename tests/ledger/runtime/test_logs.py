"""One style of log lines: fields that differ from text, in both formats."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from ledger.errors import InvalidArgument
from ledger.runtime.logs import (
    OF_PEER,
    PEER_LINES_MAX,
    PEER_LINES_S,
    JsonFormatter,
    MessageFormatter,
    PeerLineLimit,
    TextFormatter,
    open_log,
)


def record(message: str, *args: object, error: BaseException | None = None) -> logging.LogRecord:
    info = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("bookie.x", logging.WARNING, "x.py", 1, message, args, info)


@pytest.mark.parametrize(
    ("message", "args", "text", "event", "fields"),
    [
        (
            "disk is full directory=%s free_bytes=%d",
            ("/a b", 7),
            'disk is full directory="/a b" free_bytes=7',
            "disk is full",
            {"directory": "/a b", "free_bytes": "7"},
        ),
        ("replay_s=%.3f", (1.23456,), "replay_s=1.235", "", {"replay_s": "1.235"}),
        ("plain", (), "plain", "plain", {}),
        ("100%% of %s", ("all",), "100% of all", "100% of all", {}),
        (
            "failed cause=%s",
            ('no "x"\nnext',),
            'failed cause="no \\"x\\"\\nnext"',
            "failed",
            {"cause": 'no "x"\nnext'},
        ),
        ("address=%s:%d up", ("h", 1), "address=h:1 up", ":1 up", {"address": "h"}),
        ("empty=%s", ("",), 'empty=""', "", {"empty": ""}),
        ("a\nb %s", ("c\nd",), "a b c d", "a b c d", {}),
    ],
)
def test_fields_are_quoted_and_named(
    message: str, args: tuple[object, ...], text: str, event: str, fields: dict[str, str]
) -> None:
    one = record(message, *args)
    line = TextFormatter().format(one)
    assert line.split(" ", 3)[1:] == ["WARNING", "bookie.x", text]
    assert line.endswith(text)
    assert "\n" not in line
    assert line[10] == "T"
    assert line.split()[0].endswith("Z")
    found = json.loads(JsonFormatter().format(one))
    assert found.pop("event") == event
    assert (found.pop("level"), found.pop("logger")) == ("warning", "bookie.x")
    assert found.pop("time") == line.split()[0]
    assert found == fields


def test_a_field_never_hides_a_part_of_the_line() -> None:
    found = json.loads(JsonFormatter().format(record("x level=%s", "high")))
    assert (found["level"], found["field_level"]) == ("warning", "high")


def test_tracebacks_are_in_both_formats() -> None:
    try:
        raise ValueError("why")
    except ValueError as error:
        one = record("closed", error=error)
    assert "ValueError: why" in TextFormatter().format(one)
    found = json.loads(JsonFormatter().format(one))
    assert "ValueError: why" in found["traceback"]


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"LEDGERSTREAM_LOG_LEVEL": "loud"}, "is 'loud', use one of debug, info"),
        ({"LEDGERSTREAM_LOG_FORMAT": "xml"}, "is 'xml', use one of text, json"),
        ({"LEDGERSTREAM_LOG_FILE": "/nowhere/x.log"}, "No such file or directory. Cure: change"),
    ],
)
def test_wrong_settings_are_refused(variables: dict[str, str], said: str) -> None:
    before = sys.stderr.fileno
    with pytest.raises(InvalidArgument, match=said):
        open_log(variables)
    assert sys.stderr.fileno == before


def test_a_log_line_holds_nothing_that_controls_a_terminal() -> None:
    hostile = "\x1b]0;x\x07\x9b\u202e\u2028\r"
    try:
        raise ValueError(hostile)
    except ValueError as error:
        one = record(f"closed {hostile} key=%s plain=%s", f"{hostile} y", "\x9b", error=error)
    text = TextFormatter().format(one)
    shown = r"\x1b]0;x\x07\x9b\u202e\u2028\r"
    assert f"closed {shown} key=" in text
    assert r'key="\u001b]0;x\u0007\u009b\u202e\u2028\r y" plain="\u009b"' in text
    assert f"ValueError: {shown}" in text
    data = JsonFormatter().format(one)
    assert all(one == "\n" or one.isprintable() for one in text + data)
    assert json.loads(data)["key"] == f"{hostile} y"


def of_peer(message: str, peer: int, created: float) -> logging.LogRecord:
    one = record(message, peer)
    one.__dict__.update(OF_PEER)
    one.created = created
    return one


def test_peers_cause_a_few_lines_of_each_kind_at_a_time() -> None:
    limit = PeerLineLimit()
    for begun_at in (1000.0, 1000.0 + PEER_LINES_S, 500.0):  # a clock may be set back
        written = [limit.filter(of_peer("refused peer=%d", n, begun_at)) for n in range(1000)]
        assert sum(written) == PEER_LINES_MAX
        assert all(written[:PEER_LINES_MAX])
        assert limit.filter(of_peer("left peer=%d", 1, begun_at)), "another kind of line"
        assert all(limit.filter(record("disk is full", 1)) for _ in range(1000))


def test_the_next_line_says_how_many_were_left_out() -> None:
    limit = PeerLineLimit()
    for n in range(PEER_LINES_MAX + 7):
        limit.filter(of_peer("refused peer=%d", n, 10.0))
    lines = [of_peer("refused peer=%d", n, 10.0 + PEER_LINES_S) for n in range(2)]
    assert all(map(limit.filter, lines))
    assert [TextFormatter().format(one).partition("refused ")[2] for one in lines] == [
        "peer=0 left_out=7", "peer=1",
    ]  # fmt: skip
    assert json.loads(JsonFormatter().format(lines[0]))["left_out"] == "7"


def test_a_main_program_limits_the_lines_of_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[logging.Handler] = []
    monkeypatch.setattr(logging, "basicConfig", lambda **given: handlers.extend(given["handlers"]))
    open_log({})
    assert [type(one) for one in handlers[0].filters] == [PeerLineLimit]


def test_a_message_alone_has_no_codes_that_control_a_terminal() -> None:
    try:
        raise ValueError("\x1b[2J")
    except ValueError as error:
        one = record("user_ignored user=%s", "a\x1b[2J\nb", error=error)
    message, *traceback = MessageFormatter().format(one).split("\n")
    assert message == r"user_ignored user=a\x1b[2J b"
    assert traceback[-1] == r"ValueError: \x1b[2J"
