"""What one of many workers may ask, so that all together do not flood the metadata store. Pure.

Each worker sees the same marks. If each read every mark and tried every lock, a thousand workers
would ask a thousand times for each ledger. So each mark has an *owner* among the workers; others
take it only when it has waited for long, because its owner may be gone or busy, or, if the workers
are few, when they have nothing else to do. The more workers there are, the more seldom each looks;
and each has a share of the requests that all workers together may send.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

LOOKS_PER_S_MAX = 50.0
"""How often all workers of the cluster together list the marks, or publish what they do."""
FEW_WORKERS = 5
"""Up to this many workers take also marks of others, as soon as they have none of their own."""
OTHERS_PER_LOOK = 2
"""Marks of others that one of few workers takes at each look, because an owner may be stuck."""
PATIENCE_LOOKS = 3
"""After this many looks at a mark that is not healed, others than its owner take it."""
_GOLDEN = 2_654_435_761
"""Odd, and far from a power of two: multiples of it are spread evenly (Knuth, TAOCP 3, 6.4)."""


class RandomNumbers(Protocol):
    """A source of random numbers in [0, 1), such as `random.Random`."""

    def random(self) -> float: ...


def interval_s(workers: int, least_s: float) -> float:
    """Returns how often one of `workers` does something that it does every `least_s` seconds if it
    is alone."""
    return max(least_s, workers / LOOKS_PER_S_MAX)


def owner_of(ledger_id: int, workers: int) -> int:
    """Returns which of `workers` owns a ledger: the place of a worker in their order."""
    return ((ledger_id + 1) * _GOLDEN % (1 << 32)) * workers >> 32


class Shares:
    """The marks that one worker takes, look by look."""

    def __init__(self) -> None:
        self._looks: dict[int, int] = {}
        """How often each mark was seen."""

    def take(
        self,
        marked: Sequence[int],
        workers: int,
        own: int | None,
        rng: RandomNumbers,
        *,
        idle_slots: int = 0,
    ) -> list[int]:
        """Returns the marked ledgers that the worker takes at this look.

        Args:
            marked: those that nobody has locked.
            own: the place of the worker among `workers`; None if it is none of them, so that it
                owns nothing.
            idle_slots: how many ledgers it heals at once, if it has nothing to do.
        """
        if workers <= FEW_WORKERS:
            return _taken_by_one_of_few(marked, workers, own, rng, idle_slots)
        self._looks = {one: self._looks.get(one, 0) + 1 for one in marked}
        old = [one for one, looks in self._looks.items() if looks > PATIENCE_LOOKS]
        owned = [one for one in marked if owner_of(one, workers) == own]
        return list(dict.fromkeys([*owned, *some_of(old, workers, rng)]))


def _taken_by_one_of_few(
    marked: Sequence[int], workers: int, own: int | None, rng: RandomNumbers, idle_slots: int
) -> list[int]:
    owned: list[int] = []
    others: list[int] = []
    for one in marked:
        (owned if workers > 0 and owner_of(one, workers) == own else others).append(one)
    others_max = OTHERS_PER_LOOK if owned or not idle_slots else idle_slots
    if len(others) <= others_max:
        return list(marked)
    chosen: dict[int, None] = {}
    while len(chosen) < others_max:
        chosen[others[int(rng.random() * len(others))]] = None
    return [*owned, *chosen]


def some_of(old: Iterable[int], workers: int, rng: RandomNumbers) -> list[int]:
    """Returns a random part of the marks that waited for long, so that about one worker takes each
    in the time of a look."""
    return [one for one in old if rng.random() * workers < 1.0]


class OperationPace:
    """Spaces the requests of one process, so that it never sends more than a rate.

    In no interval of t seconds more than `rate * t` operations begin, apart from the last
    reservation. There is no burst: a thousand idle workers begin at the same moment.
    """

    def __init__(self) -> None:
        self._free_s = -math.inf

    def reserve(self, operations: float, per_s: float, now_s: float) -> float:
        """Reserves operations, and returns in how many seconds they may begin. A rate of 0 is no
        bound."""
        if per_s <= 0:
            return 0.0
        begin_s = max(self._free_s, now_s)
        self._free_s = begin_s + operations / per_s
        return begin_s - now_s
