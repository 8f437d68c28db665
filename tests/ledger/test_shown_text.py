"""Text that is shown: nothing in it controls a terminal, misleads or is invisible."""

from __future__ import annotations

import json
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.shown_text import escaped_json, shown_address, shown_bytes, shown_text

HOSTILE = "\x1b]0;title\x07\x9b31m\u202etxt.exe\u2066\u200b\u2028\x7f\r\x00\U000e0041"
_FORMATS_THAT_ARE_SEEN = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2"
"""Signs of Arabic and Syriac numbers and the like, which Unicode counts among the formats."""


HIDDEN = st.characters(categories=["Cc", "Cf", "Zl", "Zp"])


def is_hidden(character: str) -> bool:
    """The twin: by the category of Unicode, instead of by ranges."""
    category = unicodedata.category(character)
    return category in ("Cc", "Cs", "Zl", "Zp") or (
        category == "Cf"
        and character not in _FORMATS_THAT_ARE_SEEN
        and not 0x110BD <= ord(character) <= 0x1343F  # signs of Kaithi and of hieroglyphs
    )


def test_no_character_that_is_hidden_is_shown() -> None:
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    assert not [hex(ord(each)) for each in shown_text(everything) if is_hidden(each)]
    assert shown_text("Zürich 東京\u3000🎉\xa0é") == "Zürich 東京\u3000🎉\xa0é"


def test_the_escapes_name_the_characters() -> None:
    assert shown_text(HOSTILE) == (
        r"\x1b]0;title\x07\x9b31m\u202etxt.exe\u2066\u200b\u2028\x7f\r\x00\U000e0041"
    )
    assert shown_text("a\tb\nc") == r"a\tb\nc"
    assert shown_text("not\udcffutf8 \ud800") == r"not\xffutf8 \ud800"
    assert shown_bytes(b"\x1b[2J \xff \x9b \xe2\x80\xae \xc2\x9b \xc3\xa9") == (
        rb"\x1b[2J \xff \x9b \u202e \x9b " + "é".encode()
    )


@given(
    st.text(st.characters(exclude_categories=["Cs"]))
    | st.text(st.characters(categories=["Cc", "Cf", "Zl", "Zp"]))
)
def test_escaped_json_is_parsed_to_the_same(text: str) -> None:
    shown = escaped_json(json.dumps({text: [text]}, ensure_ascii=False))
    assert json.loads(shown) == {text: [text]}
    assert not any(map(is_hidden, shown))
    shown.encode()


@pytest.mark.parametrize("text", ["", "plain", "ä", "back\\slash"])
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert shown_text(text) == text
    assert shown_bytes(text.encode()) == text.encode()


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("zk://h:1,[::1]:2/ledgers", None),
        ("zk://h1:1,h2/team@x/ledgers", None),
        ("sqlite:///home/me@x/cluster.db", None),
        ("zk://me:pass@h:1/ledgers", "zk://h:1/ledgers"),
        ("zk://me:pa/s@s@h:1/ledgers", "zk://h:1/ledgers"),
        ("http://me:pass@h", "http://h"),
        ("me:pass@h:1/ledgers", "***:h:1/ledgers"),
    ],
)
def test_an_address_is_shown_without_a_user(address: str, shown: str | None) -> None:
    assert shown_address(address) == (shown or address)
