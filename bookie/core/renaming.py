"""Decides how the metadata of a ledger changes when one of its bookies gets another id.

The disks stay the same, so no copy moves. A closed ledger, and the earlier fragments of an open
one, only get the other name. The last fragment of an open ledger belongs to its writer: one that
lives would store the old name again, and one that is only believed to be gone might. So the change
of a last fragment stores IN_RECOVERY with it, as a client does that begins a recovery: from then on
no writer can change an ensemble of the ledger or close it, and a recovery that was in progress
finds that the metadata changed, and reads it again.
"""

from __future__ import annotations

import enum
from dataclasses import replace

from ledger.core.metadata import LedgerMetadata, LedgerState


class Hold(enum.Enum):
    """Why a ledger cannot be changed; the value is a sentence with the cure."""

    WRITER_LIVES = (
        "it is open, and its writer is alive. Cure: close the writer, or wait: an idle writer"
        " replaces a bookie that is down after idle_replacement_delay_s"
    )
    IN_RECOVERY = (
        "it is being recovered, or a client that recovered it has died. Cure: wait, or open it;"
        " --include-open, if its recovery cannot end without this bookie"
    )
    WRITER_UNKNOWN = (
        "it is open, and was made by a program that does not say whether it is alive. Cure: close"
        " or recover it; --include-open, if that program has ended: it could not append any more"
    )


def names_bookie(metadata: LedgerMetadata, bookie: str) -> bool:
    """Whether a fragment of the ledger names the bookie."""
    return any(bookie in fragment.bookies for fragment in metadata.fragments)


def held_by(
    metadata: LedgerMetadata, old: str, *, names_writer: bool, is_writer_alive: bool
) -> Hold | None:
    """Returns what forbids to change `old` in a ledger; None if nothing does."""
    if metadata.is_closed or old not in metadata.last_fragment.bookies:
        return None
    if metadata.state is LedgerState.IN_RECOVERY:
        return Hold.IN_RECOVERY
    if is_writer_alive:
        return Hold.WRITER_LIVES
    return None if names_writer else Hold.WRITER_UNKNOWN


def renamed(metadata: LedgerMetadata, old: str, new: str) -> LedgerMetadata:
    """Returns metadata with `new` in each place of `old`, in recovery if that is an open ledger's
    last fragment. `new` must not be in the ledger yet."""
    fragments = tuple(
        replace(one, bookies=tuple(new if bookie == old else bookie for bookie in one.bookies))
        for one in metadata.fragments
    )
    changed = replace(metadata, fragments=fragments)
    if not metadata.is_closed and old in metadata.last_fragment.bookies:
        return changed.in_recovery()
    return changed
