"""SteadyClock: a wall clock that does not believe a jump of more than a day at once.

What is stamped with a clock that is wrong by a year stays wrong for a year: append times never
decrease, and retention goes by them. A second clock, which nobody can set, distinguishes a jump
from the passing of time. Pure: both clocks are arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

CLOCK_OFF_MS: Final = 86_400_000
"""Clocks that differ by more than this are wrong, rather than late or in another time zone."""
HOLD_S: Final = 3600.0
"""A jump is believed if the clock has stayed there for this long: it was wrong before."""
_IN_DOUBT: Final = -(1 << 62)


class SteadyClock:
    """Args:
    wall_ms: the wall clock, in milliseconds.
    steady_s: a clock in seconds that no one can set.
    notice: called with the difference in milliseconds when a jump begins to be ignored, and with 0
        when that ends, because the clock is right again or the jump is believed.
    """

    __slots__ = ("_base_ms", "_base_s", "_jump_ms", "_last_ms", "_notice", "_since_s", "_steady_s",
                 "_wall_ms")  # fmt: skip

    def __init__(
        self,
        wall_ms: Callable[[], int],
        steady_s: Callable[[], float],
        notice: Callable[[int], None],
    ) -> None:
        self._wall_ms = wall_ms
        self._steady_s = steady_s
        self._notice = notice
        self._base_ms = self._last_ms = _IN_DOUBT
        self._base_s = self._since_s = 0.0
        self._jump_ms = 0

    def now_ms(self) -> int:
        """Returns the time in milliseconds since 1970."""
        wall_ms = self._wall_ms()
        # Usually less than a day has passed since the last call, and no second clock is needed.
        if -CLOCK_OFF_MS <= wall_ms - self._last_ms <= CLOCK_OFF_MS:
            self._last_ms = wall_ms
            return wall_ms
        return self._after_a_gap(wall_ms, self._steady_s())

    def _after_a_gap(self, wall_ms: int, steady_s: float) -> int:
        if self._base_ms == _IN_DOUBT:
            return self._believe(wall_ms, steady_s)  # the first call
        expected_ms = self._expected_ms(steady_s)
        jump_ms = wall_ms - expected_ms
        if abs(jump_ms) <= CLOCK_OFF_MS:
            return self._believe(wall_ms, steady_s)
        if self._last_ms != _IN_DOUBT or abs(jump_ms - self._jump_ms) > CLOCK_OFF_MS:
            if self._last_ms != _IN_DOUBT:
                # Small steps since the base were believed; what is returned continues from them.
                self._rebase(steady_s)
                expected_ms = self._expected_ms(steady_s)
            self._last_ms = _IN_DOUBT
            self._jump_ms, self._since_s = jump_ms, steady_s
            self._notice(jump_ms)
        elif steady_s - self._since_s >= HOLD_S:
            return self._believe(wall_ms, steady_s)
        return expected_ms

    def _expected_ms(self, steady_s: float) -> int:
        return self._base_ms + int((steady_s - self._base_s) * 1000)

    def _rebase(self, steady_s: float) -> None:
        """Continues from the last reading if the second clock does not contradict it."""
        expected_ms = self._expected_ms(steady_s)
        self._base_ms, self._base_s = max(self._last_ms, expected_ms), steady_s

    def _believe(self, wall_ms: int, steady_s: float) -> int:
        was_in_doubt = self._last_ms == _IN_DOUBT and self._base_ms != _IN_DOUBT
        self._base_ms = self._last_ms = wall_ms
        self._base_s = steady_s
        if was_in_doubt:
            self._notice(0)
        return wall_ms


def jump_text(jump_ms: int) -> str:
    """Returns what is to be logged about a jump of the clock; 0: it is followed again."""
    if not jump_ms:
        return "the clock of this machine is followed again after a jump"
    return (
        f"the clock of this machine jumped by {jump_ms / CLOCK_OFF_MS:+.1f} d: it is ignored for "
        "an hour, unless it jumps back. Cure: correct the clock; if it was wrong before, do nothing"
    )
