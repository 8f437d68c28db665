"""The receive buffer: every frame whole, whatever the pieces, and memory for what has come."""

from __future__ import annotations

import random
import struct

import pytest

from ledger.errors import RemoteProtocolError
from ledger.wire.connection import (
    SEGMENT_BYTES_FIRST,
    SEGMENT_BYTES_MIN,
    ReceiveBuffer,
)

FRAME_BYTES_MAX = 5 << 20


def frame_of(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def receive(buffer: ReceiveBuffer, data: bytes) -> None:
    while data:
        space = buffer.space()
        assert space
        count = min(len(space), len(data))
        space[:count] = data[:count]
        buffer.received(count)
        data = data[count:]


def test_nothing_is_allocated_before_something_can_be_received() -> None:
    buffer = ReceiveBuffer(FRAME_BYTES_MAX, first_bytes=SEGMENT_BYTES_FIRST)
    assert len(buffer.segment) == 0
    buffer.space()
    assert len(buffer.segment) == SEGMENT_BYTES_FIRST


def test_an_announced_length_takes_no_memory() -> None:
    buffer = ReceiveBuffer(FRAME_BYTES_MAX, first_bytes=SEGMENT_BYTES_FIRST)
    receive(buffer, struct.pack(">i", FRAME_BYTES_MAX) + b"x")
    buffer.space()
    assert len(buffer.segment) == SEGMENT_BYTES_FIRST


def test_a_buffer_grows_with_what_has_come() -> None:
    buffer = ReceiveBuffer(FRAME_BYTES_MAX, first_bytes=SEGMENT_BYTES_FIRST)
    come, copied = 4, 0
    receive(buffer, struct.pack(">i", FRAME_BYTES_MAX))
    while come < 4 + FRAME_BYTES_MAX:
        before = buffer.generation
        piece = min(1000, 4 + FRAME_BYTES_MAX - come)
        receive(buffer, bytes(piece))
        come += piece
        copied += come * (buffer.generation - before)
        assert len(buffer.segment) <= max(SEGMENT_BYTES_MIN, 4 * come)
    assert buffer.next_frame() is not None
    assert copied < 2 * FRAME_BYTES_MAX
    assert len(buffer.segment) == 4 + FRAME_BYTES_MAX


def test_after_a_refusal_of_memory_space_can_be_asked_for_again() -> None:
    is_short = False

    def new_segment(size: int, least: int) -> bytearray:
        if is_short and size > SEGMENT_BYTES_MIN:
            raise MemoryError
        return bytearray(size)

    buffer = ReceiveBuffer(FRAME_BYTES_MAX, new_segment=new_segment)
    frame = frame_of(bytes(range(256)) * 1000)
    is_short = True
    received = 0
    while True:
        try:
            space = buffer.space()
        except MemoryError:
            break
        space[:100] = frame[received : received + 100]
        buffer.received(100)
        received += 100
    assert received <= SEGMENT_BYTES_MIN
    is_short = False
    receive(buffer, frame[received:])
    found = buffer.next_frame()
    assert found is not None
    assert bytes(found) == frame[4:]


@pytest.mark.parametrize("length", [-1, 0, 3, FRAME_BYTES_MAX + 1, 2**31 - 1])
def test_a_wrong_length_is_refused(length: int) -> None:
    buffer = ReceiveBuffer(FRAME_BYTES_MAX)
    receive(buffer, struct.pack(">i", length))
    with pytest.raises(RemoteProtocolError, match="allowed are 4 to"):
        buffer.next_frame()


@pytest.mark.parametrize("seed", range(30))
def test_any_frames_in_any_pieces_come_out_whole(seed: int) -> None:
    """Against the naive twin: all bytes in one string. Pinned segments are never overwritten."""
    rng = random.Random(seed)
    bodies = [
        rng.randbytes(rng.choice((4, 100, 5000, 70_000, 300_000)))
        for _ in range(rng.randint(1, 25))
    ]
    data = b"".join(map(frame_of, bodies))
    buffer = ReceiveBuffer(
        400_000,
        segment_bytes_max=rng.choice((SEGMENT_BYTES_MIN, 1 << 20)),
        first_bytes=rng.choice((SEGMENT_BYTES_FIRST, SEGMENT_BYTES_MIN)),
    )
    found: list[bytes] = []
    pinned: list[tuple[memoryview, bytes]] = []
    at = 0
    while at < len(data):
        piece = data[at : at + rng.choice((1, 1000, 16_384, 100_000))][: len(buffer.space())]
        buffer.space()[: len(piece)] = piece
        buffer.received(len(piece))
        at += len(piece)
        while (frame := buffer.next_frame()) is not None:
            found.append(bytes(frame))
            if rng.random() < 0.5:
                buffer.is_pinned = True
            if buffer.is_pinned:
                pinned.append((frame, found[-1]))
    assert found == bodies
    assert not buffer.has_unfinished
    for view, body in pinned:
        assert bytes(view) == body
