"""Decides where a ledger ends whose stored end, or whose last entries, are behind a hole.

Shell: `ledger.repair`. Its input are the entries that every bookie of the ledger holds. It must
never cut off an entry that a bookie holds without a hole before it, nor take entries behind a hole
for forged ones while they could as well be what is left of the ledger's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ledger.core.availability import Range, held_without_hole
from ledger.core.metadata import LedgerMetadata, LedgerState
from ledger.errors import InvalidArgument, RecoveryIncomplete


@dataclass(frozen=True, slots=True)
class Hole:
    """The first entries of a ledger that no bookie holds, and what is around them.

    `end` is the last entry before it, -1 if the ledger begins with it. Of the entries after `end`,
    up to the last one that is stored or held, `missing` are at no bookie and `behind` are at one.
    """

    end: int
    missing: int
    behind: int


def find_hole(metadata: LedgerMetadata, held: Sequence[Sequence[Range]]) -> Hole | None:
    """Returns the first hole before the ledger's end, or before the last entry that is held if it
    has none; None if there is no hole.

    Args:
        held: of each bookie of the ledger, all entries that it holds.
    """
    last = metadata.last_entry_id
    if not metadata.is_closed:
        last = max((last for ranges in held for _, last in ranges), default=-1)
    ranges = sorted((a, min(b, last)) for ranges in held for a, b in ranges if a <= last)
    entries, behind = held_without_hole(ranges)
    if entries > last:
        return None
    return Hole(entries - 1, last - entries + 1 - behind, behind)


def check_end(metadata: LedgerMetadata, hole: Hole, end: int | None) -> None:
    """Raises RecoveryIncomplete if it is in doubt that the ledger ends before the hole, and
    InvalidArgument if the operator names an `end` that is not the last entry before it."""
    where = f"ledger {metadata.ledger_id}"
    if end is not None and end != hole.end:
        raise InvalidArgument(
            f"{where}: the last entry before the first one that no bookie holds is {hole.end}, "
            f"not {end}"
        )
    if end is None and hole.behind >= hole.missing:
        raise RecoveryIncomplete(
            f"{where}: no bookie holds entry {hole.end + 1}, but after it {hole.behind} entries "
            f"are held and {hole.missing} are not: they may be the ledger's own, and bookies may "
            "have lost those between. Nothing was changed. If they are forged, give "
            f"--end {hole.end}"
        )


def repaired(metadata: LedgerMetadata, end: int, length: int) -> LedgerMetadata:
    """Returns the metadata of the ledger closed at `end`, with `length` payload bytes, without the
    ensembles of entries after it."""
    first, *others = metadata.fragments
    fragments = (first, *(f for f in others if f.first_entry_id <= end + 1))
    return replace(
        metadata, state=LedgerState.CLOSED, last_entry_id=end, length=length, fragments=fragments
    )
