"""Adds of a writer as whole frames: v2's made into v3's, and one frame taken out of many.

Only for what is not hot: writers make v2 frames in place (`ledger.writer`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ledger.calls import WRITER_TXN_ID
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


def before_last(frames: bytes, count: int) -> bytes | None:
    """The frame with `count` others after it, out of whole frames one after the other; None if
    there are not so many. A busy bookie may refuse thousands: only lengths are looked at."""
    begins: list[int] = []
    at = 0
    while at < len(frames):
        begins.append(at)
        at += 4 + _LENGTH(frames, at)[0]
    begins.append(at)
    wanted = len(begins) - 2 - count
    return frames[begins[wanted] : begins[wanted + 1]] if count >= 0 <= wanted else None
