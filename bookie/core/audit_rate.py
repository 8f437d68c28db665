"""How many lines about refused requests go into the audit log, of one peer and of all. Pure.

A peer that is refused may try again as often as it likes: it must neither fill the disk nor rotate
the lines about others away. What is left out is counted, in fixed memory.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Final

PEERS_MAX: Final = 10_000
"""Addresses whose rate is remembered; the one that was quiet the longest is forgotten first."""
COUNTED_MAX: Final = 100
"""Addresses whose lines that were left out are counted by themselves, until the next report."""
OTHERS: Final = "others"
"""The name under which those of all further addresses are counted."""
BURST: Final = 20
PER_S: Final = 1.0
"""Lines of one address: this number at once, and then at this rate."""
BURST_OF_ALL: Final = 1000
PER_S_OF_ALL: Final = 50.0
"""Lines of all addresses together."""


class _Bucket:
    __slots__ = ("_at", "_burst", "_level", "_per_s")

    def __init__(self, now: float, burst: int, per_s: float) -> None:
        self._burst, self._per_s = burst, per_s
        self._level = float(burst)
        self._at = now

    def has_one(self, now: float) -> bool:
        elapsed_s = max(0.0, now - self._at)
        self._at = max(self._at, now)
        self._level = min(self._burst, self._level + elapsed_s * self._per_s)
        return self._level >= 1.0

    def take(self) -> None:
        self._level -= 1.0


class AuditRate:
    """Decides which refusals are written. Times are seconds of any clock that does not go back."""

    def __init__(self, now: float, *, peers_max: int = PEERS_MAX) -> None:
        self._peers_max = peers_max
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._all = _Bucket(now, BURST_OF_ALL, PER_S_OF_ALL)
        self._left_out: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._buckets)

    def admits(self, now: float, address: str) -> bool:
        """Returns whether a refusal of an address is written; else it is counted."""
        bucket = self._buckets.get(address)
        if bucket is None:
            bucket = self._buckets[address] = _Bucket(now, BURST, PER_S)
            if len(self._buckets) > self._peers_max:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(address)
        if bucket.has_one(now) and self._all.has_one(now):
            bucket.take()
            self._all.take()
            return True
        is_counted = address in self._left_out or len(self._left_out) < COUNTED_MAX
        self._left_out[address if is_counted else OTHERS] += 1
        return False

    @property
    def has_left_out(self) -> bool:
        """Whether `take_left_out` has something to report."""
        return bool(self._left_out)

    def take_left_out(self) -> dict[str, int]:
        """Returns how many lines of each address were left out since the last call."""
        left_out, self._left_out = self._left_out, Counter()
        return dict(left_out)
