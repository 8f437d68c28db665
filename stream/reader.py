"""StreamReader: reads a stream in order, across segments, and follows its end.

Never fences a writer, never shows a record that is not confirmed or not in a published segment.
Waiting is done by long polls on the ledger and by watching the stream's metadata; nothing polls on
a timer. Following outlives a metadata store that is out of reach for a while. How far it reads
ahead is bounded by the client's `read_ahead_bytes`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from types import TracebackType

import trio

from ledger.client import LedgerClient
from ledger.core.entry import Entry
from ledger.errors import (
    FinalError,
    InvalidArgument,
    LedgerClosed,
    MetadataUnavailable,
    NoSuchEntry,
    NoSuchLedger,
)
from ledger.reader import LedgerReader
from stream.core.metadata import Segment, StreamMetadata
from stream.core.position import EARLIEST, FromSequence, FromTime, Position, Start
from stream.core.records import Record, RecordBatch, decode
from stream.errors import NoSuchStream, Truncated
from stream.seek import end_of, find
from stream.store import StreamStore

_log = logging.getLogger(__name__)

_METADATA_PAUSE_S = 0.5


class StreamReader:
    """Made by `Namespace.reader`; an `async with` object for one consumer task.

    Yields each record once, in order, without gaps. A call that was cancelled or failed loses
    nothing: the next one goes on at `position`.
    """

    def __init__(
        self,
        client: LedgerClient,
        store: StreamStore,
        namespace: str,
        stream: str,
        start: Start = EARLIEST,
    ) -> None:
        self.stream = stream
        self._client = client
        self._store = store
        self._namespace = namespace
        self._start = start
        self._min_sequence = start.sequence if isinstance(start, FromSequence) else 0
        self._min_time_ms = start.append_time_ms if isinstance(start, FromTime) else None
        self._metadata: StreamMetadata | None = None
        self._at: Position | None = None
        """Everything before this was taken from the ledgers and handed to the consumer."""
        self._segment: Segment | None = None
        self._ledger: LedgerReader | None = None
        self._entries: AsyncIterator[list[Entry]] | None = None
        self._fetched: deque[Entry] = deque()
        self._batch: RecordBatch | None = None
        self._records: Iterator[Record] = iter(())
        self._last_record: Record | None = None
        self._is_closed = False

    async def __aenter__(self) -> StreamReader:
        """Finds the start. Raises NoSuchStream, Truncated, and what reading ledgers raises."""
        stream = await self._refresh()
        try:
            self._at = await find(self._client, stream, self._start)
        except (NoSuchLedger, NoSuchEntry):
            # Retention may have passed by between the two reads.
            stream = await self._refresh()
            self._at = await find(self._client, stream, self._start)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Lets go of the ledger. Closing twice is fine."""
        self._is_closed = True
        await self._leave_segment()

    @property
    def position(self) -> Position:
        """Where to resume: behind the last record handed out."""
        last, batch = self._last_record, self._batch
        if last is not None and batch is not None and last.position < batch.last_position:
            return last.position.after
        if self._at is None:
            raise InvalidArgument(f"the reader of stream {self.stream!r} is not open yet")
        return self._at

    # Records and batches

    def __aiter__(self) -> StreamReader:
        return self

    async def __anext__(self) -> Record:
        """The next record; waits for ever at the end of the stream."""
        while True:
            for record in self._records:
                self._last_record = record
                return record
            self._use(await self._next_batch(None))

    def _use(self, batch: RecordBatch | None) -> None:
        assert batch is not None, "without an end there is always a next batch"
        self._batch = batch
        self._records = iter(batch.records())

    def _rest(self) -> RecordBatch | None:
        """What `__anext__` has not yet handed out of its batch."""
        batch, last = self._batch, self._last_record
        self._batch, self._last_record, self._records = None, None, iter(())
        if batch is None:
            return None
        slot = batch.first_slot if last is None else last.position.slot + 1
        rest = batch.since(slot)
        return rest if len(rest) else None

    async def next_batch(self) -> RecordBatch:
        """The next records, an entry at a time; waits for ever at the end of the stream."""
        rest = self._rest()
        if rest is not None:
            return rest
        batch = await self._next_batch(None)
        assert batch is not None, "without an end there is always a next batch"
        return batch

    def batches(self) -> BatchIterator:
        """Batches of records, for ever."""
        return BatchIterator(self, stops=False)

    def read_to_end(self) -> BatchIterator:
        """Batches up to the end of the stream as it is when the first one is asked for."""
        return BatchIterator(self, stops=True)

    async def next_batch_before(self, end: Position) -> RecordBatch | None:
        """The next records; None when `end` is reached (see `end_position`)."""
        return self._rest() or await self._next_batch(end)

    async def end_position(self) -> Position:
        """Behind the last confirmed record, asked of metadata and bookies now."""
        stream = await self._refresh()
        try:
            return await end_of(self._client, stream)
        except NoSuchLedger:
            return await end_of(self._client, await self._refresh())

    # Entries

    async def _next_batch(self, end: Position | None) -> RecordBatch | None:
        """The next batch with a record we want; None at `end`, if there is one."""
        if self._is_closed or self._at is None:
            raise LedgerClosed(f"the reader of stream {self.stream!r} is not open")
        await trio.lowlevel.checkpoint_if_cancelled()
        self._batch, self._last_record, self._records = None, None, iter(())
        while True:
            at = self._at
            assert at is not None, "the reader is open"
            if end is not None and at >= end:
                return None
            if not self._fetched:
                if not await self._fetch(at, end):
                    return None
                continue
            segment = self._segment
            assert segment is not None, "fetched from no segment"
            entry = self._fetched[0]
            batch = decode(
                entry.payload,
                segment=segment.number,
                entry=entry.entry_id,
                base_sequence=segment.first_sequence,
            )
            self._fetched.popleft()
            skipped = at.slot if (at.segment, at.entry) == (segment.number, entry.entry_id) else 0
            if batch.first_sequence < self._min_sequence:
                skipped = max(skipped, self._min_sequence - batch.first_sequence)
            if self._min_time_ms is not None and batch.append_time_ms < self._min_time_ms:
                skipped = len(batch)
            self._at = batch.after
            if skipped:
                batch = batch.since(skipped)
            if len(batch):
                return batch

    async def _fetch(self, at: Position, end: Position | None) -> bool:
        """Gets entries from `at` on; False if there is nothing more before `end`.

        One step at a time: it may also only move to the next segment.
        """
        try:
            if self._entries is None:
                return await self._enter_segment(at, end)
            self._fetched.extend(await self._entries.__anext__())
        except StopAsyncIteration:
            segment = self._segment
            assert segment is not None, "entries of no segment"
            await self._leave_segment()
            if end is not None and end.segment <= segment.number:
                return False
            self._at = Position(segment.number + 1, 0, 0)
        except (NoSuchLedger, NoSuchEntry) as error:
            await self._leave_segment()
            await self._explain(at, error)
        except MetadataUnavailable as error:
            await self._leave_segment()
            if end is not None:
                raise
            # Whoever follows a stream waits anyway, as its writer does.
            _log.info("stream=%s: waiting for its metadata: %s", self.stream, error)
            await trio.sleep(_METADATA_PAUSE_S)
        except BaseException:
            # Also when cancelled: what was under way is dropped, the next call begins anew.
            await self._leave_segment()
            raise
        return True

    async def _enter_segment(self, at: Position, end: Position | None) -> bool:
        """Opens the segment of `at`, waiting for one if the stream ends here."""
        stream = await self._refresh()
        self._check_truncated(stream, at)
        segment = stream.segment_at(at)
        if segment is None:
            if end is not None:
                return False
            stream = await self._wait_segment(at)
            self._check_truncated(stream, at)
            segment = stream.segment_at(at)
            assert segment is not None, "waited for a segment"
        if end is not None and segment.number > end.segment:
            return False
        first = at.entry if segment.number == at.segment else 0
        self._segment = segment
        self._ledger = await self._client.open_ledger(segment.ledger_id, recover=False)
        if not segment.is_open:
            self._entries = self._ledger.entries(first, segment.last_entry)
        elif end is None:
            self._entries = self._ledger.tail(first)
        elif segment.number == end.segment and first < end.entry:
            self._ledger.note_confirmed(end.entry - 1)
            self._entries = self._ledger.entries(first, end.entry - 1)
        else:
            # The segment of `end` was sealed and this one begun after `end` was asked for, or
            # nothing is before `end` in it.
            await self._leave_segment()
            return False
        return True

    async def _wait_segment(self, at: Position) -> StreamMetadata:
        """Until the stream has a segment at or behind `at`."""
        async with aclosing(self._store.watch_stream(self._namespace, self.stream)) as versions:
            async for stream in versions:
                if stream is None:
                    raise NoSuchStream(f"stream {self.stream!r} was deleted")
                self._metadata = stream
                if stream.segment_at(at) is not None:
                    return stream
        raise AssertionError("a watch never ends by itself")

    async def _refresh(self) -> StreamMetadata:
        stream, _ = await self._store.read_stream(self._namespace, self.stream)
        if stream.is_deleted:
            raise NoSuchStream(f"stream {self.stream!r} was deleted")
        self._metadata = stream
        return stream

    def _check_truncated(self, stream: StreamMetadata, at: Position) -> None:
        if at < stream.truncated_to:
            raise Truncated(self.stream, at, stream.first_available)

    async def _explain(self, at: Position, error: FinalError) -> None:
        """A ledger or entry was not there: returns if the stream has moved on meanwhile, so
        that trying again is right; raises Truncated if it was truncated, else `error`."""
        before = self._metadata
        stream = await self._refresh()
        self._check_truncated(stream, at)
        if stream == before:
            raise error

    async def _leave_segment(self) -> None:
        ledger, self._ledger = self._ledger, None
        self._entries = self._segment = None
        self._fetched.clear()
        if ledger is not None:
            with trio.CancelScope(shield=True):
                await ledger.aclose()


class BatchIterator:
    """Batches of a reader. Holds nothing: it may simply be dropped, and another one goes on."""

    def __init__(self, reader: StreamReader, *, stops: bool) -> None:
        self._reader = reader
        self._stops = stops
        self._end: Position | None = None

    def __aiter__(self) -> BatchIterator:
        return self

    async def __anext__(self) -> RecordBatch:
        if not self._stops:
            return await self._reader.next_batch()
        if self._end is None:
            self._end = await self._reader.end_position()
        batch = await self._reader.next_batch_before(self._end)
        if batch is None:
            raise StopAsyncIteration
        return batch

    async def aclose(self) -> None:
        """For `aclosing`; there is nothing to close."""
        await trio.lowlevel.checkpoint()
