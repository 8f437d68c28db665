"""Mends a stream whose newest segment has a ledger that was closed at a wrong end.

No record can be appended, read or verified then: the takeover cannot read the ledger's last entry.
`ledger.repair` finds the right end. It must never change a segment that is sealed.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledger.errors import RecoveryIncomplete
from ledger.repair import LedgerRepair, plan_repair
from stream.core.entry.format import read_header
from stream.errors import RecordFormatError
from stream.scope import NamespaceScope


@dataclass(frozen=True, slots=True)
class StreamRepair:
    """The newest segment of a stream, and how its ledger is mended. `next_sequence` is that of the
    first record that can be appended afterwards."""

    segment: int
    ledger: LedgerRepair
    next_sequence: int


async def repair_stream(
    scope: NamespaceScope, stream: str, *, end: int | None = None, is_dry_run: bool = False
) -> StreamRepair | None:
    """Closes the ledger of the newest segment at the last entry before a hole, unless it
    `is_dry_run`. Returns what was wrong; None if there is nothing to mend.

    Args:
        end: the last entry that stays, where it is in doubt whose the entries behind the hole are.

    Raises NoSuchStream, RecoveryIncomplete (doubt remains, nothing was changed), InvalidArgument,
    MetadataConflict (another client changed the ledger; try again), MetadataUnavailable.
    """
    metadata = await scope.stream_metadata(stream)
    segment = metadata.segments[-1] if metadata.segments else None
    if segment is None or not segment.is_open:
        return None
    plan = await plan_repair(scope.client, segment.ledger_id, end=end)
    if plan is None:
        return None
    next_sequence = segment.first_sequence
    if plan.last_entry is not None:
        try:
            header = read_header(plan.last_entry.payload)
        except RecordFormatError as error:
            raise RecoveryIncomplete(
                f"entry {plan.hole.end} of ledger {segment.ledger_id}, the last one before the "
                f"hole, holds no records: {error}. Nothing was changed"
            ) from error
        next_sequence = header.first_sequence + header.count
        if header.is_sequence_in_segment:
            next_sequence += segment.first_sequence
    if not is_dry_run:
        await plan.store(scope.client)
    return StreamRepair(segment.number, plan, next_sequence)
