"""Divides the time of the event loop between background work of many small steps and other
tasks."""

from __future__ import annotations

from typing import Final, NamedTuple


class DutyCycle(NamedTuple):
    """How long the work runs and then pauses: its share of the loop is `work_s / (work_s +
    rest_s)`."""

    work_s: float
    rest_s: float


FOREGROUND: Final = DutyCycle(0.0005, 0.0001)
"""For work that others wait for, or that ends soon."""

BACKGROUND: Final = DutyCycle(0.0002, 0.001)
"""For work that no one waits for. An add passes through the loop about three times, and each time
it may meet this work. In the foreground cycle it would take twice as long as without such work."""

_FILLED_MAX: Final = 0.125


def checkpoint_duty_cycle(filled: float, lasts_s: float, leisure_s: float) -> DutyCycle:
    """Returns the duty cycle of a checkpoint that has lasted `lasts_s` so far.

    Args:
        filled: the share of the memory allowed before the next checkpoint that was filled since
            this one began. Once it is 1, adds wait.
        leisure_s: how long the checkpoint may run in the background. A restart replays what arrived
            since the last checkpoint began, so this is best no longer than the interval.
    """
    return BACKGROUND if filled < _FILLED_MAX and lasts_s < leisure_s else FOREGROUND
