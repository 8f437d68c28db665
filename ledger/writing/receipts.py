"""EntryAcks: which bookies have acknowledged an entry as durable. Core: `core.receipts`.

`LedgerWriter.watch_acks` makes one for an entry on request; all other entries cost nothing. It
lists only bookies that acknowledged the entry in the ensemble stored for it. Bookies that have not
answered in time are listed as such, and may answer later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import trio

from ledger.core.append import AppendCore
from ledger.core.entry import DigestType
from ledger.core.metadata import LedgerMetadata
from ledger.core.receipts import WatchedEntry


@dataclass(frozen=True, slots=True)
class BookieAck:
    """A bookie acknowledged that it fsynced the entry, `after_ms` after it was appended."""

    bookie: str
    after_ms: float


@dataclass(frozen=True, slots=True)
class EntryReceipt:
    """The acks of one entry. `acks` are in the order in which they arrived; `not_yet` are the
    bookies of its write set that had not acknowledged it."""

    ledger_id: int
    entry_id: int
    digest_type: DigestType
    digest: bytes
    is_confirmed: bool
    acks: tuple[BookieAck, ...]
    not_yet: tuple[str, ...]


class AckedWriter(Protocol):
    """The writer, as seen from here."""

    metadata: LedgerMetadata
    core: AppendCore


class EntryAcks:
    """Watches one entry.

    Args:
        digest: the one stored with the entry.
        watched: the core's record of the entry.
    """

    def __init__(
        self, writer: AckedWriter, watched: WatchedEntry, digest_type: DigestType, digest: bytes
    ) -> None:
        self.entry_id = watched.entry_id
        self.digest_type = digest_type
        self.digest = digest
        self._writer = writer
        self._watched = watched
        self._since_s = trio.current_time()
        self._changed = trio.Event()
        self._waiting = 0
        watched.on_change = self._notify_changed

    @property
    def is_confirmed(self) -> bool:
        """Whether this writer confirmed the entry."""
        return self._writer.core.last_add_confirmed >= self.entry_id

    async def settle(self, wait_s: float) -> EntryReceipt:
        """Returns the receipt once all replicas have acknowledged the entry, at the latest after
        `wait_s` seconds; at once if the remaining ones no longer can.

        For a confirmed entry: wait for that by `LedgerWriter.wait_confirmed`. Any number of tasks
        may wait; cancelling one loses nothing.
        """
        self._waiting += 1
        try:
            await trio.lowlevel.checkpoint()
            if self.is_confirmed and self._are_acks_open():
                with trio.move_on_after(wait_s):
                    while self._are_acks_open():
                        await self._changed.wait()
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._writer.core.ack_log.forget(self._watched)
        return self.receipt()

    def _notify_changed(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    def _are_acks_open(self) -> bool:
        return bool(self._watched.open_members(self._writer.core.failed))

    def receipt(self) -> EntryReceipt:
        """Returns the acks received so far."""
        metadata, watched = self._writer.metadata, self._watched
        acks = sorted(watched.acks.values(), key=lambda ack: ack[1])
        bookies = metadata.fragment_of(self.entry_id).bookies
        return EntryReceipt(
            metadata.ledger_id,
            self.entry_id,
            self.digest_type,
            self.digest,
            self.is_confirmed,
            tuple(
                BookieAck(bookie, round(1000 * (at_s - self._since_s), 3)) for bookie, at_s in acks
            ),
            tuple(bookies[index] for index in watched.members if index not in watched.acks),
        )
