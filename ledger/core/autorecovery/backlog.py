"""Which marked ledger is healed next, and when one that could not be healed is tried again. Pure.

Ledgers with the fewest copies left come first; among those with equally many each worker has an
order of its own, so that workers seldom meet at one ledger. A ledger that cannot be healed is
*held* with its reason, and blocks nobody: it is tried again when a bookie that the reason names
comes or goes, when any bookie does if the reason is that there are too few, and after a pause that
doubles from half a minute, or less if the reason says so, to an hour, because a reason may pass
unseen.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ledger.core.autorecovery.plan import Hold

PAUSE_S_MIN = 30.0
PAUSE_S_MAX = 3600.0
HELD_MAX = 100_000
_GOLDEN = 2_654_435_761
"""Odd, and far from a power of two: multiples of it are spread evenly (Knuth, TAOCP 3, 6.4)."""


@dataclass(frozen=True, slots=True)
class Held:
    """A ledger that could not be healed. `since_s`: when its present reason was first met.

    `bookies`: those on which the reason depends; on all of them, if it `is_of_cluster`.
    """

    ledger_id: int
    reason: str
    bookies: tuple[str, ...]
    is_of_cluster: bool
    since_s: float
    tries: int
    retry_at_s: float
    is_loss: bool
    """Entries of it have no copy, as far as is known."""
    since_s_of: Mapping[str, float]
    """When each of the present reasons was first met."""


class Backlog:
    """The marked ledgers that a worker knows. `salt` differs between workers."""

    def __init__(self, salt: int = 0) -> None:
        self._salt = salt
        self._queue: list[tuple[int, int, int]] = []
        """(copies left, place in the worker's own order, ledger), a heap."""
        self._queued: dict[int, None] = {}
        self._held: dict[int, Held] = {}

    def __len__(self) -> int:
        return len(self._queued)

    @property
    def held(self) -> Collection[Held]:
        """The ledgers that wait until their reason changes."""
        return self._held.values()

    def unknown(self, marked: Iterable[int], now_s: float) -> list[int]:
        """Forgets ledgers that are not `marked` any more; returns those that are to be added: the
        ones not known, and held ones that are due."""
        ids = dict.fromkeys(marked)
        self._held = {one: held for one, held in self._held.items() if one in ids}
        return [
            ledger_id
            for ledger_id in ids
            if ledger_id not in self._queued
            and (ledger_id not in self._held or self._held[ledger_id].retry_at_s <= now_s)
        ]

    def add(self, ledger_id: int, copies_left: int) -> None:
        """Adds a marked ledger, unless it is queued already."""
        if ledger_id not in self._queued:
            self._queued[ledger_id] = None
            heapq.heappush(self._queue, (copies_left, self._place_of(ledger_id), ledger_id))

    def _place_of(self, ledger_id: int) -> int:
        return (ledger_id + 1) * (2 * self._salt + 1) * _GOLDEN % (1 << 32)

    def next(self) -> int | None:
        """Takes the ledger that is healed next; None if there is none."""
        if not self._queue:
            return None
        _, _, ledger_id = heapq.heappop(self._queue)
        del self._queued[ledger_id]
        return ledger_id

    def hold(self, ledger_id: int, holds: Sequence[Hold], now_s: float) -> None:
        """Records why a ledger could not be healed now."""
        assert holds, "a ledger is held for a reason"
        before = self._held.pop(ledger_id, None)
        reasons = dict.fromkeys(hold.reason for hold in holds)
        reason = "; ".join(reasons)
        known_s = before.since_s_of if before is not None else {}
        is_same = before is not None and before.reason == reason
        tries = before.tries + 1 if before is not None and is_same else 1
        first_s = min(
            [PAUSE_S_MIN, *(one.first_pause_s for one in holds if one.first_pause_s is not None)]
        )
        pause_s = min(first_s * 2.0 ** min(tries - 1, 20), PAUSE_S_MAX)
        pause_s = min([pause_s, *(hold.retry_s for hold in holds if hold.retry_s is not None)])
        if len(self._held) >= HELD_MAX:
            self._held.pop(next(iter(self._held)))  # it is tried again sooner
        self._held[ledger_id] = Held(
            ledger_id,
            reason,
            tuple(dict.fromkeys(name for hold in holds for name in hold.bookies)),
            is_of_cluster=any(hold.is_of_cluster for hold in holds),
            since_s=before.since_s if before is not None and is_same else now_s,
            tries=tries,
            retry_at_s=now_s + pause_s,
            is_loss=any(hold.is_loss for hold in holds),
            since_s_of={one: known_s.get(one, now_s) for one in reasons},
        )

    def held_since_s(self, ledger_id: int, reason: str) -> float | None:
        """Returns since when a ledger is held for this reason, whatever else holds it up; None if
        it is not."""
        held = self._held.get(ledger_id)
        return held.since_s_of.get(reason) if held is not None else None

    def healed(self, ledger_id: int) -> None:
        """Forgets why a ledger could not be healed."""
        self._held.pop(ledger_id, None)

    def bookies_changed(self, changed: Collection[str], now_s: float) -> None:
        """Makes those due whose reason depends on one of the `changed` bookies."""
        if not changed:
            return
        for ledger_id, held in self._held.items():
            if held.is_of_cluster or any(one in changed for one in held.bookies):
                self._held[ledger_id] = replace(held, tries=0, retry_at_s=now_s)

    def next_retry_s(self) -> float | None:
        """Returns when the next held ledger is due; None if none is held."""
        return min((held.retry_at_s for held in self._held.values()), default=None)
