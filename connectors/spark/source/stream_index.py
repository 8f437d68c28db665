"""One stream as the driver knows it: its segments, what is confirmed of them, and places in it.

What metadata says is never asked of bookies; an entry's header is read once and remembered. Must
never go past what is confirmed, nor let the end go back.
"""

from __future__ import annotations

from dataclasses import replace

from connectors.spark.core.entry_index import IndexedEntry, SearchKey, SegmentOffset, SparseIndex
from connectors.spark.core.offsets import StreamOffset
from ledger.client import LedgerClient
from ledger.core.entry import Entry
from ledger.core.metadata import LedgerMetadata
from ledger.errors import LedgerError
from ledger.reading.reader import LedgerReader
from stream.core.entry.format import read_header
from stream.core.metadata.streams import Segment, StreamMetadata
from stream.core.position import Position

_READERS_MAX = 2
"""Ledgers of one stream that stay open here: of the segment that is read, and of the last one."""
_TRIES_MAX = 200


class StreamIndex:
    """A stream, by its full name ("ns/clicks", "ns/clicks#2"), and what was learned of it.

    For tasks of one loop. Calls that read entries raise what reading ledgers raises: NoSuchLedger
    or NoSuchEntry when the segment was truncated and purged meanwhile.
    """

    def __init__(self, client: LedgerClient, name: str, stream: StreamMetadata) -> None:
        self.client = client
        self.name = name
        self.namespace, _, self.stream = name.partition("/")
        self.metadata = stream
        self._indexes: dict[int, SparseIndex] = {}
        self._readers: dict[int, LedgerReader] = {}
        self._ledgers: dict[int, LedgerMetadata] = {}
        """Of sealed segments, whose ledgers change no more."""

    # What is known

    def update(self, stream: StreamMetadata) -> None:
        """Takes newer metadata of the same stream."""
        assert stream.created_ms == self.metadata.created_ms, f"{self.name} is another stream"
        self.metadata = stream
        live = {segment.number for segment in stream.segments}
        for known in (self._indexes, self._readers, self._ledgers):
            for number in [number for number in known if number not in live]:
                del known[number]
        for segment in stream.segments:
            if not segment.is_open and segment.number in self._indexes:
                self._seal(segment, self._indexes[segment.number])

    @property
    def end(self) -> StreamOffset:
        """Behind the last record that is known to be confirmed."""
        segments = self.metadata.segments
        if not segments:
            place = SegmentOffset(0, 0, self.metadata.next_sequence, 0)
            return self._offset(self.metadata.next_segment, place)
        return self._offset(segments[-1].number, self._of(segments[-1]).end)

    def bytes_between(self, start: StreamOffset, end: StreamOffset) -> int:
        """Stored bytes of the records between two offsets, where a record counts its share of its
        entry."""
        if start.segment == end.segment:
            return max(0, end.nbytes - start.nbytes)
        total = end.nbytes
        for segment in self.metadata.segments:
            if start.segment <= segment.number < end.segment:
                total += self._of(segment).end.nbytes
                total -= start.nbytes if segment.number == start.segment else 0
        return max(0, total)

    def entry_at(self, offset: StreamOffset) -> IndexedEntry | None:
        """The entry that holds the record at `offset`, if it is known."""
        index = self._indexes.get(offset.segment)
        return None if index is None else index.at(offset.entry)

    async def aclose(self) -> None:
        """Ends what ledgers that are open here wait for."""
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            await reader.aclose()

    def forget_before(self, offset: StreamOffset) -> None:
        """Nobody will ask for places before `offset` soon."""
        for known in (self._indexes, self._readers, self._ledgers):
            for number in [number for number in known if number < offset.segment]:
                del known[number]

    # Places

    async def first(self) -> StreamOffset:
        """The first record that is there, or where it will be; the offset begins with it."""
        found = await self.at(self.metadata.first_available)
        return replace(found, begin=found.sequence)

    async def at(self, position: Position) -> StreamOffset:
        """The first record at or behind `position`; where it will be if that is behind the end."""
        segment = self.metadata.segment_at(position)
        if segment is None:
            return self.end
        index = self._of(segment)
        if position <= Position(segment.number, 0, 0):
            return self._offset(segment.number, SegmentOffset(0, 0, segment.first_sequence, 0))
        if position.entry >= index.end.entry:
            return self._offset(segment.number, index.end)
        entry = await self.indexed_entry(segment, position.entry)
        slot = min(position.slot, entry.count)
        place = SegmentOffset(
            position.entry, slot, entry.first_sequence + slot, entry.bytes_at(slot)
        )
        if slot == entry.count:
            place = replace(place, entry=position.entry + 1, slot=0)
        return self._offset(segment.number, place)

    async def at_sequence(self, sequence: int) -> StreamOffset:
        """The record with this sequence, which is available or the end."""
        found: Segment | None = None
        for segment in self.metadata.segments:
            if segment.first_sequence > sequence:
                break
            found = segment
        if found is None:
            assert sequence <= self.end.sequence, f"{self.name}: sequence {sequence} is to come"
            return await self.at(self.metadata.first_available)
        return self._offset(found.number, await self._find(found, SearchKey.SEQUENCE, sequence))

    async def ahead(self, start: StreamOffset, end: StreamOffset, nbytes: int) -> StreamOffset:
        """As many records from `start` on as have at most `nbytes` together, but none behind `end`.

        What they have is counted as in `bytes_between`.
        """
        # A segment that is there no more had no records: then nothing is before `start` in it.
        left = nbytes + start.nbytes
        for segment in self.metadata.segments:
            if segment.number < start.segment:
                continue
            limit = self._of(segment).end.nbytes
            if segment.number >= end.segment or left < limit:
                limit = end.nbytes if segment.number >= end.segment else limit
                place = await self._find(segment, SearchKey.BYTES, min(left, limit))
                found = replace(self._offset(segment.number, place), begin=start.begin)
                return found if found.sequence < end.sequence else end
            left -= limit
        return end

    async def time_ms(self, offset: StreamOffset) -> int:
        """When the record at `offset`, which is confirmed, was appended; or no later than that."""
        segment = self.metadata.segment_at(offset.position)
        if segment is None:
            return self.client.now_ms()
        entry = offset.entry if segment.number == offset.segment else 0
        if entry > self.confirmed(segment):
            return self.client.now_ms()
        try:
            return (await self.indexed_entry(segment, entry)).append_time_ms
        except LedgerError:
            return max(segment.first_time_ms, segment.created_ms)

    def _of(self, segment: Segment) -> SparseIndex:
        index = self._indexes.get(segment.number)
        if index is None:
            index = self._indexes[segment.number] = SparseIndex(segment.first_sequence)
            # Whoever asks may have the segment from metadata of before.
            for present in self.metadata.segments:
                if present.number == segment.number and not present.is_open:
                    self._seal(present, index)
        return index

    @staticmethod
    def _seal(segment: Segment, index: SparseIndex) -> None:
        index.end_at(segment.last_entry + 1, segment.next_sequence, segment.nbytes)

    def _offset(self, segment: int, place: SegmentOffset) -> StreamOffset:
        return StreamOffset(
            segment, place.entry, place.slot, place.sequence, place.nbytes, 0,
            self.metadata.created_ms,
        )  # fmt: skip

    async def _find(self, segment: Segment, by: SearchKey, target: int) -> SegmentOffset:
        index = self._of(segment)
        for tries in range(_TRIES_MAX):
            found = index.find(by, target, tries)
            if isinstance(found, SegmentOffset):
                return found
            await self.indexed_entry(segment, found)
        raise AssertionError(f"{self.name}: no {by.value} {target} in segment {segment.number}")

    # Reading

    async def indexed_entry(self, segment: Segment, entry_id: int) -> IndexedEntry:
        """What the header of a confirmed entry says; read unless it is known."""
        index = self._of(segment)
        known = index.at(entry_id)
        if known is not None:
            return known
        reader = await self.reader(segment)
        reader.note_confirmed(entry_id)
        (entry,) = await reader.read(entry_id, entry_id)
        return self.note_entry(segment, entry)

    def note_entry(self, segment: Segment, entry: Entry) -> IndexedEntry:
        """Learns from an entry of this segment that somebody has read, and is confirmed."""
        header = read_header(entry.payload)
        first = header.first_sequence
        if header.is_sequence_in_segment:
            first += segment.first_sequence
        size = len(entry.payload)
        appended_ms = header.append_time_ms
        if header.is_sequence_in_segment and segment.first_time_ms >= 0:
            appended_ms = segment.first_time_ms  # it was committed as a whole
        indexed = IndexedEntry(
            entry.entry_id, first, header.count, entry.length - size, size, appended_ms
        )
        self._of(segment).add(indexed)
        return indexed

    async def read_end(self) -> None:
        """Asks the bookies how far the open segment is confirmed, if there is one."""
        segment = self.metadata.open_segment
        if segment is None:
            return
        reader = await self.reader(segment)
        await self.note_confirmed(segment, await reader.read_last_confirmed())

    def confirmed(self, segment: Segment) -> int:
        """The last entry of a segment that is known to be confirmed; -1: none."""
        return self._of(segment).end.entry - 1

    async def note_confirmed(self, segment: Segment, entry_id: int) -> None:
        """This segment is confirmed up to an entry; -1: to none."""
        if entry_id >= self._of(segment).end.entry:
            await self.indexed_entry(segment, entry_id)

    async def reader(self, segment: Segment) -> LedgerReader:
        """Of the segment's ledger; open until others are asked for."""
        reader = self._readers.pop(segment.number, None)
        if reader is None:
            reader = self.client.reader_of(await self.ledger_metadata(segment))
        self._readers[segment.number] = reader  # the last one was used last
        if len(self._readers) > _READERS_MAX:
            last = self.metadata.segments[-1].number if self.metadata.segments else 0
            del self._readers[next(number for number in self._readers if number != last)]
        return reader

    async def ledger_metadata(self, segment: Segment) -> LedgerMetadata:
        """Of the segment's ledger: as it is for ever if it is closed, else as it was when asked
        for or better. Raises NoSuchLedger."""
        known = self._ledgers.get(segment.number)
        if known is not None:
            return known
        reader = self._readers.get(segment.number)
        if reader is not None and (reader.is_closed or segment.is_open):
            metadata = reader.metadata
        else:
            metadata = await self.client.ledger_metadata(segment.ledger_id)
        if metadata.is_closed:
            self._ledgers[segment.number] = metadata
        return metadata
