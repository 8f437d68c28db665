"""Back-off after conflicts on metadata: how long to wait, and when to give up. Pure.

Pauses are drawn from a window that grows with the conflicts, so that many competitors take turns.
The window shrinks again for a competitor that has waited long: it retries more often than a new
one, so that none starves.
"""

from __future__ import annotations

from typing import Final, Protocol


class RandomNumbers(Protocol):
    """A source of random numbers, such as `random.Random`."""

    def random(self) -> float: ...


GIVE_UP_AFTER_S: Final = 120.0
"""Time since the first conflict after which the operation fails."""
TRIES_MIN: Final = 10
"""Conflicts before the operation fails, however long each attempt takes."""
PAUSE_S: Final = 0.05
"""The window of the second conflict; after the first one there is no pause."""
PAUSE_S_MAX: Final = 1.0
_DOUBLINGS_MAX: Final = 10
_SHARE_MIN: Final = 0.05
"""The part of the window that remains for the competitor that has waited longest."""


def should_give_up(conflicts: int, waited_s: float) -> bool:
    """Whether to fail after this many conflicts, this long after the first of them."""
    return conflicts >= TRIES_MIN and waited_s >= GIVE_UP_AFTER_S


def conflict_pause_s(conflicts: int, waited_s: float, rng: RandomNumbers) -> float:
    """Returns the pause before the next attempt."""
    assert conflicts > 0, "there was no conflict"
    if conflicts == 1:
        return 0.0
    window_s = min(PAUSE_S_MAX, PAUSE_S * 2.0 ** min(conflicts - 2, _DOUBLINGS_MAX))
    return rng.random() * window_s * max(_SHARE_MIN, 1 - waited_s / GIVE_UP_AFTER_S)
