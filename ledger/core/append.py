"""Decides which acks confirm which entries of a ledger. Shell: `ledger.writing.writer`.

A hot core: methods and plain integers, no objects per entry. Instead of counting acks per entry it
keeps, for each bookie, the entry up to which *all* of its entries are acknowledged; the last add
confirmed is computed from these marks.

Entries go to the bookies of the ensemble in turn, as in Apache's
`RoundRobinDistributionSchedule`. If every bookie gets every entry there is one *class* of
entries; with striping there are E classes (entry id mod E), and inside a class all entries have
the same write set. Acks out of order are kept aside until the gap closes. The core never confirms
during an ensemble change: an entry must reach its ack quorum in the ensemble that is stored.

With deferred sync an ack does not mean durable: then acks advance only the last add acknowledged,
and the last add confirmed follows once the bookies that acknowledged were forced.

What a bookie *lacks* are confirmed entries of its own that it is not known to have on disk: some
other bookies made up their ack quorum.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ledger.core.quorum import check_sizes, stripe_step, write_set
from ledger.core.receipts import AckLog, WatchedEntry
from ledger.errors import RemoteProtocolError

Marks = tuple[tuple[int, ...], ...]
"""By class and index: the entry up to which all entries are acknowledged."""


class AppendCore:
    """The state of a ledger being written.

    Invariants: -1 <= last_add_confirmed <= last_add_acknowledged <= last_add_pushed, and none of
    them ever decreases; every entry up to `last_add_acknowledged` was acknowledged by `ack_quorum`
    bookies of its write set in the ensemble that is stored for it; the first two are equal unless
    sync is deferred, and every confirmed entry is durable on an ack quorum.
    """

    __slots__ = (
        "_acked",
        "_durable",
        "_key_refused_after",
        "_key_refused_by",
        "_members",
        "_scattered",
        "ack_log",
        "ack_quorum",
        "ensemble_size",
        "failed",
        "is_suspended",
        "is_sync_deferred",
        "last_add_acknowledged",
        "last_add_confirmed",
        "last_add_pushed",
        "stride",
        "write_quorum",
    )

    def __init__(
        self,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        *,
        is_sync_deferred: bool = False,
    ) -> None:
        check_sizes(ensemble_size, write_quorum, ack_quorum)
        self.ensemble_size = ensemble_size
        self.write_quorum = write_quorum
        self.ack_quorum = ack_quorum
        self.stride = stripe_step(ensemble_size, write_quorum)
        self.last_add_pushed = -1
        self.last_add_acknowledged = -1
        self.last_add_confirmed = -1
        self.is_sync_deferred = is_sync_deferred
        self.failed: dict[int, None] = {}
        """Indices to be replaced, in the order they failed."""
        self.is_suspended = False
        self._key_refused_by: set[str] = set()
        """The bookies that refused the key since entry `_key_refused_after` was acknowledged."""
        self._key_refused_after = -1
        self.ack_log = AckLog()
        """Which bookies acknowledged the watched entries; mostly empty."""
        # _acked[c][i]: all entries of class c up to this id are acknowledged by index i.
        self._acked = [[c - self.stride] * ensemble_size for c in range(self.stride)]
        # The same for what each index has on disk: an ack means that, unless sync is deferred.
        self._durable = [[*marks] for marks in self._acked] if is_sync_deferred else self._acked
        self._members = [write_set(c, ensemble_size, write_quorum) for c in range(self.stride)]
        self._scattered: dict[tuple[int, int], set[int]] = {}

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        """Returns the indices of the bookies that get this entry."""
        return self._members[entry_id % self.stride]

    def acked(self, index: int, first: int, last: int) -> None:
        """Records that bookie `index` has entries first..last on disk, as far as they are its own.

        The caller calls `advance` after a batch of these. Raises RemoteProtocolError for entries
        that were never sent.
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

    def watch(self, entry_id: int, bookies: Sequence[str], now_s: float) -> WatchedEntry:
        """Begins to record which bookies acknowledge an entry that is sent and not confirmed.

        `bookies` is the ensemble; for those that acknowledged the entry before, `now_s` is
        recorded as the time.
        """
        assert self.last_add_confirmed < entry_id <= self.last_add_pushed, f"entry {entry_id}"
        c = entry_id % self.stride
        members = self._members[c]
        heard = {
            index: (bookies[index], now_s)
            for index in members
            if self._acked[c][index] >= entry_id or entry_id in self._scattered.get((c, index), ())
        }
        return self.ack_log.watch(entry_id, members, heard, self.last_add_confirmed)

    def advance(self) -> int:
        """Advances the last add acknowledged as far as the acks allow, and returns it."""
        if self.is_suspended:
            return self.last_add_acknowledged
        acknowledged = self._quorum_of(self._acked)
        if acknowledged > self.last_add_acknowledged:
            self.last_add_acknowledged = acknowledged
            if not self.is_sync_deferred:
                self.last_add_confirmed = acknowledged
        return self.last_add_acknowledged

    def _quorum_of(self, acked: Sequence[Sequence[int]]) -> int:
        """Returns the entry up to which all have their ack quorum by the marks `acked`."""
        if self.stride == 1:
            return sorted(acked[0])[-self.ack_quorum]
        # In each class the first entry without its quorum; the lowest of them bounds all.
        first_without = min(
            sorted([marks[i] for i in members])[-self.ack_quorum] + self.stride
            for marks, members in zip(acked, self._members, strict=True)
        )
        return min(first_without - 1, self.last_add_pushed)

    def marks(self) -> Marks:
        """Returns what each bookie has acknowledged; taken before bookies are forced."""
        return tuple(map(tuple, self._acked))

    def forced(self, marks: Marks, indices: Collection[int]) -> int:
        """Records that the bookies at `indices` synced everything acknowledged by `marks`, and
        advances the last add confirmed accordingly. Returns the entry that the sync covers, which
        may be less than acks have confirmed.

        Marks taken before an ensemble change must not be used: they may be of other bookies.
        """
        durable = self._quorum_of(
            [
                # A bookie that was not forced is sure to hold only confirmed entries.
                [
                    mark if i in indices else self._last_of_class(c)
                    for i, mark in enumerate(of_class)
                ]
                for c, of_class in enumerate(marks)
            ]
        )
        for of_class, durable_of_class in zip(marks, self._durable, strict=True):
            for i in indices:
                durable_of_class[i] = max(durable_of_class[i], of_class[i])
        confirmed = min(durable, self.last_add_acknowledged)
        self.last_add_confirmed = max(self.last_add_confirmed, confirmed)
        return confirmed

    def acks_of(self, index: int) -> int:
        """Returns a number that grows with each entry that `index` acknowledges, and otherwise
        changes in `ensemble_changed` only."""
        in_order = sum(marks[index] // self.stride for marks in self._acked)
        return in_order + sum(len(s) for (_, i), s in self._scattered.items() if i == index)

    def key_refused(self, index: int, bookie: str, first_entry_id: int) -> bool:
        """Records that a bookie refused the key of the ledger, and returns whether it may have
        the id under another one: few have since the last progress, and it took no entry before.

        Args:
            index: its place in the ensemble.
            bookie: its id.
            first_entry_id: with which the fragment begins.
        """
        if self.acked_up_to(index) >= first_entry_id + self.stride - 1:
            return False
        if self.last_add_acknowledged > self._key_refused_after:
            self._key_refused_after = self.last_add_acknowledged
            self._key_refused_by.clear()
        self._key_refused_by.add(bookie)
        # Those that were silent when the ledger was claimed (`ledger.core.ledger_claims`).
        tolerated = max(1, self.write_quorum - self.ack_quorum)
        return len(self._key_refused_by) <= min(tolerated, self.ensemble_size - 1)

    def acked_up_to(self, index: int) -> int:
        """Returns the id up to which `index` acknowledged every entry that was sent to it."""
        return min(
            marks[index] + self.stride - 1
            for marks, members in zip(self._acked, self._members, strict=True)
            if index in members
        )

    def lacks(self, index: int) -> bool:
        """Whether `index` lacks a confirmed entry. What was acknowledged at its index before a
        bookie took the place of another does not count: `ensemble_changed` begins from scratch."""
        return any(
            durable[index] < self._last_of_class(c)
            for c, (durable, members) in enumerate(zip(self._durable, self._members, strict=True))
            if index in members
        )

    def fail(self, index: int) -> bool:
        """Marks bookie `index` as unusable, and suspends confirmation until `ensemble_changed` or
        `continue_without_failed`. Returns False if it was marked already."""
        if index in self.failed:
            return False
        self.failed[index] = None
        self.is_suspended = True
        self.ack_log.failed()
        return True

    def can_continue_without_failed(self) -> bool:
        """Whether every write set still has an ack quorum among the bookies that work."""
        return all(
            sum(i not in self.failed for i in members) >= self.ack_quorum
            for members in self._members
        )

    def continue_without_failed(self) -> None:
        """Confirms by the working bookies of the unchanged ensemble, as there is no replacement.

        Earlier acks of the failed bookies still count: what they acknowledged is on disk.
        """
        assert self.can_continue_without_failed(), "an ack quorum is out of reach"
        self.is_suspended = False

    def restored(self, index: int) -> None:
        """Records that the failed bookie `index` is used again as if it had not failed: nothing was
        sent without it, and it lacks nothing."""
        assert self.last_add_pushed == self.last_add_confirmed, "entries were sent without it"
        assert not self.lacks(index), f"index {index} lacks entries"
        del self.failed[index]
        self.is_suspended = bool(self.failed)

    def ensemble_changed(self, replaced: tuple[int, ...]) -> None:
        """Records that the new ensemble is stored from `last_add_confirmed + 1` on: the bookies now
        at `replaced` have acknowledged nothing after that. The caller resends to them."""
        confirmed = self.last_add_confirmed
        # Entries acknowledged and not yet durable would stay behind in the old ensemble.
        assert confirmed == self.last_add_acknowledged, f"{confirmed} is not all acknowledged"
        for index in replaced:
            for c in range(self.stride):
                self._acked[c][index] = self._durable[c][index] = self._last_of_class(c)
                self._scattered.pop((c, index), None)
            self.failed.pop(index, None)
        self.is_suspended = bool(self.failed)
        self.ack_log.ensemble_changed(replaced, confirmed)

    def _last_of_class(self, c: int) -> int:
        """Returns the last entry of class `c` that is not after the last add confirmed."""
        confirmed = self.last_add_confirmed
        return confirmed - (confirmed - c) % self.stride
