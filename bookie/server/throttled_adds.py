"""Adds of one connection that were received while there was no capacity for them.

They are kept as whole frames, copied out of the receive buffer so that the requests behind them
can continue. The adds of a shard keep their order: while some are throttled, later ones join them.
"""

from __future__ import annotations

import math

from bookie.server.backpressure import Backpressure
from ledger.wire.messages import Buffer

THROTTLED_BYTES_MAX = 64 * 1024
"""Limit of one connection; above it, nothing is received until adds are taken or refused."""


class ThrottledAdds:
    """The throttled adds by number of the shard; their bytes are counted in `pressure`."""

    def __init__(self, pressure: Backpressure) -> None:
        self.nbytes = 0
        self._pressure = pressure
        self._frames: dict[int, bytearray] = {}
        self._since: dict[int, float] = {}

    def add(self, shard_no: int, frame: Buffer, now: float) -> None:
        """Appends one whole frame."""
        frames = self._frames.get(shard_no)
        if frames is None:
            frames = self._frames[shard_no] = bytearray()
            self._since.setdefault(shard_no, now)
        frames += frame
        self._count(len(frame))

    def has(self, shard_no: int) -> bool:
        return shard_no in self._frames

    def since(self, shard_no: int) -> float:
        """Returns when the first of the throttled adds of a shard was received."""
        return self._since.get(shard_no, math.inf)

    def take(self, shard_no: int) -> bytearray:
        """Removes and returns all frames of a shard, in order. The caller adds again those for
        which there is still no capacity, and then calls `restore_since`."""
        self._since.pop(shard_no, None)
        frames = self._frames.pop(shard_no)
        self._count(-len(frames))
        return frames

    def restore_since(self, shard_no: int, since: float) -> None:
        """Restores the time of the first add if some of the removed ones were added again."""
        if shard_no in self._frames:
            self._since[shard_no] = since

    def clear(self) -> None:
        """Drops all, because the peer has disconnected."""
        self._frames.clear()
        self._since.clear()
        self._count(-self.nbytes)

    def _count(self, nbytes: int) -> None:
        self.nbytes += nbytes
        self._pressure.held_bytes += nbytes
