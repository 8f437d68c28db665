"""Seek: turns a `Start` into a position, with few reads.

Segments are found by metadata, entries by binary search in a segment (log2 of its entries reads);
only event times, which may go back, need a scan of the segments whose range is not known. Never
fences, never reads past the confirmed end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from ledger.client import LedgerClient
from ledger.errors import InvalidArgument
from ledger.reading.reader import LedgerReader
from stream.core.entry.format import FLAG_EVENT_TIMES, EntryHeader, read_header
from stream.core.entry.records import RecordBatch, decode
from stream.core.metadata.segments import Run, Segment, Span
from stream.core.metadata.streams import StreamInfo, StreamMetadata
from stream.core.position import (
    EARLIEST,
    LATEST,
    FromCursor,
    FromEnd,
    FromEventTime,
    FromSequence,
    FromTime,
    Position,
    PositionLost,
    Start,
    Truncated,
)
from stream.store.cursors import CursorStore
from stream.store.pages import PageStore


async def end_of(client: LedgerClient, stream: StreamMetadata) -> Position:
    """Returns the position behind the last confirmed record of the stream, and behind what was
    truncated.

    Records that are not written yet may be truncated, too.
    """
    segment = stream.open_segment
    if segment is None:
        return max(stream.sealed_end, stream.truncated_to)
    async with client.open_ledger(segment.ledger_id, recover=False) as reader:
        end = Position(segment.number, await reader.read_last_confirmed() + 1, 0)
    return max(end, stream.truncated_to)


async def is_at_end(
    client: LedgerClient, stream: StreamMetadata, position: Position, end: Position
) -> bool:
    """Whether no record is between `position` and `end`, by metadata as old as `end`."""
    if position >= end:
        return True
    segment = await _segment_at(client, stream, position)
    return segment is None or end <= max(position, Position(segment.number, 0, 0))


async def measure(client: LedgerClient, stream: StreamMetadata) -> tuple[Position, int]:
    """Returns the position (as `end_of`) and the sequence behind the last confirmed record."""
    segment = stream.open_segment
    if segment is None:
        return max(stream.sealed_end, stream.truncated_to), stream.next_sequence
    entries = await _Entries.of(client, segment)
    async with entries.reader:
        end = max(Position(segment.number, entries.count, 0), stream.truncated_to)
        if entries.count == 0:
            return end, segment.first_sequence
        last = await entries.header(entries.count - 1)
    return end, segment.sequence_of(last) + last.count


async def sequence_at(client: LedgerClient, stream: StreamMetadata, position: Position) -> int:
    """Returns the sequence of the first record at or behind `position`."""
    segment = await PageStore(client.store).resolve(stream, lambda known: known.span_at(position))
    if segment is None:
        return stream.next_sequence
    if isinstance(segment, Run) or position <= Position(segment.number, 0, 0):
        return segment.first_sequence
    entries = await _Entries.of(client, segment)
    async with entries.reader:
        # Unconfirmed records begin where the entry before them ends.
        entry = min(position.entry, entries.count - 1)
        if entry < 0:
            return segment.first_sequence
        header = await entries.header(entry)
    within = header.count if entry < position.entry else min(position.slot, header.count)
    return segment.sequence_of(header) + within


async def _segment_at(
    client: LedgerClient, stream: StreamMetadata, position: Position
) -> Segment | None:
    return await PageStore(client.store).resolve(stream, lambda known: known.segment_at(position))


async def first_available(client: LedgerClient, stream: StreamMetadata) -> Position:
    """Returns the first position that a reader can read."""
    return await PageStore(client.store).resolve(stream, lambda known: known.first_available)


async def stream_info(client: LedgerClient, stream: StreamMetadata) -> StreamInfo:
    """Returns where the stream begins and ends now, asked of metadata and bookies."""
    first, live = await PageStore(client.store).resolve(
        stream, lambda known: (known.first_available, known.live())
    )
    end, next_sequence = await measure(client, stream)
    return StreamInfo(
        name=stream.name,
        epoch=stream.epoch,
        created_ms=stream.created_ms,
        segments=sum(span.count for span in live),
        sealed_bytes=sum(span.nbytes for span in live),
        has_open_segment=stream.open_segment is not None,
        first_position=first,
        end_position=end,
        first_sequence=min(await sequence_at(client, stream, first), next_sequence),
        next_sequence=next_sequence,
        ledgers=ledgers_of(live),
    )


def ledgers_of(spans: Sequence[Span]) -> int:
    """Returns on how many ledgers these neighbours are."""
    # Of merged segments the first ones may be gone.
    is_continued = bool(spans) and spans[0].base_entry > 0
    return sum(span.ledgers for span in spans) + is_continued


async def find(
    client: LedgerClient, stream: StreamMetadata, start: Start, namespace: str | None = None
) -> Position:
    """Returns the position to begin at. `namespace` is needed for a cursor.

    Raises Truncated if it was truncated, NoSuchCursor, InvalidArgument for anything that is not a
    start.
    """
    pages = PageStore(client.store)
    if isinstance(start, FromCursor):
        if namespace is None:
            raise InvalidArgument(f"cursor {start.name!r} cannot be a start here")
        cursors = CursorStore(client.store)
        position = (await cursors.read(namespace, stream, start.name))[0].position
        await pages.resolve(stream, lambda known: known.check_position(position))
        return position
    if isinstance(start, Position):
        restores = await client.restores()
        await pages.resolve(
            stream, lambda known: known.check_position(start, restores=restores, is_given=True)
        )
        return start
    if isinstance(start, FromSequence):
        return await _find_sequence(client, stream, start.sequence)
    if isinstance(start, FromTime):
        return await _find_time(client, stream, start.append_time_ms)
    if isinstance(start, FromEventTime):
        return await _find_event_time(client, stream, start.event_time_ms)
    if isinstance(start, FromEnd):
        return await _find_from_end(client, stream, start.records)
    if start is EARLIEST:
        return await first_available(client, stream)
    if start is LATEST:
        return await end_of(client, stream)
    shown = repr(start) if isinstance(start, str) else f"of type {type(start).__name__}"
    raise InvalidArgument(
        f"start is {shown}; it must be EARLIEST, LATEST, a Position, FromSequence, FromTime, "
        f"FromEventTime, FromEnd or FromCursor (parse_start parses a text)"
    )


def _with_sequence(stream: StreamMetadata, wanted: int) -> Segment | None:
    """Returns the segment that has this sequence or will have it; None: it is behind the end.

    Raises Truncated, PositionLost, PagesNeeded.
    """
    segment = stream.first_where(lambda span: span.is_open or wanted < span.next_sequence)
    if segment is None and wanted >= stream.next_sequence:
        return None
    if segment is not None and segment.first_sequence <= wanted and stream.is_live(segment):
        return segment  # without a look at where the stream begins, which may need other pages
    first = stream.span_at(stream.truncated_to)
    begin = stream.next_sequence if first is None else first.first_sequence
    if wanted < begin:
        raise Truncated(stream.name, f"sequence {wanted}", stream.first_available)
    if segment is not None:  # and not in the segment before
        raise PositionLost(stream.name, f"sequence {wanted}", Position(segment.number, 0, 0))
    return None


async def _find_sequence(client: LedgerClient, stream: StreamMetadata, wanted: int) -> Position:
    segment = await PageStore(client.store).resolve(
        stream, lambda known: _with_sequence(known, wanted)
    )
    if segment is None:
        end = await end_of(client, stream)
        await _check_is_to_come(client, stream, wanted, end)
        return end

    def is_behind(header: EntryHeader, segment: Segment = segment) -> bool:
        return segment.sequence_of(header) > wanted

    entries = await _Entries.of(client, segment)
    async with entries.reader:
        entry = await entries.first_where(is_behind) - 1
        if entry < 0:
            return Position(segment.number, 0, 0)
        header = await entries.header(entry)
        first = segment.sequence_of(header)
        position = Position(segment.number, entry, wanted - first)
        if wanted >= first + header.count:  # not written yet
            position = Position(segment.number, entry + 1, 0)
            await _check_is_to_come(client, stream, wanted, position)
    if position < stream.truncated_to:
        begin = await first_available(client, stream)
        raise Truncated(stream.name, f"sequence {wanted}", begin)
    return position


async def _check_is_to_come(
    client: LedgerClient, stream: StreamMetadata, wanted: int, end: Position
) -> None:
    """Raises PositionLost for a sequence behind the end that a lost history may have given out."""
    if stream.restores < await client.restores():
        raise PositionLost(stream.name, f"sequence {wanted}", end)


async def _find_time(client: LedgerClient, stream: StreamMetadata, wanted_ms: int) -> Position:
    def first_since(known: StreamMetadata) -> Segment | None:
        return known.first_where(
            lambda span: known.is_live(span) and (span.is_open or span.last_time_ms >= wanted_ms)
        )

    segment = await PageStore(client.store).resolve(stream, first_since)
    if segment is None:
        return await end_of(client, stream)
    entries = await _Entries.of(client, segment)
    async with entries.reader:
        entry = await entries.first_where(partial(_is_since, segment, wanted_ms))
    return max(Position(segment.number, entry, 0), stream.truncated_to)


def _is_since(segment: Segment, time_ms: int, header: EntryHeader) -> bool:
    return segment.time_of(header) >= time_ms


async def _find_from_end(client: LedgerClient, stream: StreamMetadata, records: int) -> Position:
    if records < 0:
        raise InvalidArgument(f"{records} records before the end: it must be 0 or more")
    end, next_sequence = await measure(client, stream)
    if records == 0:
        return end
    sequence = await PageStore(client.store).resolve(
        stream, lambda known: _sequence_before(known, next_sequence, records)
    )
    if sequence is not None:
        try:
            return await _find_sequence(client, stream, sequence)
        except Truncated:
            pass
    return await first_available(client, stream)


def _sequence_before(stream: StreamMetadata, next_sequence: int, records: int) -> int | None:
    """Returns the sequence from which on there are `records` records; None if there are fewer.
    Sequences may have gaps. Raises PagesNeeded."""
    left = records
    stack = list(stream.listed_spans)
    while stack and stream.is_live(span := stack.pop()):
        behind = next_sequence if span.is_open else span.next_sequence
        size = span.records if isinstance(span, Run) else behind - span.first_sequence
        if isinstance(span, Run) and (left <= size or stream.is_cut(span)):
            stack += stream.pages.below(span)
        elif left > size:
            left -= size
        else:
            return behind - left
    return None


async def _find_event_time(
    client: LedgerClient, stream: StreamMetadata, wanted_ms: int
) -> Position:
    pages = PageStore(client.store)
    begin, end = stream.truncated_to, await end_of(client, stream)
    since = 0

    def following(known: StreamMetadata) -> Segment | None:
        return known.first_where(
            lambda span: (
                span.last_number >= since
                and known.is_live(span)
                and (span.is_open or not 0 <= span.event_max_ms < wanted_ms)
            )
        )

    while (segment := await pages.resolve(stream, following)) is not None:
        since = segment.number + 1
        entries = await _Entries.of(client, segment)
        async with entries.reader:
            found = await _scan_event_time(entries, segment, begin, wanted_ms)
        if found is not None:
            return found
        end = max(end, Position(segment.number, entries.count, 0))
    return end


async def _scan_event_time(
    entries: _Entries, segment: Segment, begin: Position, wanted_ms: int
) -> Position | None:
    """Returns the first record at or behind `begin` with this event time or a later one."""
    first = begin.entry if begin.segment == segment.number else 0
    if first >= entries.count:
        return None
    # Only one header per entry is needed, but bookies send whole entries: read ahead.
    base = segment.base_entry
    async with aclosing(entries.reader.entries(base + first, base + entries.count - 1)) as fetched:
        async for some in fetched:
            for entry in some:
                header = read_header(entry.payload)
                if not _has_event_time(header, wanted_ms):
                    continue
                entry_id = entry.entry_id - segment.base_entry
                batch = decode(entry.payload, segment=segment.number, entry=entry_id)
                if batch.first_position < begin:
                    batch = batch.since(begin.slot)
                slot = first_event_slot(batch, wanted_ms)
                if slot is not None:
                    return Position(segment.number, entry_id, slot)
    return None


def _has_event_time(header: EntryHeader, wanted_ms: int) -> bool:
    return bool(header.flags & FLAG_EVENT_TIMES) and header.event_time_max_ms >= wanted_ms


def first_event_slot(batch: RecordBatch, wanted_ms: int) -> int | None:
    """Returns the slot of the first record with this event time or a later one."""
    if _has_event_time(batch.header, wanted_ms):
        for slot, time_ms in enumerate(batch.event_times(), batch.first_slot):
            if time_ms is not None and time_ms >= wanted_ms:
                return slot
    return None


@dataclass(frozen=True, slots=True)
class _Entries:
    """The confirmed entries of a segment, for a search."""

    reader: LedgerReader
    count: int
    base: int = 0

    @classmethod
    async def of(cls, client: LedgerClient, segment: Segment) -> _Entries:
        reader = await client.open_ledger(segment.ledger_id, recover=False)
        if not segment.is_open:
            return cls(reader, segment.last_entry + 1, segment.base_entry)
        return cls(reader, await reader.read_last_confirmed() + 1)

    async def header(self, entry: int) -> EntryHeader:
        at = self.base + entry
        return read_header((await self.reader.read(at, at))[0].payload)

    async def first_where(self, holds: Callable[[EntryHeader], bool]) -> int:
        """Returns the id of the first entry for which `holds`, which must be monotonic; the number
        of entries if there is none."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            if holds(await self.header(middle)):
                high = middle
            else:
                low = middle + 1
        return low
