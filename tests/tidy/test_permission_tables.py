"""The tables of docs/permissions.md are those that bookies enforce."""

from __future__ import annotations

from tools.docs.permissions import DOCUMENT, document


def test_the_tables_are_up_to_date() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert document(text) == text, "run `make docs`"
