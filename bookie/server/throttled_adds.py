"""Adds that were received while there was no room for them, of one connection.

Whole frames, copied out of the receive buffer so that what lies behind them goes on. Those of one
shard keep their order: while some are held, later ones join them.
"""

from __future__ import annotations

import math

from bookie.server.backpressure import Backpressure
from ledger.wire.messages import Buffer

THROTTLED_BYTES_MAX = 64 * 1024
"""Of one connection. With more, it is not read until there is room or its adds are refused."""


class ThrottledAdds:
    """By number of the shard. Counts what it holds in `pressure`."""

    def __init__(self, pressure: Backpressure) -> None:
        self.nbytes = 0
        self._pressure = pressure
        self._frames: dict[int, bytearray] = {}
        self._since: dict[int, float] = {}

    def add(self, shard_no: int, frame: Buffer, now: float) -> None:
        """Holds one whole frame."""
        frames = self._frames.get(shard_no)
        if frames is None:
            frames = self._frames[shard_no] = bytearray()
            self._since.setdefault(shard_no, now)
        frames += frame
        self._count(len(frame))

    def has(self, shard_no: int) -> bool:
        return shard_no in self._frames

    def since(self, shard_no: int) -> float:
        """When the first of those that are held came."""
        return self._since.get(shard_no, math.inf)

    def take(self, shard_no: int) -> bytearray:
        """Gives out all frames of a shard, in order, for there is room; those that found none are
        added again and then `again_since`."""
        self._since.pop(shard_no, None)
        frames = self._frames.pop(shard_no)
        self._count(-len(frames))
        return frames

    def again_since(self, shard_no: int, since: float) -> None:
        """Some of what was taken is held again: it has waited longer than it seems."""
        if shard_no in self._frames:
            self._since[shard_no] = since

    def clear(self) -> None:
        """The peer is gone."""
        self._frames.clear()
        self._since.clear()
        self._count(-self.nbytes)

    def _count(self, nbytes: int) -> None:
        self.nbytes += nbytes
        self._pressure.held_bytes += nbytes
