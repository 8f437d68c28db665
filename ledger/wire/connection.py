"""Takes frames out of a byte stream without copying: the receive side of every connection.

Bytes are received straight into a *segment*, and frames are views into it. A bookie keeps segments
as its write cache, so received bytes must never be moved or overwritten unless the owner has
declared that the segment holds nothing it needs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from ledger.errors import RemoteProtocolError
from ledger.wire.messages import FRAME_BYTES_MAX

SEGMENT_BYTES_MIN = 64 * 1024
SEGMENT_BYTES_MAX = 4 * 1024 * 1024
RECEIVE_BYTES_MIN = 16 * 1024
"""With less free space than this at the end of a segment the next one is used."""
RECEIVE_BYTES_MAX = 512 * 1024

_LENGTH = struct.Struct(">i").unpack_from


def is_version_3(first_byte: int) -> bool:
    """Whether a frame is of v3, by the first byte of its body: 0x0A is the tag of
    `Request.header`, always first in v3. Any other value is v2's version byte, valid or not.
    """
    return first_byte == 0x0A


class ReceiveBuffer:
    """Bytes received and not yet consumed: `segment[start:end]`.

    `is_pinned`: the owner keeps offsets into this segment, so when it is full a new one is used
    instead of moving bytes inside it. The owner sets it, and notices a new segment by comparing
    `generation`.
    """

    __slots__ = (
        "end",
        "frame_bytes_max",
        "generation",
        "is_pinned",
        "new_segment",
        "segment",
        "segment_bytes_max",
        "start",
        "view",
    )

    def __init__(
        self,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        new_segment: Callable[[int], bytearray] = bytearray,
    ) -> None:
        """`new_segment` returns a buffer of about the given size, with any content."""
        self.new_segment = new_segment
        self.frame_bytes_max = frame_bytes_max
        self.segment_bytes_max = segment_bytes_max
        self.segment = bytearray(min(SEGMENT_BYTES_MIN, segment_bytes_max))
        self.view = memoryview(self.segment)
        self.start = 0
        self.end = 0
        self.is_pinned = False
        self.generation = 0

    @classmethod
    def holding(cls, frames: bytearray, frame_bytes_max: int) -> ReceiveBuffer:
        """Returns a buffer with whole frames that were received before, and no more to come."""
        buffer = cls(frame_bytes_max, segment_bytes_max=0)
        buffer.segment = frames
        buffer.view = memoryview(frames)
        buffer.end = len(frames)
        return buffer

    def space(self) -> memoryview:
        """Returns free space for the next receive, at least RECEIVE_BYTES_MIN."""
        if not self.is_pinned and self.start == self.end:
            self.start = self.end = 0
        size = len(self.segment)
        is_begun = self.end - self.start >= 4  # a frame, of which the length is known
        if size - self.end < RECEIVE_BYTES_MIN or (
            is_begun and 4 + self._checked_length() > size - self.start
        ):
            self._make_space()
        return self.view[self.end : self.end + RECEIVE_BYTES_MAX]

    def received(self, count: int) -> None:
        """Records that `count` bytes were put into the view that `space` returned."""
        self.end += count

    def next_frame(self) -> memoryview | None:
        """Consumes the next whole frame and returns its body without the length; None if there is
        none yet.

        The view is valid until the next `space`, or as long as the segment is pinned.
        Raises RemoteProtocolError for a length that is negative or above `frame_bytes_max`,
        before memory is allocated for it.
        """
        start = self.start
        if self.end - start < 4:
            return None
        length = self._checked_length()
        stop = start + 4 + length
        if stop > self.end:
            return None
        self.start = stop
        return self.view[start + 4 : stop]

    def _checked_length(self) -> int:
        length: int = _LENGTH(self.segment, self.start)[0]
        if not 4 <= length <= self.frame_bytes_max:
            raise RemoteProtocolError(
                f"frame of {length} bytes announced; allowed are 4 to {self.frame_bytes_max}"
            )
        return length

    def _make_space(self) -> None:
        """Makes space for the frame begun, in this or a new segment; moves only that frame."""
        left = self.end - self.start
        needed = RECEIVE_BYTES_MIN + left
        if left >= 4:
            needed = max(needed, 4 + self._checked_length())
        old = len(self.segment)
        if not self.is_pinned and needed <= old:
            self.segment[:left] = self.segment[self.start : self.end]
        else:
            # A peer that filled a segment sends much: the next one is larger, up to the bound.
            size = max(needed, min(self.segment_bytes_max, old * 4))
            is_ordinary = needed <= size // 2
            segment = self.new_segment(size) if is_ordinary else bytearray(size)
            segment[:left] = self.view[self.start : self.end]
            self.segment = segment
            self.view = memoryview(segment)
            self.is_pinned = False
            self.generation += 1
        self.start = 0
        self.end = left
