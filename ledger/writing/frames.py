"""Adds of a writer as whole frames: v2's made into v3's, and one frame taken out of many.

Only for what is not hot: writers make v2 frames in place (`ledger.writing.writer`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ledger.connection.pending_calls import WRITER_TXN_ID
from ledger.core.entry import HEADER_BYTES
from ledger.wire import v3
from ledger.wire.messages import AddRequest, Buffer, Request

_LENGTH = struct.Struct(">i").unpack_from
_IDS = struct.Struct(">qq").unpack_from
_KEY_AT = 8
_ENTRY_AT = 28


def to_v3(pieces: Sequence[Buffer], *, is_sync_deferred: bool) -> bytes:
    """The same adds in v3. `pieces` are start and payload of each v2 frame, in turn."""
    frames: list[bytes] = []
    for i in range(0, len(pieces), 2):
        start = pieces[i]
        ledger_id, entry_id = _IDS(start, _ENTRY_AT)
        request = AddRequest(
            ledger_id,
            entry_id,
            bytes(start[_KEY_AT:_ENTRY_AT]),
            b"".join((start[_ENTRY_AT:], pieces[i + 1])),
            is_deferred_sync=is_sync_deferred,
        )
        frames.append(v3.encode_request(Request(3, WRITER_TXN_ID, request)))
    return b"".join(frames)


def bounds_of(frames: Buffer) -> list[int]:
    """Where each of the frames begins, and at last where they end. Only lengths are looked at."""
    bounds = [0]
    while bounds[-1] < len(frames):
        bounds.append(bounds[-1] + 4 + _LENGTH(frames, bounds[-1])[0])
    return bounds


def before_last(frames: Buffer, bounds: list[int], count: int) -> Buffer | None:
    """The frame with `count` others after it; None if there are not so many.

    `bounds` are those of `bounds_of`: a busy bookie may refuse thousands of the same frames.
    """
    wanted = len(bounds) - 2 - count
    return frames[bounds[wanted] : bounds[wanted + 1]] if count >= 0 <= wanted else None


def digest_in(frame: Buffer, digest_bytes: int, wire_version: int) -> bytes:
    """The digest stored with the entry in an add's frame; of a v2 frame its start will do."""
    start = _ENTRY_AT + HEADER_BYTES
    if wire_version == 3:
        request = v3.decode_request(memoryview(frame)[4:]).body
        assert isinstance(request, AddRequest), f"{type(request).__name__} is no add"
        frame, start = request.body, HEADER_BYTES
    return bytes(frame[start : start + digest_bytes])
