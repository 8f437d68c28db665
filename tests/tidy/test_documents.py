"""Every setting is written down, and what is written down is what the code does."""

from __future__ import annotations

from tests.tidy.configuration import DOCUMENT, document


def test_the_document_of_settings_is_up_to_date() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(), "run `make docs`"
