"""Where in a stream to begin: turns `Start` into a position, with few reads.

Segments are found by metadata, entries by halving a segment (log2 of its entries reads). Never
fences, never reads past what is confirmed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ledger.client import LedgerClient
from ledger.reader import LedgerReader
from stream.core.entry_format import EntryHeader, read_header
from stream.core.metadata import Segment, StreamMetadata
from stream.core.position import EARLIEST, FromSequence, FromTime, Position, Start
from stream.errors import Truncated


async def end_of(client: LedgerClient, stream: StreamMetadata) -> Position:
    """Behind the last confirmed record of the stream as it is now."""
    segment = stream.open_segment
    if segment is None:
        return stream.sealed_end
    async with client.open_ledger(segment.ledger_id, recover=False) as reader:
        return Position(segment.number, await reader.read_last_confirmed() + 1, 0)


async def measure(client: LedgerClient, stream: StreamMetadata) -> tuple[Position, int]:
    """Position and sequence behind the last confirmed record."""
    segment = stream.open_segment
    if segment is None:
        return stream.sealed_end, stream.next_sequence
    entries = await _Entries.of(client, segment)
    async with entries.reader:
        end = Position(segment.number, entries.count, 0)
        if entries.count == 0:
            return end, segment.first_sequence
        last = await entries.header(entries.count - 1)
    return end, _first_sequence(last, segment.first_sequence) + last.count


async def sequence_at(client: LedgerClient, stream: StreamMetadata, position: Position) -> int:
    """Sequence of the first record at or behind `position`."""
    segment = stream.segment_at(position)
    if segment is None:
        return stream.next_sequence
    if position <= Position(segment.number, 0, 0):
        return segment.first_sequence
    entries = await _Entries.of(client, segment)
    async with entries.reader:
        # What is not confirmed yet begins where the entry before it ends.
        entry = min(position.entry, entries.count - 1)
        if entry < 0:
            return segment.first_sequence
        header = await entries.header(entry)
    within = header.count if entry < position.entry else min(position.slot, header.count)
    return _first_sequence(header, segment.first_sequence) + within


async def find(client: LedgerClient, stream: StreamMetadata, start: Start) -> Position:
    """The position to begin at. Raises Truncated if it is no longer there."""
    if isinstance(start, Position):
        if start < stream.truncated_to:
            raise Truncated(stream.name, start, stream.first_available)
        return start
    if isinstance(start, FromSequence):
        return await _find_sequence(client, stream, start)
    if isinstance(start, FromTime):
        return await _find_time(client, stream, start.append_time_ms)
    if start is EARLIEST:
        return stream.first_available
    return await end_of(client, stream)


async def _find_sequence(
    client: LedgerClient, stream: StreamMetadata, start: FromSequence
) -> Position:
    wanted = start.sequence
    first = stream.segments[0].first_sequence if stream.segments else stream.next_sequence
    if wanted < first:
        raise Truncated(stream.name, f"sequence {wanted}", stream.first_available)
    for segment in stream.segments:
        if not segment.is_open and wanted >= segment.next_sequence:
            continue
        base = segment.first_sequence

        def is_behind(header: EntryHeader, base: int = base) -> bool:
            return _first_sequence(header, base) > wanted

        entries = await _Entries.of(client, segment)
        async with entries.reader:
            entry = await entries.first_where(is_behind) - 1
            if entry < 0:
                return Position(segment.number, 0, 0)
            header = await entries.header(entry)
            first = _first_sequence(header, base)
            position = Position(segment.number, entry, wanted - first)
            if wanted >= first + header.count:  # not written yet
                position = Position(segment.number, entry + 1, 0)
        if position < stream.truncated_to:
            raise Truncated(stream.name, f"sequence {wanted}", stream.first_available)
        return position
    return await end_of(client, stream)


async def _find_time(client: LedgerClient, stream: StreamMetadata, wanted_ms: int) -> Position:
    for segment in stream.segments:
        if not segment.is_open and segment.last_time_ms < wanted_ms:
            continue
        entries = await _Entries.of(client, segment)
        async with entries.reader:
            entry = await entries.first_where(lambda header: header.append_time_ms >= wanted_ms)
        return max(Position(segment.number, entry, 0), stream.first_available)
    return await end_of(client, stream)


def _first_sequence(header: EntryHeader, base: int) -> int:
    return header.first_sequence + (base if header.is_sequence_in_segment else 0)


@dataclass(frozen=True, slots=True)
class _Entries:
    """The confirmed entries of a segment, to be searched."""

    reader: LedgerReader
    count: int

    @classmethod
    async def of(cls, client: LedgerClient, segment: Segment) -> _Entries:
        reader = await client.open_ledger(segment.ledger_id, recover=False)
        if not segment.is_open:
            return cls(reader, segment.last_entry + 1)
        return cls(reader, await reader.read_last_confirmed() + 1)

    async def header(self, entry: int) -> EntryHeader:
        return read_header((await self.reader.read(entry, entry))[0].payload)

    async def first_where(self, holds: Callable[[EntryHeader], bool]) -> int:
        """Id of the first entry for which `holds`, which never stops holding once it does;
        the number of entries if there is none."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            if holds(await self.header(middle)):
                high = middle
            else:
                low = middle + 1
        return low
