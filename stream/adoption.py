"""Lost ledgers of streams: what is in them, and how their records return to a stream.

The metadata was put back to an older state and does not list these ledgers any more. Nothing says
which stream they belonged to: an operator recognizes them by times, sequences and records.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ledger.client import LedgerClient
from ledger.errors import InvalidArgument, RecoveryIncomplete
from ledger.lost_ledgers import LostLedger, open_lost_ledger
from stream.core.entry.records import RecordBatch
from stream.core.position import Position
from stream.writing.writer import StreamWriter

_ENTRIES_AT_ONCE = 256
_SAMPLES = 16
"""Entries that are looked at behind the first one: in a ledger of merged segments their sequences
begin again."""


@dataclass(frozen=True, slots=True)
class LostRecords:
    """What a lost ledger contains. `first_sequence` is None if the ledger was no part of a stream
    yet, like those of a sink's batch. `records` is -1 if the ledger has those of several segments,
    which were merged: the stream may have them also on the ledgers that they were on before."""

    ledger: LostLedger
    records: int
    first_sequence: int | None
    appended_ms: tuple[int, int]
    first_value: bytes


async def describe_lost(client: LedgerClient, lost: LostLedger) -> LostRecords:
    """Reads the first entry, the last one, and some between them.

    Raises RecordFormatError if they are not entries of streams, DigestMismatch, and what reading
    raises.
    """
    reader = await open_lost_ledger(client, lost)
    last_entry = lost.entries - 1
    looked = sorted({last_entry * n // _SAMPLES for n in range(_SAMPLES + 1)})
    some = [
        (entry, _batch(entry, (await reader.read(entry, entry))[0].payload)) for entry in looked
    ]
    first, last = some[0][1], some[-1][1]
    is_of_stream = not first.header.is_sequence_in_segment
    begin, end = first.header.first_sequence, last.header.first_sequence + len(last)
    return LostRecords(
        lost,
        end - begin if _is_one_segment(some) else -1,
        begin if is_of_stream else None,
        (first.append_time_ms, last.append_time_ms),
        next(iter(first.records())).value,
    )


def _is_one_segment(some: Sequence[tuple[int, RecordBatch]]) -> bool:
    """Whether the sequences of these entries can be those of one segment, in which they never begin
    again: each entry has a record at least."""
    for (entry, batch), (next_entry, following) in pairwise(some):
        if batch.header.is_sequence_in_segment != following.header.is_sequence_in_segment:
            return False
        between = following.header.first_sequence - batch.header.first_sequence - len(batch)
        if between < next_entry - entry - 1:
            return False
        if between and next_entry == entry + 1:
            return False
    first = some[0][1].header
    return not first.is_sequence_in_segment or first.first_sequence == 0


async def adopt_ledger(
    client: LedgerClient,
    lost: LostLedger,
    writer: StreamWriter,
    *,
    is_partial_allowed: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> tuple[int, Position | None]:
    """Appends the records of a lost ledger to a stream: values, keys, event times and headers.

    They get new positions and times of appending. Returns how many there are, and the position of
    the last. Repeated with the same stream it appends only what is missing: the records are those
    of an idempotent producer, whose name has the id of the ledger. The last records of a ledger may
    never have been acknowledged; they are appended, too.

    Raises RecoveryIncomplete, unless `is_partial_allowed`, if entries are missing or a bookie does
    not say what it has; RecordFormatError, and what reading and appending raise.
    """
    if not is_partial_allowed and (lost.silent or lost.behind_gap):
        silent = f"{', '.join(lost.silent)} did not say what they have" if lost.silent else ""
        gap = f"no bookie has entry {lost.entries}, {lost.behind_gap} entries are behind it"
        why = "; ".join(each for each in (silent, gap if lost.behind_gap else "") if each)
        raise RecoveryIncomplete(
            f"ledger {lost.ledger_id} may have more than its first {lost.entries} entries: {why}. "
            "Cure: start all bookies, or take what there is with --partial"
        )
    producer = await writer.producer(f"lost-ledger-{lost.ledger_id}")
    records, last = 0, None
    async for batch in _batches(client, lost):
        try:
            appended = await producer.append_many(
                batch.values(), records,
                keys=batch.keys(), event_times=batch.event_times(), headers=batch.headers(),
            )  # fmt: skip
        except TypeError as error:  # null values
            raise InvalidArgument(f"ledger {lost.ledger_id}: {error}") from None
        records += len(batch)
        last = last if appended is None else appended[1]
        if on_progress is not None:
            on_progress(records)
    return records, last


async def _batches(client: LedgerClient, lost: LostLedger) -> AsyncIterator[RecordBatch]:
    reader = await open_lost_ledger(client, lost)
    for begin in range(0, lost.entries, _ENTRIES_AT_ONCE):
        end = min(begin + _ENTRIES_AT_ONCE, lost.entries) - 1
        for entry, found in enumerate(await reader.read(begin, end), begin):
            yield _batch(entry, found.payload)


def _batch(entry: int, payload: bytes) -> RecordBatch:
    if not payload:
        raise InvalidArgument(f"entry {entry} is empty: this is no ledger of a stream")
    return RecordBatch(payload, 0, entry, 0, -1)
