"""What bookies claim during a recovery about the last add confirmed, and what stands behind it.

Each entry carries the last add confirmed (LAC) of its writer: all entries up to it were confirmed.
A recovery reads on from there; but one bookie, or one forged frame, can claim any LAC. So a claim
is only where to look: it counts if the entry that it names, and entries drawn at random before it,
are shown by bookies. A claim must never end a ledger: only denials of an entry do
(`ledger.core.recovery`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ledger.core.entry import Entry
from ledger.core.metadata import LedgerMetadata
from ledger.core.quorum import negatives_needed
from ledger.core.recovery_events import Buffer

_WITNESSES = 2
"""Bookies that have to speak for a claim, where entries have as many copies: one that holds the
entry, and another that holds it or claims it to be confirmed."""
_MULTIPLIER = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


@dataclass(slots=True)
class EntryRead:
    """One entry that is being read: from one replica first, then from all others at once."""

    entry_id: int
    order: tuple[str, ...]
    is_fencing: bool
    is_check: bool = False
    asked: int = 0
    negative: list[str] = field(default_factory=list)
    silent: dict[str, str] = field(default_factory=dict)
    holders: list[str] = field(default_factory=list)
    found: Entry | None = None
    body: Buffer = b""

    @property
    def is_exhausted(self) -> bool:
        return len(self.negative) + len(self.silent) + len(self.holders) == len(self.order)

    def arithmetic(self) -> str:
        said = [f"{b}: holds it" for b in self.holders]
        said += [f"{b}: no such entry" for b in self.negative]
        said += [f"{b}: {reason}" for b, reason in self.silent.items()]
        return "; ".join(said)


class Claims:
    """The greatest LAC that each bookie claimed, after the end of the last fragment but one.

    That end needs no proof: the writer stored it with the metadata.
    """

    def __init__(self, metadata: LedgerMetadata) -> None:
        self._first = metadata.last_fragment.first_entry_id
        self._denials = negatives_needed(metadata.write_quorum, metadata.ack_quorum)
        self._witnesses = min(_WITNESSES, metadata.ack_quorum)
        self._claimed: dict[str, int] = {}
        self._tried: set[int] = set()
        self._rejected: set[int] = set()

    def note(self, bookie: str, entry: Entry) -> None:
        """Notes what an entry with a valid digest claims. A writer cannot have known that an entry
        was confirmed when it sent it, so no entry says so of itself."""
        claimed = min(entry.lac, entry.entry_id - 1)
        if claimed >= self._first:
            self._claimed[bookie] = max(self._claimed.get(bookie, -1), claimed)

    def next_start(self) -> int | None:
        """Returns the greatest claim that was not returned before; None if there is none."""
        left = set(self._claimed.values()) - self._tried
        if not left:
            return None
        claimed = max(left)
        self._tried.add(claimed)
        return claimed

    def reject(self, claimed: int) -> None:
        """Notes that a claim is not shown: its claimants are no witnesses of lesser ones."""
        self._rejected.add(claimed)

    def up_from(self, entry_id: int) -> list[int]:
        """Returns the claims by which `entry_id` is confirmed, the greatest first."""
        return sorted({c for c in self._claimed.values() if c >= entry_id}, reverse=True)

    def after(self, last_entry_id: int) -> dict[str, int]:
        """Returns what each bookie claims, if it is after `last_entry_id`."""
        return {b: claimed for b, claimed in self._claimed.items() if claimed > last_entry_id}

    def order(self, entry_id: int, replicas: list[str]) -> list[str]:
        """Returns the order in which to ask about a claim: so that the first answer can show it,
        which is that of a claimant only if another bookie claims it too."""
        claimants = self._witnessing(entry_id)
        is_first = len(claimants) >= self._witnesses
        return sorted(replicas, key=lambda b: (b in claimants) is not is_first)

    def claimants(self, entry_id: int) -> list[str]:
        """Returns the bookies that claim `entry_id` to be confirmed."""
        return [bookie for bookie, claimed in self._claimed.items() if claimed >= entry_id]

    def _witnessing(self, entry_id: int) -> list[str]:
        return [b for b in self.claimants(entry_id) if self._claimed[b] not in self._rejected]

    def probes(self, claimed: int, salt: int) -> list[int]:
        """Returns entries before `claimed` that have to be there if it is true.

        One at a distance of 1, one of 2 to 3, of 4 to 7, and so on, drawn by `salt`: who forges the
        last K entries of a ledger is found out by a hole of K entries before them.
        """
        probes: list[int] = []
        least = 1
        while claimed - least >= self._first:
            salt = (salt * _MULTIPLIER + 1) & _MASK
            farthest = min(2 * least - 1, claimed - self._first)
            probes.append(claimed - least - (salt >> 16) % (farthest - least + 1))
            least *= 2
        return probes

    def is_shown(self, read: EntryRead, claimed: int) -> bool:
        """Whether enough bookies speak for a read entry as for one that `claimed` covers."""
        speaking = {*read.holders, *self._witnessing(claimed)}
        return bool(read.holders) and len(speaking) >= self._witnesses

    def is_trusted(self, read: EntryRead, claimed: int) -> bool:
        """Whether reading may begin after an entry that is shown, or that every replica which
        answers holds: then there is no other bookie to ask."""
        return self.is_shown(read, claimed) or (
            read.is_exhausted and bool(read.holders) and not read.negative
        )

    def is_refuted(self, read: EntryRead) -> bool:
        """Whether a claimed entry was never confirmed, by the proof that ends a ledger: too few
        of its bookies are left for an ack quorum. One that claimed it and is silent now may hold
        it."""
        return (
            read.is_exhausted
            and not self.is_shown(read, read.entry_id)
            and len(read.negative) >= self._denials
            and not self.silent_claimants(read)
        )

    def silent_claimants(self, read: EntryRead) -> list[str]:
        """Returns the replicas that claim the entry to be confirmed, and now do not answer."""
        return [bookie for bookie in self.claimants(read.entry_id) if bookie in read.silent]
