"""Cookies are read and written as Apache's bookies read and write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import InvalidArgument, MetadataCorrupt
from ledger.metastore.cookie import Cookie, decode_cookie, encode_cookie

COOKIE = Cookie(
    bookie_id="10.0.0.1:3181",
    journal_directories=("/j1", "/j2"),
    ledger_directories=("/l1", "/l2"),
    instance_id="6a1f",
)
TEXT = (
    b"5\n"
    b'bookieHost: "10.0.0.1:3181"\n'
    b'journalDir: "/j1,/j2"\n'
    b'ledgerDirs: "2\\t/l1\\t/l2"\n'
    b'instanceId: "6a1f"\n'
)


def test_the_text_is_apaches() -> None:
    assert encode_cookie(COOKIE) == TEXT
    assert decode_cookie(TEXT) == COOKIE


def test_version_four_is_read_in_the_same_way() -> None:
    assert decode_cookie(b"4" + TEXT[1:]) == COOKIE


def test_version_three_has_plain_lines_and_no_instance() -> None:
    read = decode_cookie(b"3\n10.0.0.1:3181\n/j1\n1\t/l1\n")
    assert read == Cookie(
        bookie_id="10.0.0.1:3181", journal_directories=("/j1",), ledger_directories=("/l1",)
    )


DIRECTORIES = st.lists(
    st.text(st.characters(exclude_characters=",\t\n", exclude_categories=["Cs"]), min_size=1),
    min_size=1,
    max_size=3,
).map(tuple)


@given(DIRECTORIES, DIRECTORIES, DIRECTORIES | st.just(()))
def test_any_directories_are_read_back(
    journal: tuple[str, ...], ledgers: tuple[str, ...], index: tuple[str, ...]
) -> None:
    cookie = Cookie(
        bookie_id="b",
        journal_directories=journal,
        ledger_directories=ledgers,
        index_directories=index,
    )
    assert decode_cookie(encode_cookie(cookie)) == cookie


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"five\n",
        b"2\nold\n",
        b"6\nnew\n",
        b"5\nbookieHost: 7\n",
        b'5\nbookieHost: "b"\n',
        TEXT.replace(b'"2\\t', b'"3\\t'),
        TEXT + b'colour: "blue"\n',
        b"3\nonly one line\n",
        b"\xff\xfe",
    ],
)
def test_damaged_text_is_corrupt(data: bytes) -> None:
    with pytest.raises(MetadataCorrupt, match="cookie"):
        decode_cookie(data)


@pytest.mark.parametrize("directory", ["", "/a,b", "/a\tb", "/a\nb"])
def test_ambiguous_directories_are_refused(directory: str) -> None:
    with pytest.raises(InvalidArgument):
        Cookie(bookie_id="b", journal_directories=(directory,), ledger_directories=("/l",))
