"""The API reference says what the code says."""

from __future__ import annotations

from tools.docs.api import DOCUMENT, document


def test_the_api_reference_is_up_to_date() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(), "run `make docs`"
