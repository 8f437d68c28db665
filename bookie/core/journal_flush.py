"""When a journal that acknowledges before it syncs does sync; its twin is
`storage/journal_flush.py`.

Little and often: a disk that is given seconds of writes at once is busy for seconds, and every
other request waits behind them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

FLUSH_NOW: Final = -math.inf
UNSYNCED_FACTOR: Final = 8
"""So many times `flush_bytes` may be unsynced: then groups wait for the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushPolicy:
    """When what lies in the page cache goes to the disk. Any of three reasons is enough."""

    flush_interval_ms: float = 1000.0
    """The oldest unsynced group was written so long ago: what losing power can cost."""
    flush_bytes: int = 4 << 20
    """So many bytes are unsynced. Small, so that no sync keeps a slow disk busy for long."""

    def __post_init__(self) -> None:
        if not 0 <= self.flush_interval_ms < math.inf:
            raise ValueError(
                f"flush_interval_ms {self.flush_interval_ms}: give 0 or more milliseconds"
            )
        if self.flush_bytes < 1:
            raise ValueError(f"flush_bytes {self.flush_bytes}: give 1 or more bytes")

    def decide(self, now: float, oldest_at: float, unsynced_bytes: int, is_asked: bool) -> float:
        """FLUSH_NOW, or the time (seconds, the clock of `now`) to wait for.

        `oldest_at`: when the oldest unsynced group was written. `is_asked`: somebody waits for
        what is written to be durable.
        """
        if is_asked or unsynced_bytes >= self.flush_bytes:
            return FLUSH_NOW
        until = oldest_at + self.flush_interval_ms / 1000
        return FLUSH_NOW if until <= now else until

    def must_wait(self, unsynced_bytes: int) -> bool:
        """No group may be written before a sync has ended: else memory is the only bound of
        what the disk is behind."""
        return unsynced_bytes >= self.flush_bytes * UNSYNCED_FACTOR
