"""How background work of many small steps shares the loop: so long it works, so long it rests."""

from __future__ import annotations

from typing import Final, NamedTuple


class DutyCycle(NamedTuple):
    """Of the loop's time, work takes at most `work_s / (work_s + rest_s)`."""

    work_s: float
    rest_s: float


FOREGROUND: Final = DutyCycle(0.0005, 0.0001)
"""For work that others wait for, or that is over soon."""

BACKGROUND: Final = DutyCycle(0.0002, 0.001)
"""For work nobody waits for: an add passes through the loop some three times, and each time it
comes upon work under way. At the brisk pace it takes twice as long as without such work."""

_FILLED_MAX: Final = 0.125


def checkpoint_duty_cycle(filled: float, lasts_s: float, leisure_s: float) -> DutyCycle:
    """That of a checkpoint which has lasted `lasts_s` so far.

    Args:
        filled: of what may be in memory before the next checkpoint is due, the part that has come
            since this one began. Once it is 1, adds wait.
        leisure_s: so long it may take its time. A restart replays what came since the last
            checkpoint began, so that this is best no longer than what lies between two.
    """
    return BACKGROUND if filled < _FILLED_MAX and lasts_s < leisure_s else FOREGROUND
