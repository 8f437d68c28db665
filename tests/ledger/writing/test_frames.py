"""Frames of adds are converted to v3's and taken out one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.entry import Digest, DigestType, master_key
from ledger.wire import v2, v3
from ledger.wire.messages import AddRequest, Buffer
from ledger.writing import frames as add_frames

DIGEST = Digest(DigestType.CRC32C)
KEY = master_key(b"")


def pieces_of(payloads: list[bytes]) -> list[Buffer]:
    """Returns start and payload of each frame, as a writer collects them."""
    pieces: list[Buffer] = []
    for entry_id, payload in enumerate(payloads):
        header, _ = DIGEST.encode_entry(7, entry_id, entry_id - 1, 0, payload)
        start = v2.ADD_START.pack(24 + len(header) + len(payload), v2.ADD_HEADER, KEY)
        pieces += [start + header, payload]
    return pieces


@pytest.mark.parametrize("version", [2, 3])
@given(st.lists(st.binary(max_size=300), max_size=12))
def test_every_frame_is_found_by_the_number_of_later_ones(
    version: int, payloads: list[bytes]
) -> None:
    pieces = pieces_of(payloads)
    codec = v3 if version == 3 else v2
    frames = add_frames.to_v3(pieces, is_sync_deferred=False) if version == 3 else b"".join(pieces)
    bounds = add_frames.bounds_of(frames)
    taken = [add_frames.before_last(frames, bounds, count) for count in range(len(payloads))]
    assert b"".join(frame or b"" for frame in reversed(taken)) == frames
    for after, frame in enumerate(taken):
        assert frame is not None
        body = codec.decode_request(frame[4:]).body
        assert isinstance(body, AddRequest)
        assert body.entry_id == len(payloads) - 1 - after
    assert add_frames.before_last(frames, bounds, len(payloads)) is None
    assert add_frames.before_last(frames, bounds, -1) is None
