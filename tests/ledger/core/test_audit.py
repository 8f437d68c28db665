"""The lines of an audit log are a format that others parse: each is one line of JSON."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.audit import LIST_MAX, TEXT_MAX, audit_line
from ledger.core.times import parse_time_ms
from tests.tidy.checkout import ROOT

NOON_MS = 1_769_860_800_000


def test_a_line_has_time_source_action_and_outcome_first_and_leaves_out_what_is_unknown() -> None:
    line = audit_line(
        NOON_MS, ("bookie", "b1:3181"), "write", "allowed",
        user="ann", peer="10.0.0.7:51234", ledger=7, cause=None,
    )  # fmt: skip
    assert line == (
        b'{"time": "2026-01-31T12:00:00.000Z", "bookie": "b1:3181", "action": "write",'
        b' "outcome": "allowed", "user": "ann", "peer": "10.0.0.7:51234", "ledger": 7}\n'
    )


def test_what_peers_have_written_is_cut_off_and_cannot_make_a_line_of_its_own() -> None:
    hostile = '"}\n{"action": "write"}\x1b[2J\u202e'
    line = audit_line(
        NOON_MS, ("bookie", "b"), "http", "refused", request=hostile, cause="x" * 9999
    )
    assert line.count(b"\n") == 1
    assert line.isascii()
    found = json.loads(line)
    assert found["request"] == hostile
    assert found["cause"] == "x" * TEXT_MAX + "..."
    many = audit_line(0, ("host", "h"), "a", "ok", ledgers=list(range(9999)))
    assert json.loads(many)["ledgers"] == list(range(LIST_MAX))


@given(st.text(), st.text(), st.integers(-(1 << 63), (1 << 63) - 1))
def test_any_text_and_number_comes_back(user: str, cause: str, number: int) -> None:
    line = audit_line(
        number, ("bookie", "b"), "read", "refused", user=user, cause=cause, ledger=number
    )
    assert line.splitlines(keepends=True) == [line]
    found = json.loads(line)
    assert found["user"] == user[:TEXT_MAX] + ("..." if len(user) > TEXT_MAX else "")
    assert found["ledger"] == number


DOCUMENT = (ROOT / "docs" / "security.md").read_text()


@pytest.mark.parametrize("line", re.findall(r"^\{.*\}$", DOCUMENT, re.M))
def test_the_lines_in_the_document_are_those_that_are_written(line: str) -> None:
    """They are golden: other programs were written by them."""
    fields = json.loads(line)
    source = "bookie" if "bookie" in fields else "host"
    time_ms = parse_time_ms(fields.pop("time"))
    where = (source, fields.pop(source))
    action, outcome = fields.pop("action"), fields.pop("outcome")
    assert audit_line(time_ms, where, action, outcome, **fields) == f"{line}\n".encode()
    for name in fields:
        assert re.search(rf"^\|.*`{name}`.* \|", DOCUMENT, re.M), f"{name} is not explained"
