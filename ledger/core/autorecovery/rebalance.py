"""Which copies move from full bookies to empty ones. Pure.

The load of a bookie is the payload that metadata says it holds, in proportion to its capacity. Only
closed ledgers are looked at, one after the other, and each proposed move is counted at once; so one
pass over the metadata of a large cluster needs memory for its bookies alone. A move never makes the
placement of an ensemble worse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from ledger.core.autorecovery.plan import Move
from ledger.core.availability import fragment_bounds
from ledger.core.metadata import LedgerMetadata
from ledger.core.placement.policies import Grade, placement_or_default
from ledger.core.placement.topology import Topology

_TRIED_MAX = 16
"""The emptiest bookies that are tried for a copy. Others are not much emptier than the average."""
_SORTED_AGAIN = 16
_GRADES = (Grade.STRICT, Grade.SOFT, Grade.FAIL)


class Balance:
    """The loads of the bookies, as they will be after the moves that were proposed.

    Args:
        capacities: of each writable bookie, in any unit, above 0.
        tolerance: how far above its share a bookie may be; 0.05 is 5 %.
    """

    def __init__(self, capacities: Mapping[str, float], *, tolerance: float) -> None:
        self.capacities = dict(capacities)
        self.loads = dict.fromkeys(capacities, 0)
        self._tolerance = tolerance
        self._capacity = sum(capacities.values())
        self._total = 0
        self._order: list[str] = []
        self._moves_since = _SORTED_AGAIN
        """Moves since `_order`, the bookies by emptiness, was sorted."""

    def add(self, bookie: str, nbytes: int) -> None:
        """Counts bytes on a bookie; on one that is not writable they count for nobody."""
        if bookie in self.loads:
            self.loads[bookie] += nbytes
            self._total += nbytes

    def move(self, old: str, new: str, nbytes: int) -> None:
        """Counts a proposed move."""
        self.add(old, -nbytes)
        self.add(new, nbytes)
        self._moves_since += 1

    @property
    def skew(self) -> float:
        """The largest load over the average, both in proportion to the capacity; 1 is even."""
        if not self._total:
            return 1.0
        fullest = max(load / self.capacities[one] for one, load in self.loads.items())
        return fullest * self._capacity / self._total

    def share(self, bookie: str) -> float:
        """The bytes that a bookie has if all is even."""
        return self._total * self.capacities[bookie] / self._capacity

    def is_too_full(self, bookie: str) -> bool:
        """Whether copies are to move away from this bookie."""
        return bookie in self.loads and (
            self.loads[bookie] > self.share(bookie) * (1 + self._tolerance)
        )

    def emptiest(self, nbytes: int) -> Iterator[str]:
        """Yields bookies that stay within their share with `nbytes` more, about the emptiest
        first: they are sorted again after a number of moves."""
        if self._moves_since >= _SORTED_AGAIN:
            self._moves_since = 0
            self._order = sorted(
                self.loads, key=lambda one: (self.loads[one] / self.capacities[one], one)
            )
        for bookie in self._order:
            if self.loads[bookie] + nbytes <= self.share(bookie):
                yield bookie


def copies_of(metadata: LedgerMetadata) -> Iterator[tuple[int, int, int]]:
    """Yields fragment, index and payload bytes of each copy in a closed ledger: its entries are
    taken to be of equal size."""
    if not metadata.is_closed or metadata.last_entry_id < 0:
        return
    share = metadata.write_quorum / metadata.ensemble_size
    per_entry = metadata.length * share / (metadata.last_entry_id + 1)
    for number, fragment in enumerate(metadata.fragments):
        first, last = fragment_bounds(metadata, number)
        nbytes = int(per_entry * max(0, last - first + 1))
        if nbytes:
            for index in range(len(fragment.bookies)):
                yield number, index, nbytes


def moves_of(metadata: LedgerMetadata, balance: Balance, topology: Topology) -> list[Move]:
    """Returns the copies of a closed ledger that are to move, and counts them in `balance`. They
    are made one after the other, before metadata is changed once."""
    found: list[Move] = []
    ensembles = [fragment.bookies for fragment in metadata.fragments]
    for number, index, nbytes in copies_of(metadata):
        old = ensembles[number][index]
        if not balance.is_too_full(old):
            continue
        ensemble = _without(metadata, ensembles[number], old, nbytes, balance, topology)
        if ensemble is not None:
            new, ensembles[number] = ensemble[index], ensemble
            balance.move(old, new, nbytes)
            found.append(Move(number, index, metadata.fragments[number].first_entry_id, old, new))
    return found


def _without(
    metadata: LedgerMetadata,
    ensemble: tuple[str, ...],
    old: str,
    nbytes: int,
    balance: Balance,
    topology: Topology,
) -> tuple[str, ...] | None:
    """Returns the ensemble with an emptier bookie instead of `old`, placed no worse; None if there
    is none."""
    policy = placement_or_default(metadata.custom)
    sizes = metadata.write_quorum, metadata.ack_quorum
    before = _GRADES.index(policy.adherence(ensemble, *sizes, topology).grade)
    others = (one for one in balance.emptiest(nbytes) if one not in ensemble)
    for new in islice(others, _TRIED_MAX):
        changed = tuple(new if one == old else one for one in ensemble)
        if _GRADES.index(policy.adherence(changed, *sizes, topology).grade) <= before:
            return changed
    return None
