"""Reads planned ranges, one entry after the other, without Spark."""

from __future__ import annotations

from collections.abc import Iterable

from connectors.spark.core.planner import SegmentRange
from ledger.client import LedgerClient
from stream.core.entry.records import Record, decode


async def read_ranges(client: LedgerClient, ranges: Iterable[SegmentRange]) -> list[Record]:
    """Returns the records of these ranges, in their order."""
    found: list[Record] = []
    for each in ranges:
        segment = each.segment
        reader = client.reader_of(await client.ledger_metadata(segment.ledger_id))
        base = segment.base_entry
        reader.note_confirmed(base + each.last_entry)
        for entry in await reader.read(base + each.first_entry, base + each.last_entry):
            entry_id = entry.entry_id - base
            batch = decode(
                entry.payload,
                segment=segment.number,
                entry=entry_id,
                base_sequence=segment.first_sequence,
            )
            first = each.first_slot if entry_id == each.first_entry else 0
            behind = each.end_slot if entry_id == each.last_entry else None
            found += list(batch.records())[first:behind]
    return found
