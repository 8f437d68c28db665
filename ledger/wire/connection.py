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

SEGMENT_BYTES_FIRST = 20 * 1024
"""The first segment of a peer that has proven nothing: room for one receive, and a begun frame."""
SEGMENT_BYTES_MIN = 64 * 1024
SEGMENT_BYTES_MAX = 4 * 1024 * 1024
RECEIVE_BYTES_MIN = 16 * 1024
"""With less free space than this at the end of a segment the next one is used."""
RECEIVE_BYTES_MAX = 512 * 1024

_GROWTH = 4
"""A segment has at most this many times the bytes that have come of the frame in it."""
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

    Memory grows with what has come, never with the length that a frame announces: the first segment
    is made when something can be received, and the next ones have up to four times the bytes that
    are there.
    """

    __slots__ = (
        "_first_bytes",
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
        new_segment: Callable[[int, int], bytearray] | None = None,
        first_bytes: int = SEGMENT_BYTES_MIN,
    ) -> None:
        """Args:
        frame_bytes_max: the longest frame, without its length.
        segment_bytes_max: the largest segment, unless a frame needs a larger one.
        new_segment: returns a buffer, with any content, of about the first size, and no less than
            the second one. What it raises is raised by `space`, which can be called again.
        first_bytes: the size of the first segment.
        """
        self.new_segment = new_segment
        self.frame_bytes_max = frame_bytes_max
        self.segment_bytes_max = segment_bytes_max
        self._first_bytes = first_bytes
        self.segment = bytearray()
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
        """Returns free space for the next receive: at least RECEIVE_BYTES_MIN, or the rest of the
        frame begun."""
        size = len(self.segment)
        if not self.is_pinned and self.start == self.end:
            if size < SEGMENT_BYTES_MIN and size - self.end < RECEIVE_BYTES_MIN:
                self._replace(SEGMENT_BYTES_MIN if size else self._first_bytes, RECEIVE_BYTES_MIN)
            self.start = self.end = 0
            return self.view[:RECEIVE_BYTES_MAX]
        # 0 until the length of the frame begun is known.
        needed = 4 + self._checked_length() if self.end - self.start >= 4 else 0
        is_filled = size - self.end < RECEIVE_BYTES_MIN
        if needed > size - self.start:
            fits = min(self.segment_bytes_max, size * _GROWTH) if self.is_pinned else size
            if is_filled or needed <= fits:  # one that fits is moved while little of it is there
                self._make_space(needed)
        elif is_filled and needed <= RECEIVE_BYTES_MIN:
            self._make_space(needed)
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

    def _make_space(self, needed: int) -> None:
        """Makes space for the frame begun, of `needed` bytes if that is known, in this or a new
        segment; moves only that frame."""
        left = self.end - self.start
        old = len(self.segment)
        least = RECEIVE_BYTES_MIN + left
        if needed > RECEIVE_BYTES_MIN:
            least = min(least, needed)
        needed = max(least, needed)
        if not self.is_pinned and needed <= old and old >= SEGMENT_BYTES_MIN:
            self.segment[:left] = self.segment[self.start : self.end]
            self.start, self.end = 0, left
            return
        size = max(least, SEGMENT_BYTES_MIN, min(needed, _GROWTH * left))
        if self.is_pinned:
            # A peer that filled a segment sends much: the next one is larger, up to the bound.
            size = max(size, min(self.segment_bytes_max, old * _GROWTH))
        self._replace(size, least)

    def _replace(self, size: int, least: int) -> None:
        """Continues in a new segment, with the bytes that are not consumed."""
        segment = bytearray(size) if self.new_segment is None else self.new_segment(size, least)
        left = self.end - self.start
        segment[:left] = self.view[self.start : self.end]
        self.segment = segment
        self.view = memoryview(segment)
        self.is_pinned = False
        self.generation += 1
        self.start, self.end = 0, left

    @property
    def has_unfinished(self) -> bool:
        """Whether bytes are there that were not consumed."""
        return self.start < self.end

    def drop(self) -> None:
        """Drops the segment, and what is in it; the next one is made when it is needed."""
        self.segment = bytearray()
        self.view = memoryview(self.segment)
        self.start = self.end = 0
        self.is_pinned = False
        self.generation += 1
