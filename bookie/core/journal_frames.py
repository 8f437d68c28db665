"""The frames in a journal group: adds as they were received, and two kinds of our own.

A frame is int32 length of the rest, int32 header, body. An add is a v2 ADD request, byte for byte.
Frames of our own have 0x7F where a v2 header has its version, so no request that the server accepts
can be one. Must never skip an unknown frame: it may be a fence.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ledger.errors import FinalError

Buffer = bytes | bytearray | memoryview

MASTER_KEY_BYTES: Final = 20

# Header ints without their low 16 bits (flags of an add; zero in ours). May never change.
_ADD: Final = 0x0201
_FENCE: Final = 0x7F01
_EXPLICIT_LAC: Final = 0x7F02

_OUTER: Final = struct.Struct(">iI")
_ADD_BYTES_MIN: Final = 8 + MASTER_KEY_BYTES + 16  # up to and including the entry id
_FENCE_BODY: Final = struct.Struct(">q20s")
_EXPLICIT_LAC_BODY: Final = struct.Struct(">q20sq")


class FrameCorrupt(FinalError):
    """A group with a right checksum holds bytes that are no frame: a bug, or a newer version."""


@dataclass(frozen=True, slots=True)
class FenceFrame:
    """The ledger is fenced. It carries the key, because it may be the first frame of the ledger."""

    ledger_id: int
    master_key: bytes


@dataclass(frozen=True, slots=True)
class ExplicitLacFrame:
    """The writer's LAC without an entry. `packet` is what it sent, including the digest."""

    ledger_id: int
    master_key: bytes
    lac: int
    packet: bytes


def encode_fence(ledger_id: int, master_key: bytes) -> bytes:
    assert len(master_key) == MASTER_KEY_BYTES, f"a master key of {len(master_key)} bytes"
    return _framed(_FENCE, _FENCE_BODY.pack(ledger_id, master_key))


def encode_explicit_lac(ledger_id: int, master_key: bytes, lac: int, packet: Buffer) -> bytes:
    assert len(master_key) == MASTER_KEY_BYTES, f"a master key of {len(master_key)} bytes"
    return _framed(_EXPLICIT_LAC, _EXPLICIT_LAC_BODY.pack(ledger_id, master_key, lac), packet)


def _framed(kind: int, *parts: Buffer) -> bytes:
    return b"".join([_OUTER.pack(4 + sum(map(len, parts)), kind << 16), *parts])


def iterate_frames(payload: memoryview) -> Iterator[memoryview]:
    """Yields the frames of a group's payload, each beginning with its length. Raises
    FrameCorrupt."""
    position = 0
    while position < len(payload):
        size = 0
        if len(payload) - position >= _OUTER.size:
            size = 4 + int(_OUTER.unpack_from(payload, position)[0])
        if size < _OUTER.size or position + size > len(payload):
            raise FrameCorrupt(
                f"journal frame at byte {position} of a group of {len(payload)} bytes says it "
                f"has {size} bytes"
            )
        yield payload[position : position + size]
        position += size


def decode_frame(frame: Buffer) -> FenceFrame | ExplicitLacFrame | None:
    """Returns a frame of our own, or None for an add. Raises FrameCorrupt for anything else."""
    if len(frame) >= _OUTER.size:
        length, header = _OUTER.unpack_from(frame)
        body = memoryview(frame)[_OUTER.size :]
        kind = header >> 16
        if length + 4 == len(frame):
            if kind == _ADD and len(frame) >= _ADD_BYTES_MIN:
                return None
            if kind == _FENCE and len(body) == _FENCE_BODY.size:
                return FenceFrame(*_FENCE_BODY.unpack(body))
            if kind == _EXPLICIT_LAC and len(body) >= _EXPLICIT_LAC_BODY.size:
                ledger_id, master_key, lac = _EXPLICIT_LAC_BODY.unpack_from(body)
                packet = bytes(body[_EXPLICIT_LAC_BODY.size :])
                return ExplicitLacFrame(ledger_id, master_key, lac, packet)
        raise FrameCorrupt(
            f"journal frame of {len(frame)} bytes with length {length} and header "
            f"{header:#010x}: not known to this version"
        )
    raise FrameCorrupt(f"journal frame of {len(frame)} bytes is too short")
