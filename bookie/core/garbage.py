"""Decides which entry logs may be removed, when to seal one early, and which tombstones to forget.

The pure core of `bookie.storage.garbage.collector`. Must never name a log that holds an entry of a
live ledger; a ledger that is not known to be deleted is alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from bookie.core.compaction import CompactionOptions
from ledger.errors import InvalidArgument

_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageOptions:
    """How garbage is collected. One round is one call of `collect`."""

    ledgers_per_round_max: int = 50_000
    """Ledgers checked in one round; the next round continues after them. At the rate below this
    takes as long as the usual time between two rounds, so a query is in flight half of the time."""
    asks_per_s_max: float = 1000.0
    """Bounds the load on the metadata store."""
    seal_age_s: float = 3600.0
    """A current log this old is sealed if it holds a deleted ledger's entries, so that their space
    is freed although little is written."""
    tombstone_age_ms: int = 7 * 24 * 3600 * 1000
    """How long a deleted ledger is remembered, to refuse late writes and replayed frames. Must be
    longer than any writer can continue without noticing that its ledger is gone."""
    tombstones_max: int = 1_000_000
    tombstones_per_round_max: int = 20_000
    """Tombstones examined in one round, in some 30 ms of steps; the next round continues after
    them."""
    failures_max: int = 10
    """After this many consecutive queries without an answer the round makes no more of them."""
    compaction: CompactionOptions = field(default_factory=CompactionOptions)

    def __post_init__(self) -> None:
        if self.ledgers_per_round_max < 1 or not self.asks_per_s_max > 0:
            raise InvalidArgument(
                f"ledgers_per_round_max {self.ledgers_per_round_max} and asks_per_s_max "
                f"{self.asks_per_s_max}: give more than 0"
            )
        if self.tombstones_per_round_max < 1:
            raise InvalidArgument(
                f"tombstones_per_round_max {self.tombstones_per_round_max}: give 1 or more"
            )
        if self.failures_max < 1:
            raise InvalidArgument(f"failures_max {self.failures_max}: give 1 or more")
        if min(self.seal_age_s, self.tombstone_age_ms, self.tombstones_max) < 0:
            raise InvalidArgument("ages and bounds of garbage collection are never negative")


def is_droppable(ledgers: Iterable[int], is_alive: Callable[[int], bool]) -> bool:
    """Returns whether a sealed log with entries of these ledgers may be removed. True for a log
    without any."""
    return not any(is_alive(ledger_id) for ledger_id in ledgers)


def should_seal(
    ledgers: Mapping[int, int], age_s: float, is_alive: Callable[[int], bool], seal_age_s: float
) -> bool:
    """Returns whether the current log should be sealed before it is full. `ledgers`: bytes by
    ledger."""
    return age_s >= seal_age_s and not all(is_alive(ledger_id) for ledger_id in ledgers)


class TombstoneSweep:
    """Decides which tombstones to forget: those that are too old, and if there are too many, the
    oldest.

    It sees all tombstones, one after the other in any order, again and again. There may be
    millions, so none is kept here: a pass counts them by the minute of their deletion, and the next
    pass forgets the excess. In the last of these minutes it may forget any.
    """

    def __init__(self, age_ms_max: int, count_max: int) -> None:
        self._age_ms_max = age_ms_max
        self._count_max = count_max
        self._counts: dict[int, int] = {}
        self._minute = -1
        """All tombstones of the minutes before it are excess, ..."""
        self._of_minute = 0
        """... and this many of its own."""

    def forgets(self, deleted_ms: int, now_ms: int) -> bool:
        """Returns whether to forget this tombstone; if not, it was counted."""
        minute = deleted_ms // _MINUTE_MS
        if now_ms - deleted_ms > self._age_ms_max or minute < self._minute:
            return True
        if minute == self._minute and self._of_minute > 0:
            self._of_minute -= 1
            return True
        self._counts[minute] = self._counts.get(minute, 0) + 1
        return False

    def end_pass(self) -> bool:
        """Ends a pass over all tombstones, and returns whether the next pass will forget some as
        excess."""
        counts, self._counts = self._counts, {}
        surplus = sum(counts.values()) - self._count_max
        self._minute, self._of_minute = -1, 0
        for minute in sorted(counts):
            if surplus <= 0:
                break
            self._minute, self._of_minute = minute, min(surplus, counts[minute])
            surplus -= counts[minute]
        return self._of_minute > 0
