"""Records which bookies acknowledged a watched entry, and when. Shell: `ledger.writing.receipts`.

Nothing is recorded for entries that are not watched. An ack of a bookie counts in the ensemble
that is stored for the entry: an ack of a bookie that was replaced before the entry was confirmed is
dropped, and an ack of its successor after the entry was confirmed is not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

WATCHED_MAX = 20_000
"""Entries watched at once. Beyond that the oldest is dropped: its receipt was not fetched."""
_SWEEP_MIN = 64


class WatchedEntry:
    """One entry and the indices of its write set.

    `acks` is by index: the bookie, and the time in seconds of the caller's clock.
    """

    __slots__ = ("acks", "closed", "entry_id", "members", "on_change")

    def __init__(self, entry_id: int, members: tuple[int, ...]) -> None:
        self.entry_id = entry_id
        self.members = members
        self.acks: dict[int, tuple[str, float]] = {}
        self.closed: dict[int, None] = {}
        """Indices at which the bookie was replaced after the entry was confirmed."""
        self.on_change: Callable[[], None] | None = None

    def open_members(self, failed: Collection[int]) -> list[int]:
        """Returns the indices that may still acknowledge it, assuming that `failed` will not."""
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
    """The watched entries of one writer, by id. Callers check `entries` first: it is mostly empty,
    and then nothing needs to be recorded."""

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
        """Begins to watch an entry that is not confirmed; a second call returns the same object.

        `heard` are earlier acks, by index; `confirmed` is the last add confirmed.
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
        """Drops entries that can get no further acks and whose receipts were not fetched."""
        self.entries = {
            entry_id: watched
            for entry_id, watched in self.entries.items()
            if entry_id > confirmed or watched.open_members(())
        }
        self._sweep_at = max(_SWEEP_MIN, 2 * len(self.entries))

    def forget(self, watched: WatchedEntry) -> None:
        """Stops watching the entry."""
        if self.entries.get(watched.entry_id) is watched:
            del self.entries[watched.entry_id]

    def acked(self, index: int, bookie: str, first: int, last: int, now_s: float) -> None:
        """Records that the bookie at `index` acknowledged its own entries of first..last."""
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
        """Notifies the watchers that a bookie failed: they no longer wait for its ack."""
        for watched in list(self.entries.values()):
            watched._changed()

    def ensemble_changed(self, replaced: tuple[int, ...], confirmed: int) -> None:
        """Records that the bookies at `replaced` changed for entries after `confirmed`."""
        for entry_id, watched in list(self.entries.items()):
            for index in replaced:
                if entry_id > confirmed:
                    watched.acks.pop(index, None)
                else:
                    watched.closed[index] = None
            watched._changed()
