"""Who must acknowledge what, and how far a ledger is confirmed. The shell is `ledger.writer`.

Hot core: methods and plain ints, nothing per entry. Instead of counting acks per entry it
keeps, for each bookie, the entry up to which *all* of its entries are acknowledged; the last
add confirmed follows by choosing the right one of these marks.

Entries are dealt to the ensemble in turn (facts 8.1). If every bookie gets every entry there
is one *class* of entries; with striping there are E classes (entry id mod E), and inside a
class all entries have the same write set. Acks out of order are kept aside until the gap
closes. The core never confirms while an ensemble change is under way: an entry must reach
its ack quorum in the ensemble that is stored.
"""

from __future__ import annotations

from ledger.core.quorum import check_sizes, stripe_step, write_set
from ledger.errors import RemoteProtocolError


class AppendCore:
    """The state of a ledger being written.

    Invariants: -1 <= last_add_confirmed <= last_add_pushed; `last_add_confirmed` never goes
    back; every entry up to it was acknowledged by `ack_quorum` bookies of its write set in
    the ensemble that is stored for it.
    """

    __slots__ = (
        "_acked",
        "_members",
        "_scattered",
        "ack_quorum",
        "ensemble_size",
        "failed",
        "is_held",
        "last_add_confirmed",
        "last_add_pushed",
        "stride",
        "write_quorum",
    )

    def __init__(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        check_sizes(ensemble_size, write_quorum, ack_quorum)
        self.ensemble_size = ensemble_size
        self.write_quorum = write_quorum
        self.ack_quorum = ack_quorum
        self.stride = stripe_step(ensemble_size, write_quorum)
        self.last_add_pushed = -1
        self.last_add_confirmed = -1
        self.failed: dict[int, None] = {}
        """Indices to be replaced, in the order they failed."""
        self.is_held = False
        # _acked[c][i]: all entries of class c up to this id are acknowledged by index i.
        self._acked = [[c - self.stride] * ensemble_size for c in range(self.stride)]
        self._members = [self.write_set(c) for c in range(self.stride)]
        self._scattered: dict[tuple[int, int], set[int]] = {}

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        """Indices of the bookies that get this entry."""
        return write_set(entry_id, self.ensemble_size, self.write_quorum)

    def acked(self, index: int, first: int, last: int) -> None:
        """Bookie `index` has entries first..last on disk (those of them that are its own).

        Call `advance` after a batch of these. Raises RemoteProtocolError for entries that
        were never sent.
        """
        if last > self.last_add_pushed or first > last or first < 0:
            raise RemoteProtocolError(
                f"acknowledgement of entries {first}..{last}, sent are 0..{self.last_add_pushed}"
            )
        stride = self.stride
        if stride == 1:
            self._acked_in_class(0, index, first, last)
            return
        for entry_id in range(first, last + 1):
            c = entry_id % stride
            if index in self._members[c]:
                self._acked_in_class(c, index, entry_id, entry_id)

    def _acked_in_class(self, c: int, index: int, first: int, last: int) -> None:
        marks = self._acked[c]
        mark = marks[index]
        stride = self.stride
        if last <= mark:
            return
        if first > mark + stride:
            self._scattered.setdefault((c, index), set()).update(range(first, last + 1, stride))
            return
        mark = last
        scattered = self._scattered.get((c, index))
        if scattered:
            while mark + stride in scattered:
                mark += stride
                scattered.discard(mark)
            if not scattered or max(scattered) <= mark:
                del self._scattered[c, index]
        marks[index] = mark

    def advance(self) -> int:
        """The last add confirmed, moved as far as the acks allow."""
        if self.is_held:
            return self.last_add_confirmed
        if self.stride == 1:
            confirmed = sorted(self._acked[0])[-self.ack_quorum]
        else:
            # In each class the first entry without its quorum; the lowest of them bounds all.
            confirmed = min(
                sorted([marks[i] for i in members])[-self.ack_quorum] + self.stride
                for marks, members in zip(self._acked, self._members, strict=True)
            )
            confirmed = min(confirmed - 1, self.last_add_pushed)
        if confirmed > self.last_add_confirmed:
            self.last_add_confirmed = confirmed
        return self.last_add_confirmed

    def acked_up_to(self, index: int) -> int:
        """Every entry sent to `index` with an id up to this one is acknowledged by it."""
        return min(
            marks[index] + self.stride - 1
            for marks, members in zip(self._acked, self._members, strict=True)
            if index in members
        )

    def fail(self, index: int) -> bool:
        """Bookie `index` can no longer be used; True if that is news. Holds confirmation until
        `ensemble_changed` or `go_on_without`."""
        if index in self.failed:
            return False
        self.failed[index] = None
        self.is_held = True
        return True

    def can_go_on_without_failed(self) -> bool:
        """Whether every write set still has an ack quorum among the bookies that work."""
        return all(
            sum(i not in self.failed for i in members) >= self.ack_quorum
            for members in self._members
        )

    def go_on_without(self) -> None:
        """No replacement for now: confirm by those that work, in the unchanged ensemble.

        Acks the failed bookies gave before still count: what they acknowledged is on disk.
        """
        assert self.can_go_on_without_failed(), "an ack quorum is out of reach"
        self.is_held = False

    def ensemble_changed(self, replaced: tuple[int, ...]) -> None:
        """The new ensemble is stored from `last_add_confirmed + 1` on: the bookies now at
        `replaced` have acknowledged nothing after that. The caller resends to them."""
        confirmed = self.last_add_confirmed
        for index in replaced:
            for c in range(self.stride):
                # The last entry of class c that is not after the confirmed one.
                self._acked[c][index] = confirmed - (confirmed - c) % self.stride
                self._scattered.pop((c, index), None)
            self.failed.pop(index, None)
        self.is_held = bool(self.failed)
