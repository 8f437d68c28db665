"""The memory of one connection's receive buffer, counted over all connections.

Every connection may have a small buffer. A larger one counts, and when all of them together have
reached their limit, a connection continues in a small buffer if the frames fit there, or waits. The
segments that a write cache holds are part of that cache.
"""

from __future__ import annotations

from bookie.core.buffer_pool import SegmentPool
from bookie.core.peers import Peer
from bookie.server.backpressure import Backpressure
from ledger.wire.connection import SEGMENT_BYTES_FIRST, SEGMENT_BYTES_MIN, ReceiveBuffer


class ReceiveMemoryShort(Exception):
    """A frame needs a larger buffer than there is memory for now."""


class ReceiveMemory:
    """Makes the segments of one receive buffer."""

    def __init__(
        self, pool: SegmentPool, pressure: Backpressure, peer: Peer, *, frame_bytes_max: int
    ) -> None:
        self._pool = pool
        self._pressure = pressure
        self._peer = peer
        self.buffer = ReceiveBuffer(
            frame_bytes_max, new_segment=self._new_segment, first_bytes=SEGMENT_BYTES_FIRST
        )

    def drop(self) -> None:
        """Frees the segment, unless a write cache holds it. At the end of a connection, and while
        memory is short and nothing of it is in the buffer."""
        self.buffer.drop()
        self._count(0)

    def _new_segment(self, size: int, least: int) -> bytearray:
        """Returns a segment of about `size` bytes, and no less than `least`. Raises
        ReceiveMemoryShort."""
        if not self._may_have(size):
            size = max(least, SEGMENT_BYTES_MIN)
            if not self._may_have(size):
                raise ReceiveMemoryShort
        # What the pool returns may be slightly shorter.
        is_ordinary = least <= size // 2
        segment = self._pool.take_segment(size) if is_ordinary else bytearray(size)
        self._count(len(segment))
        return segment

    def _may_have(self, size: int) -> bool:
        more = _counted(size) - _counted(self._peer.segment_bytes)
        return more <= 0 or self._pressure.may_receive(more)

    def _count(self, size: int) -> None:
        change = _counted(size) - _counted(self._peer.segment_bytes)
        self._peer.segment_bytes = size
        if change:
            self._pressure.count_received(change)


def _counted(size: int) -> int:
    return max(0, size - SEGMENT_BYTES_MIN)
