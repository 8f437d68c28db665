"""Which entries of a closed ledger a bookie should hold, and which of them are missing. By ranges:
a ledger may have a hundred million entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ledger.core.metadata import LedgerMetadata, LedgerState

Range = tuple[int, int]
"""First and last entry, both included."""


def fixed_part(metadata: LedgerMetadata) -> LedgerMetadata:
    """What no writer and no recovery changes any more, as a closed ledger: of one that is open, all
    before its last fragment, for that begins behind what was confirmed."""
    if metadata.is_closed:
        return metadata
    last = metadata.fragments[-1].first_entry_id - 1
    return replace(metadata, state=LedgerState.CLOSED, last_entry_id=last)


def expected_ranges(metadata: LedgerMetadata, bookie: str) -> Iterator[Range]:
    """In order, without overlaps. The ledger must be closed."""
    assert metadata.is_closed, f"ledger {metadata.ledger_id} is not closed"
    size, quorum = metadata.ensemble_size, metadata.write_quorum
    ends = [fragment.first_entry_id - 1 for fragment in metadata.fragments[1:]]
    for fragment, end in zip(metadata.fragments, [*ends, metadata.last_entry_id], strict=True):
        first, last = fragment.first_entry_id, min(end, metadata.last_entry_id)
        if bookie not in fragment.bookies or first > last:
            continue
        if size == quorum:
            yield first, last
            continue
        # Of each `size` in a row, those from `index - quorum + 1` to `index`, counted round.
        begin = first - (first - (fragment.bookies.index(bookie) - quorum + 1)) % size
        for at in range(begin, last + 1, size):
            if at + quorum > first:
                yield max(at, first), min(at + quorum - 1, last)


def missing_ranges(expected: Iterable[Range], held: Iterable[Range]) -> Iterator[Range]:
    """What is expected and not held; both in order, `held` may overlap."""
    every = iter(held)
    have = next(every, None)
    for first, last in expected:
        at = first
        while at <= last:
            while have is not None and have[1] < at:
                have = next(every, None)
            if have is None or have[0] > last:
                yield at, last
                break
            if have[0] > at:
                yield at, have[0] - 1
            at = have[1] + 1
