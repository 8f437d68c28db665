"""How long to wait after others changed the same metadata first, and when to give up. Pure.

Pauses are drawn from a window that grows with the conflicts: many who want the same come one after
the other then. It shrinks again for who has waited long: those come more often than who is new, so
that none starves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from random import Random

GIVE_UP_AFTER_S: Final = 120.0
"""Since the first conflict: whoever found no gap by then is told so."""
TRIES_MIN: Final = 10
"""Before it is given up, however long each of them takes."""
PAUSE_S: Final = 0.05
"""The window of the second conflict; behind the first one there is no pause."""
PAUSE_S_MAX: Final = 1.0
_DOUBLINGS_MAX: Final = 10
_SHARE_MIN: Final = 0.05
"""Of the window, for who has waited longest."""


def should_give_up(conflicts: int, waited_s: float) -> bool:
    """After so many conflicts, and so long after the first of them."""
    return conflicts >= TRIES_MIN and waited_s >= GIVE_UP_AFTER_S


def conflict_pause_s(conflicts: int, waited_s: float, rng: Random) -> float:
    """Before the next try."""
    assert conflicts > 0, "nobody was first"
    if conflicts == 1:
        return 0.0
    window_s = min(PAUSE_S_MAX, PAUSE_S * 2.0 ** min(conflicts - 2, _DOUBLINGS_MAX))
    return rng.random() * window_s * max(_SHARE_MIN, 1 - waited_s / GIVE_UP_AFTER_S)
