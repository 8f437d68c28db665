"""Adds recovered entries again, until each has its ack quorum in the ensemble that will be stored.

The part of recovery that writes. Ensembles change in memory only; they are stored together with the
end of the ledger. It must never count acks of a bookie that the stored ensemble will not name, nor
let a new fragment begin before the last one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ledger.core.entry import Entry
from ledger.core.metadata import LedgerMetadata
from ledger.core.quorum import write_set
from ledger.core.recovery_events import Action, AddEntry, BookieChosen, Buffer, ReplaceBookie
from ledger.errors import LedgerError, RecoveryIncomplete


@dataclass(slots=True)
class _Add:
    """One entry that is added again. Acks of a replaced bookie do not count."""

    entry: Entry
    body: Buffer
    acked: list[str] = field(default_factory=list)


class RecoveryAdds:
    """Adds of consecutive entries after `confirmed`.

    Invariants: every entry up to `confirmed` has its ack quorum in `metadata`'s ensembles;
    `metadata` differs from the stored one only by ensembles of entries after those that were
    confirmed when it changed.
    """

    def __init__(self, metadata: LedgerMetadata, attempt: int, confirmed: int) -> None:
        self.metadata = metadata
        self.confirmed = confirmed
        self.length: int | None = None
        """The ledger's length up to `confirmed`, once an entry was confirmed here."""
        self._attempt = attempt
        self._adds: dict[int, _Add] = {}
        self._failed: dict[str, str] = {}
        """Bookies that failed an add, and why."""
        self._unreplaced: list[str] = []
        """Failed bookies that stay in the ensemble, because there is no replacement."""
        self._replacing: ReplaceBookie | None = None

    @property
    def is_settled(self) -> bool:
        """Whether nothing is in flight."""
        return not self._adds and self._replacing is None

    def begin(self, entry: Entry, body: Buffer) -> list[Action]:
        """Begins to add the next entry, byte for byte as the writer made it."""
        self._adds[entry.entry_id] = _Add(entry, body)
        return [
            AddEntry(self._attempt, bookie, entry.entry_id, body)
            for bookie in self._replicas(entry.entry_id)
        ]

    def acked(self, action: AddEntry) -> None:
        add = self._adds.get(action.entry_id)
        if add is not None:
            add.acked.append(action.bookie)

    def failed(self, action: AddEntry, reason: str) -> list[Action]:
        """Replaces a bookie that did not store an entry, for all entries not yet confirmed."""
        if action.entry_id not in self._adds or action.bookie in self._failed:
            return []
        self._failed[action.bookie] = reason
        return self._replace_next()

    def _replace_next(self) -> list[Action]:
        if self._replacing is not None:
            return []
        ensemble = self.metadata.last_fragment.bookies
        for index, bookie in enumerate(ensemble):
            if bookie in self._failed and bookie not in self._unreplaced:
                excluded = tuple(self._failed)
                self._replacing = ReplaceBookie(self._attempt, index, ensemble, excluded)
                return [self._replacing]
        return []

    def chosen(self, event: BookieChosen) -> list[Action]:
        """Puts the chosen bookie in the place of the failed one, and sends it its entries."""
        assert event.action == self._replacing, f"{event.action} is not {self._replacing}"
        self._replacing = None
        ensemble = list(event.action.ensemble)
        index = event.action.index
        if event.bookie is None:
            self._unreplaced.append(ensemble[index])
            return self._replace_next()
        assert event.bookie not in ensemble, f"{event.bookie} twice in {ensemble}"
        assert event.bookie not in self._failed, f"{event.bookie} has failed already"
        ensemble[index] = event.bookie
        # Entries up to `confirmed` have their quorum in their ensembles. The next one is never
        # before the last fragment, where reading began.
        first = self.confirmed + 1
        assert first >= self.metadata.last_fragment.first_entry_id, f"fragment from {first}"
        self.metadata = self.metadata.with_ensemble(first, tuple(ensemble))
        actions: list[Action] = [
            AddEntry(self._attempt, event.bookie, entry_id, add.body)
            for entry_id, add in self._adds.items()
            if event.bookie in self._replicas(entry_id)
        ]
        return actions + self._replace_next()

    def confirm(self) -> None:
        """Advances `confirmed` as far as the acks allow."""
        if self._replacing is not None:
            return  # entries not yet confirmed may get another ensemble
        while add := self._adds.get(self.confirmed + 1):
            replicas = self._replicas(add.entry.entry_id)
            if sum(b in add.acked for b in replicas) < self.metadata.ack_quorum:
                return
            self.confirmed += 1
            self.length = add.entry.length
            del self._adds[self.confirmed]

    def unreachable(self) -> LedgerError | None:
        """Returns an error if there is an entry that can no longer reach its ack quorum."""
        if not self._unreplaced:
            return None
        needed = self.metadata.ack_quorum
        for entry_id, add in self._adds.items():
            replicas = self._replicas(entry_id)
            lost = [b for b in replicas if b in self._unreplaced and b not in add.acked]
            if len(replicas) - len(lost) < needed:
                said = "; ".join(f"{b}: {self._failed[b]}" for b in lost)
                return RecoveryIncomplete(
                    f"ledger {self.metadata.ledger_id}: entry {entry_id} was found but cannot be "
                    f"added again: {needed} acks needed, {len(lost)} of {len(replicas)} bookies "
                    f"failed ({said}) and no other bookie is available. The ledger stays in "
                    "recovery; open it again later"
                )
        return None

    def _replicas(self, entry_id: int) -> list[str]:
        metadata = self.metadata
        indices = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
        return [metadata.last_fragment.bookies[i] for i in indices]
