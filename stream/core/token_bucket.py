"""A token bucket: how many bytes a writer may still append under its quota.

Pure; the caller passes the time. In any span of t seconds no more than `rate * (t + BURST_S)` is
taken, plus one request: a request is always admitted while any tokens are left, so that one larger
than the burst can pass.
"""

from __future__ import annotations

from typing import Final

BURST_S: Final = 1.0
"""An idle writer accumulates tokens for this time, and no more."""


class TokenBucket:
    """A token bucket that begins full. Times are seconds of any clock that does not go back."""

    __slots__ = ("_at_s", "_level", "rate_per_s")

    def __init__(self, rate_per_s: int, now_s: float) -> None:
        assert rate_per_s > 0, "a rate of 0 would never admit anything"
        self.rate_per_s = rate_per_s
        self._level = rate_per_s * BURST_S
        self._at_s = now_s

    def take(self, amount: int, now_s: float) -> None:
        """Takes `amount` tokens, even if that leaves a debt that must be waited for."""
        self._fill(now_s)
        self._level -= amount

    def wait_s(self, now_s: float) -> float:
        """Returns the seconds until something may be taken; 0 if it may be taken now."""
        self._fill(now_s)
        return 0.0 if self._level > 0 else (1.0 - self._level) / self.rate_per_s

    def at_rate(self, rate_per_s: int, now_s: float) -> TokenBucket:
        """Returns a bucket of another rate with the same debt, or filled to the same fraction."""
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
