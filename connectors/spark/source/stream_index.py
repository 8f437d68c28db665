"""The driver's index of one stream: its segments, their confirmed ends, and offsets in them.

Values that the metadata has are never requested from bookies; the header of an entry is read once
and indexed. Must never pass what is confirmed, and the end must never move back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

from connectors.spark.core.entry_index import IndexedEntry, SearchKey, SegmentOffset, SparseIndex
from connectors.spark.core.offsets import StreamOffset
from connectors.spark.source.merged_segments import made_on_of, merged_since
from ledger.client import LedgerClient
from ledger.core.entry import Entry
from ledger.core.metadata import LedgerMetadata
from ledger.errors import LedgerError, NoSuchEntry, NoSuchLedger
from ledger.reading.reader import LedgerReader
from stream.core.entry.format import read_header
from stream.core.metadata.segments import Run, Segment, Span
from stream.core.metadata.streams import StreamMetadata
from stream.core.position import Position
from stream.store.pages import PageStore

T = TypeVar("T")

_PAGES_MAX = 8  # for each stream, so that those around an offset are found by many streams in turn
_READERS_MAX = 2
"""Ledgers that stay open per stream: those of the segment that is read and of the last one."""
_TRIES_MAX = 200


class StreamIndex:
    """The index of a stream with this full name ("ns/clicks", "ns/clicks#2").

    To be used by tasks of one loop. Methods that read entries raise what reading ledgers raises:
    NoSuchLedger or NoSuchEntry if the segment was truncated and purged in the meantime.
    """

    def __init__(self, client: LedgerClient, name: str, stream: StreamMetadata) -> None:
        self.client = client
        self.name = name
        self.namespace, _, self.stream = name.partition("/")
        self._loaded: dict[str, tuple[Span, ...]] = {}
        """Pages that were read last, by digest."""
        self._pages = PageStore(client.store)
        self.metadata = stream
        self._indexes: dict[int, SparseIndex] = {}
        self._readers: dict[int, LedgerReader] = {}
        self._ledgers: dict[int, LedgerMetadata] = {}
        """Metadata of the ledgers of sealed segments, which is final."""

    # What is known

    def update(self, stream: StreamMetadata) -> None:
        """Takes newer metadata of the same stream."""
        assert stream.created_ms == self.metadata.created_ms, f"{self.name} is another stream"
        self.metadata = stream
        newest = {segment.number for segment in stream.segments}
        # Those before are in pages, unless they were purged.
        older = range(stream.pages.first, min(newest)) if stream.pages else range(0)
        for known in (self._indexes, self._readers, self._ledgers):
            for number in [n for n in known if n not in newest and n not in older]:
                del known[number]
        for segment in stream.segments:
            if not segment.is_open and segment.number in self._indexes:
                self._seal(segment, self._indexes[segment.number])

    async def ask(self, question: Callable[[StreamMetadata], T]) -> T:
        """Returns what `question`, which has no effect, says of the metadata as they are now, once
        the pages that it needs were read. Raises PageLost for one that was not truncated,
        MetadataUnavailable."""
        stream = self.metadata
        if not stream.pages:
            return question(stream)
        try:
            return await self._pages.resolve_all(
                [stream],
                lambda known: question(known[0]),
                may_lack=stream.is_dropped,
                loaded=self._loaded,
            )
        finally:
            while len(self._loaded) > _PAGES_MAX:
                del self._loaded[next(iter(self._loaded))]

    @property
    def end(self) -> StreamOffset:
        """The offset after the last record that is known to be confirmed."""
        segments = self.metadata.segments
        if not segments:
            place = SegmentOffset(0, 0, self.metadata.next_sequence, 0)
            return self._offset(self.metadata.next_segment, place)
        return self._offset(segments[-1].number, self._of(segments[-1]).end)

    async def bytes_between(self, start: StreamOffset, end: StreamOffset) -> int:
        """Returns the stored bytes of the records between two offsets.

        Each record counts an equal share of its entry.
        """
        if start.segment == end.segment:
            return max(0, end.nbytes - start.nbytes)

        def between(known: StreamMetadata) -> int:
            total = end.nbytes
            for span in _spans(known, start.segment, end.segment - 1):
                total += span.nbytes if isinstance(span, Run) else self._of(span).end.nbytes
                total -= start.nbytes if span.number == start.segment else 0
            return max(0, total)

        return await self.ask(between)

    async def records_between(self, start: StreamOffset, end: StreamOffset) -> int:
        """Returns the number of records between two offsets; sequences may have gaps."""
        gaps = await self._gaps(start.sequence, end.sequence)
        return end.sequence - start.sequence - sum(behind - first for first, behind in gaps)

    async def sequence_after(self, start: StreamOffset, records: int) -> int:
        """Returns the sequence before which there are `records` records from `start` on."""
        sequence = start.sequence + records
        for first, behind in await self._gaps(start.sequence, self.end.sequence):
            if sequence > first:
                sequence += behind - first
        return sequence

    async def sequence_before(self, end: StreamOffset, records: int) -> int:
        """Returns the sequence from which on there are `records` records before `end`."""
        sequence = end.sequence - records
        for first, behind in reversed(await self._gaps(0, end.sequence)):
            if sequence < behind:
                sequence -= behind - first
        return sequence

    async def _gaps(self, start: int, end: int) -> list[tuple[int, int]]:
        """Returns the ranges of sequences from `start` on and before `end` that no record has or
        will have: a restore of the metadata leaves them out."""
        if not self.metadata.restores:
            return []

        def is_mixed(run: Run) -> bool:
            return _has_gap(run) and run.first_sequence < end and run.next_sequence > start

        def spans(known: StreamMetadata) -> list[Span]:
            found = known.listed_spans
            return [part for span in found for part in known.pages.split(span, is_mixed)]

        return [
            (max(start, one.next_sequence), other.first_sequence)
            for one, other in pairwise(await self.ask(spans))
            if one.next_sequence < other.first_sequence and start < other.first_sequence <= end
        ]

    async def segments_between(self, start: StreamOffset, end: StreamOffset) -> list[Segment]:
        """Returns the segments from that of `start` to that of `end`."""
        found: list[Segment] = []
        async with aclosing(self._pages.walk(self.metadata, start.segment)) as segments:
            async for segment in segments:
                if segment.number > end.segment:
                    break
                found.append(segment)
        return found

    def entry_at(self, offset: StreamOffset) -> IndexedEntry | None:
        """Returns the entry that holds the record at `offset`, if it is in the index."""
        index = self._indexes.get(offset.segment)
        return None if index is None else index.at(offset.entry)

    async def aclose(self) -> None:
        """Closes the open readers, and with them their long polls."""
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            await reader.aclose()

    def forget_before(self, offset: StreamOffset) -> None:
        """Drops what is known of the segments before `offset`."""
        for known in (self._indexes, self._readers, self._ledgers):
            for number in [number for number in known if number < offset.segment]:
                del known[number]

    # Offsets

    async def first(self) -> StreamOffset:
        """Returns the first available record, or the end, as an offset that begins with it."""
        found = await self.at(await self.ask(lambda known: known.first_available))
        return replace(found, begin=found.sequence)

    def begin_of(self, segment: Span) -> StreamOffset:
        place = SegmentOffset(0, 0, segment.first_sequence, 0)
        return self._offset(segment.number, place)

    async def at(self, position: Position) -> StreamOffset:
        """Returns the first record at or after `position`, or the end if there is none yet."""
        segment = await self.ask(lambda known: known.span_at(position))
        if segment is None:
            return self.end
        if isinstance(segment, Run) or position <= Position(segment.number, 0, 0):
            return self.begin_of(segment)
        index = self._of(segment)
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
        """Returns the record with this sequence, which must be available or the end."""
        found = await self.ask(
            lambda known: known.last_where(lambda span: span.first_sequence <= sequence)
        )
        if found is None:
            assert sequence <= self.end.sequence, f"{self.name}: {sequence} is after the end"
            return await self.at(await self.ask(lambda known: known.first_available))
        return self._offset(found.number, await self._find(found, SearchKey.SEQUENCE, sequence))

    async def ahead(self, start: StreamOffset, end: StreamOffset, nbytes: int) -> StreamOffset:
        """Returns the last offset up to which records from `start` on have at most `nbytes`.

        It is never after `end`. Bytes are counted as in `bytes_between`.
        """
        # A segment that is not listed any more had no records, and thus no bytes before `start`.
        found = await self.ask(
            lambda known: self._reached(known, start, end, nbytes + start.nbytes)
        )
        if found is None:
            return end
        segment, reached = found
        place = await self._find(segment, SearchKey.BYTES, reached)
        offset = replace(self._offset(segment.number, place), begin=start.begin)
        return offset if offset.sequence < end.sequence else end

    def _reached(
        self, known: StreamMetadata, start: StreamOffset, end: StreamOffset, nbytes: int
    ) -> tuple[Segment, int] | None:
        """Returns the segment with the last of `nbytes` from the begin of that of `start` on, and
        how many of them are in it; those of the segment of `end` at most, None behind it."""
        stack = [*_spans(known, start.segment, end.segment)][::-1]
        left = nbytes
        while stack:
            span = stack.pop()
            if isinstance(span, Run):
                if left < span.nbytes:
                    stack += known.pages.below(span)[::-1]
                else:
                    left -= span.nbytes
                continue
            limit = self._of(span).end.nbytes
            if span.number >= end.segment or left < limit:
                return span, min(left, end.nbytes if span.number >= end.segment else limit)
            left -= limit
        return None

    async def time_ms(self, offset: StreamOffset) -> int:
        """Returns when the confirmed record at `offset` was appended, or an earlier time."""
        segment = await self.ask(lambda known: known.segment_at(offset.position))
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
            # The given segment may be from older metadata.
            for present in self.metadata.segments:
                if present.number == segment.number and not present.is_open:
                    self._seal(present, index)
        if not segment.is_open and index.end.entry <= segment.last_entry:
            self._seal(segment, index)  # it was sealed, and went to a page, between two updates
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
        """Returns a confirmed entry from the index; reads its header if it is not there."""
        index = self._of(segment)
        known = index.at(entry_id)
        if known is not None:
            return known
        try:
            return await self._read_entry(segment, entry_id)
        except (NoSuchLedger, NoSuchEntry):
            place = segment.number, segment.ledger_id, made_on_of(segment)
            moved = await merged_since(self.client, self.name, *place)
            if moved is None:
                raise
        return await self._read_entry(moved, entry_id)

    async def _read_entry(self, segment: Segment, entry_id: int) -> IndexedEntry:
        reader, at = await self.reader(segment), segment.base_entry + entry_id
        reader.note_confirmed(at)
        (entry,) = await reader.read(at, at)
        return self.note_entry(segment, entry)

    def note_entry(self, segment: Segment, entry: Entry) -> IndexedEntry:
        """Adds an entry of this segment, which was read and is confirmed, to the index."""
        header = read_header(entry.payload)
        first = header.first_sequence
        if header.is_sequence_in_segment:
            first += segment.first_sequence
        size = len(entry.payload)
        appended_ms = header.append_time_ms
        if header.is_sequence_in_segment and segment.first_time_ms >= 0:
            appended_ms = segment.first_time_ms  # a sink committed the whole segment then
        indexed = IndexedEntry(
            entry.entry_id - segment.base_entry, first, header.count,
            entry.length - size - segment.base_bytes, size, appended_ms,
        )  # fmt: skip
        self._of(segment).add(indexed)
        return indexed

    async def read_end(self) -> None:
        """Reads from the bookies how far the open segment, if any, is confirmed."""
        segment = self.metadata.open_segment
        if segment is None:
            return
        reader = await self.reader(segment)
        await self.note_confirmed(segment, await reader.read_last_confirmed())

    def confirmed(self, segment: Segment) -> int:
        """Returns the last entry of a segment that is known to be confirmed; -1: none."""
        return self._of(segment).end.entry - 1

    async def note_confirmed(self, segment: Segment, entry_id: int) -> None:
        """Records that a segment is confirmed up to this entry; -1: no entry."""
        if entry_id >= self._of(segment).end.entry:
            await self.indexed_entry(segment, entry_id)

    async def reader(self, segment: Segment) -> LedgerReader:
        """Returns a reader of the segment's ledger; it stays open until others replace it."""
        reader = self._readers.pop(segment.number, None)
        if reader is None or reader.ledger_id != segment.ledger_id:  # merged meanwhile
            reader = self.client.reader_of(await self.ledger_metadata(segment))
        self._readers[segment.number] = reader  # the most recently used one is the last
        if len(self._readers) > _READERS_MAX:
            last = self.metadata.segments[-1].number if self.metadata.segments else 0
            del self._readers[next(number for number in self._readers if number != last)]
        return reader

    async def ledger_metadata(self, segment: Segment) -> LedgerMetadata:
        """Returns the metadata of the segment's ledger, which is final if the ledger is closed.

        Raises NoSuchLedger.
        """
        known = self._ledgers.get(segment.number)
        if known is not None and known.ledger_id == segment.ledger_id:
            return known
        reader = self._readers.get(segment.number)
        is_known = reader is not None and reader.ledger_id == segment.ledger_id
        if reader is not None and is_known and (reader.is_closed or segment.is_open):
            metadata = reader.metadata
        else:
            metadata = await self.client.ledger_metadata(segment.ledger_id)
        if metadata.is_closed:
            self._ledgers[segment.number] = metadata
        return metadata


def _spans(stream: StreamMetadata, first: int, last: int) -> Iterator[Span]:
    """Yields the segments with these numbers, those in the middle in runs. Raises PagesNeeded."""

    def is_mixed(run: Run) -> bool:
        is_in = run.last_number >= first and run.number <= last
        return is_in and (run.number < first or run.last_number > last)

    for span in stream.listed_spans:
        if span.last_number >= first and span.number <= last:
            for part in stream.pages.split(span, is_mixed):
                if first <= part.number <= last:
                    yield part


def _has_gap(run: Run) -> bool:
    return run.next_sequence - run.first_sequence != run.records
