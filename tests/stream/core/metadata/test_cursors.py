"""Metadata of cursors: encoding, decoding and legal changes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import MetadataCorrupt
from stream.core.metadata.cursors import CursorMetadata, decode_cursor, encode_cursor
from stream.core.position import Position

NUMBERS = st.integers(0, (1 << 63) - 1)
POSITIONS = st.builds(Position, NUMBERS, NUMBERS, st.integers(0, (1 << 31) - 1))
CURSORS = st.builds(
    CursorMetadata,
    name=st.just("billing"),
    stream=st.text(max_size=20),
    stream_created_ms=NUMBERS,
    position=POSITIONS,
    changed_ms=NUMBERS,
    token=st.text(max_size=20),
    holder=st.text(max_size=20),
    epoch=NUMBERS,
    is_deleted=st.booleans(),
)
ONE = CursorMetadata(
    name="billing",
    stream="clicks#2",
    stream_created_ms=1_700_000_000_000,
    position=Position(3, 120, 7),
    changed_ms=1_700_000_000_500,
    token="8f00",
    holder="worker-1",
    epoch=4,
)


@given(CURSORS)
def test_a_cursor_is_read_back_as_it_was(cursor: CursorMetadata) -> None:
    assert decode_cursor("billing", encode_cursor(cursor)) == cursor


def test_the_bytes_stay_as_they_are() -> None:
    assert encode_cursor(ONE) == (
        b'{"changed_ms":1700000000500,"epoch":4,"holder":"worker-1","is_deleted":false,'
        b'"kind":"cursor","name":"billing","position":"3:120:7","stream":"clicks#2",'
        b'"stream_created_ms":1700000000000,"token":"8f00","version":1}'
    )


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"kind": "stream"}, "not a cursor"),
        ({"version": 2}, "this release reads 1"),
        ({"position": "3:120"}, "need segment:entry:slot"),
        ({"position": 7}, "not text"),
        ({"epoch": -1}, "not a whole number"),
        ({"epoch": True}, "not a whole number"),
        ({"is_deleted": "no"}, "neither true nor false"),
        ({"name": "other"}, "it is cursor 'other'"),
        ({"novelty": 1}, "unknown fields"),
    ],
)
def test_an_invalid_cursor_is_refused(changes: dict[str, object], cause: str) -> None:
    document = json.loads(encode_cursor(ONE)) | changes
    with pytest.raises(MetadataCorrupt, match=cause):
        decode_cursor("billing", json.dumps(document).encode())


@given(st.binary(max_size=50))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(MetadataCorrupt):
        decode_cursor("billing", data)


def test_a_cursor_never_moves_back_by_itself() -> None:
    back = Position(3, 120, 6)
    with pytest.raises(AssertionError, match="cannot go back"):
        ONE.committed(back, "t", 1)
    with pytest.raises(AssertionError, match="cannot go back"):
        ONE.released(back, 1)
    assert ONE.moved(back, 1).position == back


def test_each_holder_has_an_epoch_of_its_own() -> None:
    free = ONE.released(ONE.position, 1)
    assert (free.holder, free.token, free.epoch) == ("", "", 4)
    next_one = free.acquired("worker-2", "77", 2)
    assert (next_one.holder, next_one.token, next_one.epoch) == ("worker-2", "77", 5)
