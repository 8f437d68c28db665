"""How many bytes a writer may still append under its quota; time is handed in.

Pure. Over any span of t seconds no more than `rate * (t + BURST_S)` is taken, and one taking more:
a taking is always allowed while anything is left, so that one larger than the burst gets through.
"""

from __future__ import annotations

from typing import Final

BURST_S: Final = 1.0
"""An idle writer saves up what it may append in this time, no more."""


class TokenBucket:
    """Begins full. Times are seconds of any clock that does not go back."""

    __slots__ = ("_at_s", "_level", "rate_per_s")

    def __init__(self, rate_per_s: int, now_s: float) -> None:
        assert rate_per_s > 0, "a rate of nothing would never let anything through"
        self.rate_per_s = rate_per_s
        self._level = rate_per_s * BURST_S
        self._at_s = now_s

    def take(self, amount: int, now_s: float) -> None:
        """Counts `amount` as taken, also if that leaves a debt to be waited for."""
        self._fill(now_s)
        self._level -= amount

    def wait_s(self, now_s: float) -> float:
        """Seconds until something may be taken; 0 if it may be now."""
        self._fill(now_s)
        return 0.0 if self._level > 0 else (1.0 - self._level) / self.rate_per_s

    def at_rate(self, rate_per_s: int, now_s: float) -> TokenBucket:
        """A bucket of another rate, with the same debt, or filled in the same part."""
        self._fill(now_s)
        other = TokenBucket(rate_per_s, now_s)
        share = self._level / (self.rate_per_s * BURST_S)
        other._level = self._level if self._level < 0 else share * rate_per_s * BURST_S
        return other

    def _fill(self, now_s: float) -> None:
        elapsed_s = max(0.0, now_s - self._at_s)
        self._at_s = max(self._at_s, now_s)
        full = self.rate_per_s * BURST_S
        self._level = min(full, self._level + elapsed_s * self.rate_per_s)
