"""The frames of a writer's adds: payloads, the heads of v2 frames, and v3 frames made from them.

The writer makes v2 frames in place (`ledger.writing.writer`), for which `FrameHeads` caches the
bytes before the entry, equal for all payloads of one size. The functions on whole frames are not
hot.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ledger.connection.pending_calls import WRITER_TXN_ID
from ledger.core.entry import DIGEST_BYTES, HEADER_BYTES
from ledger.core.entry import FRAME_ROOM_BYTES as FRAME_ROOM_BYTES
from ledger.errors import InvalidArgument
from ledger.wire import v2, v3
from ledger.wire.messages import FRAME_BYTES_MAX, AddRequest, Buffer, Request

ENTRY_PAYLOAD_BYTES_MAX = FRAME_BYTES_MAX - 500
"""Largest payload of one entry: a frame less 500 bytes, enough for the headers of both versions."""

ADD_START_BYTES = v2.ADD_BYTES_MIN
"""Bytes of an add's frame before the digest: length, packet header, key, the entry's header."""
assert ADD_START_BYTES + max(DIGEST_BYTES.values()) == FRAME_ROOM_BYTES, "room for any digest"


def as_bytes(payload: Buffer) -> memoryview:
    """Returns a view of any buffer other than bytes, counted in bytes. Raises InvalidArgument."""
    try:
        return memoryview(payload).cast("B")
    except TypeError as error:
        raise InvalidArgument(
            f"a payload must be bytes or a contiguous buffer, not {type(payload).__name__}: {error}"
        ) from error


def check_size(size: int) -> None:
    """Raises InvalidArgument for a payload larger than an entry can hold."""
    if size > ENTRY_PAYLOAD_BYTES_MAX:
        raise InvalidArgument(f"an entry of {size} bytes; the largest is {ENTRY_PAYLOAD_BYTES_MAX}")


_LENGTH = struct.Struct(">i").unpack_from
_IDS = struct.Struct(">qq").unpack_from
_KEY_AT = 8


@dataclass(slots=True)
class SentFrames:
    """Frames of one class of entries that were handed to the connections together."""

    entry_class: int
    last_entry_id: int
    frames: Buffer
    bytes_held: int
    """Their size as the window counts it, which in v3 is not quite that of the frames."""

    bounds: list[int] | None = None
    """Where each frame begins; computed when a bookie refuses one of them."""


def to_v3(pieces: Sequence[Buffer], *, is_sync_deferred: bool) -> bytes:
    """Returns the same adds in v3. `pieces` are start and payload of each v2 frame, in turn."""
    frames: list[bytes] = []
    for i in range(0, len(pieces), 2):
        start = pieces[i]
        ledger_id, entry_id = _IDS(start, v2.ADD_ENTRY_AT)
        request = AddRequest(
            ledger_id,
            entry_id,
            bytes(start[_KEY_AT : v2.ADD_ENTRY_AT]),
            b"".join((start[v2.ADD_ENTRY_AT :], pieces[i + 1])),
            is_deferred_sync=is_sync_deferred,
        )
        frames.append(v3.encode_request(Request(3, WRITER_TXN_ID, request)))
    return b"".join(frames)


def bounds_of(frames: Buffer) -> list[int]:
    """Returns where each frame begins, and finally where the last one ends, by their lengths."""
    bounds = [0]
    while bounds[-1] < len(frames):
        bounds.append(bounds[-1] + 4 + _LENGTH(frames, bounds[-1])[0])
    return bounds


def before_last(frames: Buffer, bounds: list[int], count: int) -> Buffer | None:
    """Returns the frame that is followed by `count` others; None if there is no such frame.

    `bounds` is the result of `bounds_of`: an overloaded bookie may refuse thousands of the frames.
    """
    wanted = len(bounds) - 2 - count
    return frames[bounds[wanted] : bounds[wanted + 1]] if count >= 0 <= wanted else None


def digest_in(frame: Buffer, digest_bytes: int, wire_version: int) -> bytes:
    """Returns the digest in an add's frame; of a v2 frame the start is enough."""
    start = v2.ADD_ENTRY_AT + HEADER_BYTES
    if wire_version == 3:
        request = v3.decode_request(memoryview(frame)[4:]).body
        assert isinstance(request, AddRequest), f"{type(request).__name__} is no add"
        frame, start = request.body, HEADER_BYTES
    return bytes(frame[start : start + digest_bytes])


_ADD_HEADER = (v2.ADD_HEADER | v2.RANGE_ACKS | v2.NO_POLLS).to_bytes(4, "big")
_SIZES_MAX = 4096
_FIXED_BYTES = 4 + 20 + 32
"""Packet header, master key, header of the entry; the digest and the payload follow."""


def sent_frame(sent: Iterable[SentFrames], entry_id: int, stride: int) -> Buffer | None:
    """Returns the frame of an entry that is in `sent`; None if it is not."""
    for frames in sent:
        if frames.entry_class == entry_id % stride and entry_id <= frames.last_entry_id:
            # The frames hold all entries of the class, up to the last one.
            after = (frames.last_entry_id - entry_id) // stride
            if frames.bounds is None:
                frames.bounds = bounds_of(frames.frames)
            return before_last(frames.frames, frames.bounds, after)
    return None


class FrameHeads(dict[int, bytes]):
    """The bytes of a frame before the entry, by size of the payload; made on first use. Raises
    InvalidArgument for a payload larger than an entry can hold."""

    __slots__ = ("_digest_bytes", "_key")

    def __init__(self, digest_bytes: int, key: bytes) -> None:
        super().__init__()
        self._digest_bytes = digest_bytes
        self._key = key

    def __missing__(self, size: int) -> bytes:
        check_size(size)
        if len(self) >= _SIZES_MAX:
            self.clear()
        length = _FIXED_BYTES + self._digest_bytes + size
        head = self[size] = length.to_bytes(4, "big") + _ADD_HEADER + self._key
        return head
