"""What an audit concludes from the metadata of one ledger, and counts over all of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from ledger.core.autorecovery.bookies import Bookies, BookieState
from ledger.core.autorecovery.plan import copies_left
from ledger.core.metadata import LedgerMetadata


def to_be_copied(metadata: LedgerMetadata, bookies: Bookies) -> tuple[str, ...]:
    """Returns the bookies of which the ledger needs copies elsewhere: lost ones, and those that are
    to be emptied. All fragments count, also those without entries, because a bookie is only out of
    the cluster when no metadata names it."""
    named = dict.fromkeys(one for fragment in metadata.fragments for one in fragment.bookies)
    return tuple(
        one for one in named if bookies.state_of(one) in (BookieState.LOST, BookieState.EMPTYING)
    )


def bytes_named(metadata: LedgerMetadata, bookie: str) -> int:
    """Returns about how many payload bytes the metadata says that a bookie holds of a closed
    ledger: entries are taken to be of equal size."""
    if not metadata.is_closed or metadata.last_entry_id < 0:
        return 0
    entries = 0
    ends = [fragment.first_entry_id for fragment in metadata.fragments[1:]]
    for fragment, end in zip(metadata.fragments, [*ends, metadata.last_entry_id + 1], strict=True):
        if bookie in fragment.bookies:
            last = min(end, metadata.last_entry_id + 1)
            entries += max(0, last - fragment.first_entry_id)
    share = metadata.write_quorum / metadata.ensemble_size
    return int(metadata.length * share * entries / (metadata.last_entry_id + 1))


@dataclass(slots=True)
class Count:
    """A number of ledgers and their payload bytes; those of open ledgers are not known."""

    ledgers: int = 0
    bytes: int = 0

    def add(self, metadata: LedgerMetadata) -> None:
        self.ledgers += 1
        self.bytes += metadata.length


@dataclass(slots=True)
class CopyCounts:
    """Ledgers by the number of copies that live bookies should have of their entries. A ledger is
    in the worst group that applies; without a copy are those of which all bookies are lost: one
    that is down may have it."""

    all: Count = field(default_factory=Count)
    below_write_quorum: Count = field(default_factory=Count)
    below_ack_quorum: Count = field(default_factory=Count)
    without_copy: Count = field(default_factory=Count)

    def add(self, metadata: LedgerMetadata, bookies: Bookies) -> None:
        """Counts a ledger."""
        self.all.add(metadata)
        left = copies_left(metadata, bookies)
        if left == 0 and copies_left(metadata, bookies, are_awaited_live=True) == 0:
            self.without_copy.add(metadata)
        elif left < metadata.ack_quorum:
            self.below_ack_quorum.add(metadata)
        elif left < metadata.write_quorum:
            self.below_write_quorum.add(metadata)
