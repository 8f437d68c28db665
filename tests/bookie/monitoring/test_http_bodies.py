"""Answers in JSON hold nothing that controls a terminal, and are the same documents."""

from __future__ import annotations

import json

from bookie.monitoring.http_bodies import EscapedJson


def test_an_answer_is_escaped_and_the_same_document() -> None:
    hostile = "\x1b[2J\x9b31m\u202etxt\u2028\x7f\u6771"
    answer = EscapedJson({"error": hostile, hostile: [1.5, None]})
    text = bytes(answer.body).decode()
    assert text.isprintable()
    assert "\u6771" in text
    assert json.loads(text) == {"error": hostile, hostile: [1.5, None]}
    assert answer.headers["content-type"] == "application/json"
