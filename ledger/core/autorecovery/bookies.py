"""The state of each bookie, and which of them are lost for so long that their copies count as lost.

A single lost bookie is waited for, because most return, and copying its ledgers costs more than
a restart takes. A second one ends the waiting: with two copies gone nothing may be lost any more.
If more than half of all bookies are gone, that is an outage and not a loss, and each is waited for.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field


class BookieState(enum.Enum):
    """What may be asked of a bookie."""

    WRITABLE = "writable"
    READ_ONLY = "read-only"
    EMPTYING = "being emptied"
    """It is up, and its copies are to be made elsewhere."""
    AWAITED = "down"
    """It is not registered, and may return."""
    LOST = "lost"


LIVE = (BookieState.WRITABLE, BookieState.READ_ONLY, BookieState.EMPTYING)
"""The states in which a bookie serves reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bookies:
    """The bookies of a cluster at one moment. One that is in none of the groups is lost.

    `writable`: those that accept new entries. `emptying`: those to be emptied, up or down.
    `replacements`: the bookie that takes all copies of one that is to be emptied.
    """

    writable: Collection[str]
    read_only: Collection[str] = ()
    emptying: Collection[str] = ()
    awaited: Collection[str] = ()
    replacements: Mapping[str, str] = field(default_factory=dict)

    def state_of(self, bookie: str) -> BookieState:
        """Returns the state of a bookie, also of one that nobody knows."""
        is_up = bookie in self.writable or bookie in self.read_only
        if bookie in self.emptying:
            return BookieState.EMPTYING if is_up else BookieState.LOST
        if bookie in self.writable:
            return BookieState.WRITABLE
        if is_up:
            return BookieState.READ_ONLY
        return BookieState.AWAITED if bookie in self.awaited else BookieState.LOST

    def is_live(self, bookie: str) -> bool:
        """Whether the bookie serves reads."""
        return bookie in self.writable or bookie in self.read_only


class LostBookies:
    """Follows which bookies are registered, and since when the others are not.

    Args:
        delay_s: how long a single lost bookie is waited for.
    """

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self._down_since: dict[str, float] = {}
        self._known = 0

    def observe(self, known: Iterable[str], registered: Collection[str], now_s: float) -> None:
        """Records the `known` bookies, those that have a cookie, and which of them are registered.

        A bookie that was down before the first call counts as down since then.
        """
        down = [bookie for bookie in known if bookie not in registered]
        self._known = len(down) + len(registered)
        self._down_since = {one: self._down_since.get(one, now_s) for one in down}

    def down_since_s(self, bookie: str) -> float | None:
        """Returns since when a known bookie is down; None if it is up or not known."""
        return self._down_since.get(bookie)

    def awaited(self, now_s: float) -> list[str]:
        """Returns the bookies that are down and not lost yet, sorted."""
        down = self._down_since
        is_outage = 2 * len(down) > self._known
        if len(down) > 1 and not is_outage:
            return []
        return sorted(one for one, since_s in down.items() if now_s < since_s + self.delay_s)

    def next_loss_s(self, now_s: float) -> float | None:
        """Returns when the next awaited bookie will be lost; None if none is awaited."""
        awaited = self.awaited(now_s)
        return min((self._down_since[one] + self.delay_s for one in awaited), default=None)
