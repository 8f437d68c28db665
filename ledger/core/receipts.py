"""Who acknowledged a watched entry, and when. Shell: `ledger.writing.receipts`.

Nothing is kept of entries nobody asked about. An entry counts as acknowledged by a bookie only
in the ensemble that is stored for it: what a bookie said that was replaced before the entry was
confirmed is forgotten, and what its successor says after it was confirmed is not taken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

WATCHED_MAX = 20_000
"""Entries watched at once. Then the oldest is given up: nobody asked for it for long."""
_SWEEP_MIN = 64


class WatchedEntry:
    """One entry and the indices of its write set.

    `acks` are by index: which bookie, and when in seconds of the caller's clock.
    """

    __slots__ = ("acks", "closed", "entry_id", "members", "on_change")

    def __init__(self, entry_id: int, members: tuple[int, ...]) -> None:
        self.entry_id = entry_id
        self.members = members
        self.acks: dict[int, tuple[str, float]] = {}
        self.closed: dict[int, None] = {}
        """Indices at which there is another bookie since the entry was confirmed."""
        self.on_change: Callable[[], None] | None = None

    def open_members(self, failed: Collection[int]) -> list[int]:
        """Indices that may acknowledge it yet, if those `failed` will not."""
        return [
            index
            for index in self.members
            if index not in self.acks and index not in self.closed and index not in failed
        ]

    def _acked(self, index: int, bookie: str, now_s: float) -> None:
        if index in self.members and index not in self.acks and index not in self.closed:
            self.acks[index] = bookie, now_s
            self._changed()

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()


class AckLog:
    """The watched entries of one writer, by id. Callers look at `entries` first: mostly it is
    empty, and then nothing needs to be told."""

    __slots__ = ("_sweep_at", "entries")

    def __init__(self) -> None:
        self.entries: dict[int, WatchedEntry] = {}
        self._sweep_at = _SWEEP_MIN

    def watch(
        self,
        entry_id: int,
        members: tuple[int, ...],
        heard: Mapping[int, tuple[str, float]],
        confirmed: int,
    ) -> WatchedEntry:
        """Begins to watch an entry that is not confirmed; again gives the same object.

        `heard` are acks that came before, by index; `confirmed` is the last add confirmed.
        """
        watched = self.entries.get(entry_id)
        if watched is None:
            if len(self.entries) >= self._sweep_at:
                self._sweep(confirmed)
            if len(self.entries) >= WATCHED_MAX:
                del self.entries[next(iter(self.entries))]
            watched = self.entries[entry_id] = WatchedEntry(entry_id, members)
            watched.acks.update(heard)
        return watched

    def _sweep(self, confirmed: int) -> None:
        """Drops what there is no more to learn about, and whoever asked did not fetch."""
        self.entries = {
            entry_id: watched
            for entry_id, watched in self.entries.items()
            if entry_id > confirmed or watched.open_members(())
        }
        self._sweep_at = max(_SWEEP_MIN, 2 * len(self.entries))

    def forget(self, watched: WatchedEntry) -> None:
        """Nobody wants to know more about it."""
        if self.entries.get(watched.entry_id) is watched:
            del self.entries[watched.entry_id]

    def acked(self, index: int, bookie: str, first: int, last: int, now_s: float) -> None:
        """The bookie at `index` acknowledged entries first..last, those that are its own."""
        entries = self.entries
        if last - first < len(entries):
            found = [
                entries[entry_id] for entry_id in range(first, last + 1) if entry_id in entries
            ]
        else:
            found = [watched for entry_id, watched in entries.items() if first <= entry_id <= last]
        for watched in found:
            watched._acked(index, bookie, now_s)

    def failed(self) -> None:
        """A bookie is given up: whoever waits for its ack looks again."""
        for watched in list(self.entries.values()):
            watched._changed()

    def ensemble_changed(self, replaced: tuple[int, ...], confirmed: int) -> None:
        """Other bookies are at the indices `replaced`, for entries after `confirmed`."""
        for entry_id, watched in list(self.entries.items()):
            for index in replaced:
                if entry_id > confirmed:
                    watched.acks.pop(index, None)
                else:
                    watched.closed[index] = None
            watched._changed()
