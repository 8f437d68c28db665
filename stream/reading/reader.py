"""StreamReader: reads a stream in order, across segments, and follows its end.

Never fences a writer, never shows a record that is not confirmed or not in a published segment.
Following survives a metadata store that is unavailable for a while. Read-ahead is bounded by the
client's `read_ahead_bytes`. Batches come from reading/segment_feed.py, and at the end of the stream
from reading/shared_tail.py.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import TracebackType
from typing import Literal

import trio

from ledger.client import LedgerClient
from ledger.errors import InvalidArgument, LedgerClosed, NoSuchEntry, NoSuchLedger
from ledger.runtime.opening import Opened
from stream.core.entry.records import Record, RecordBatch
from stream.core.metadata.streams import StreamMetadata
from stream.core.position import (
    EARLIEST,
    FromEventTime,
    FromSequence,
    FromTime,
    Position,
    Start,
    Truncated,
)
from stream.reading.seek import end_of, find, first_event_slot
from stream.reading.shared_tail import ReaderFeed, SharedTails
from stream.store.pages import PageLost
from stream.store.streams import StreamStore

_log = logging.getLogger(__name__)

OnTruncated = Literal["error", "earliest", "latest"]
"""What a reader does when retention has passed it: raise Truncated, or continue at either end."""


class StreamReader(Opened):
    """Made by `Namespace.reader`; an `async with` object for one consumer task.

    Yields each record once, in order, without gaps (except those that `on_truncated` skips). A call
    that was cancelled or failed loses nothing: the next one continues at `position`.
    """

    def __init__(
        self,
        client: LedgerClient,
        store: StreamStore,
        namespace: str,
        stream: str,
        start: Start = EARLIEST,
        on_truncated: OnTruncated = "error",
        tails: SharedTails | None = None,
        read_ahead_bytes: int | None = None,
    ) -> None:
        if on_truncated not in ("error", "earliest", "latest"):
            raise InvalidArgument(
                f"on_truncated is {on_truncated!r}; it is error, earliest or latest"
            )
        self.stream = stream
        self._client = client
        self._namespace = namespace
        self._on_truncated = on_truncated
        self._feed = ReaderFeed(client, store, namespace, stream, tails, read_ahead_bytes)
        self._start = start
        self._min_sequence = start.sequence if isinstance(start, FromSequence) else 0
        self._min_time_ms = start.append_time_ms if isinstance(start, FromTime) else None
        self._min_event_ms = start.event_time_ms if isinstance(start, FromEventTime) else None
        self._batch: RecordBatch | None = None
        self._records: Iterator[Record] = iter(())
        self._last_record: Record | None = None
        self._is_closed = False

    async def __aenter__(self) -> StreamReader:
        """Finds the start. Raises NoSuchStream, NoSuchCursor, Truncated, and what reading ledgers
        raises."""
        try:
            self._feed.position = await self._find(await self._feed.refresh())
        except (NoSuchLedger, NoSuchEntry, PageLost):
            # Retention may have deleted the segment between the two reads.
            self._feed.position = await self._find(await self._feed.refresh())
        return self

    async def _find(self, stream: StreamMetadata) -> Position:
        try:
            return await find(self._client, stream, self._start, self._namespace)
        except Truncated as error:
            return await self._after_truncation(error)

    async def _after_truncation(self, error: Truncated) -> Position:
        """Returns where to continue when the requested position was truncated. Raises `error` if
        nowhere."""
        if self._on_truncated == "error":
            raise error
        if self._on_truncated == "earliest":
            position = error.first_available
        else:
            position = await self.end_position()
        _log.warning(
            "stream=%s: %s was truncated; reading continues at %s",
            self.stream,
            error.wanted,
            position,
        )
        return position

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def _description(self) -> str:
        if self._is_closed or self._feed.position is None:
            return f"of {self.stream!r}, {'closed' if self._is_closed else 'not open yet'}"
        return f"of {self.stream!r} at {self.position}"

    async def aclose(self) -> None:
        """Closes the ledger. Closing twice is allowed."""
        self._is_closed, self._is_closable, self._block = True, False, None
        await self._feed.aclose()

    @property
    def position(self) -> Position:
        """Where to resume: behind the last record returned."""
        last, batch = self._last_record, self._batch
        if last is not None and batch is not None and last.position < batch.last_position:
            return last.position.after
        if self._feed.position is None:
            raise InvalidArgument(f"the reader of stream {self.stream!r} is not open yet")
        return self._feed.position

    # Records and batches

    def __aiter__(self) -> StreamReader:
        return self

    async def __anext__(self) -> Record:
        """Returns the next record; waits forever at the end of the stream."""
        while True:
            for record in self._records:
                self._last_record = record
                return record
            self._use(await self._next_batch(None))

    def _use(self, batch: RecordBatch | None) -> None:
        assert batch is not None, "without an end there is always a next batch"
        self._batch = batch
        self._records = iter(batch.shared_records())

    def _rest(self) -> RecordBatch | None:
        """Returns the records of its batch that `__anext__` has not returned yet."""
        batch, last = self._batch, self._last_record
        self._batch, self._last_record, self._records = None, None, iter(())
        if batch is None:
            return None
        slot = batch.first_slot if last is None else last.position.slot + 1
        rest = batch.since(slot)
        return rest if len(rest) else None

    async def next_batch(self) -> RecordBatch:
        """Returns the next records, one entry at a time; waits forever at the end of the stream."""
        rest = self._rest()
        if rest is not None:
            return rest
        batch = await self._next_batch(None)
        assert batch is not None, "without an end there is always a next batch"
        return batch

    def batches(self) -> BatchIterator:
        """Returns batches of records, forever."""
        return BatchIterator(self, stops=False)

    def read_to_end(self) -> BatchIterator:
        """Returns batches up to the end of the stream as it is at the first request."""
        return BatchIterator(self, stops=True)

    async def next_batch_before(self, end: Position) -> RecordBatch | None:
        """Returns the next records; None when `end` is reached (see `end_position`)."""
        return self._rest() or await self._next_batch(end)

    async def end_position(self) -> Position:
        """Returns the position behind the last confirmed record, asked of metadata and bookies
        now."""
        stream = await self._feed.refresh()
        try:
            return await end_of(self._client, stream)
        except NoSuchLedger:
            return await end_of(self._client, await self._feed.refresh())

    async def _next_batch(self, end: Position | None) -> RecordBatch | None:
        """Returns the next batch with a requested record; None at `end`, if there is one."""
        if self._is_closed or self._feed.position is None:
            raise LedgerClosed(f"the reader of stream {self.stream!r} is not open")
        await trio.lowlevel.checkpoint_if_cancelled()
        self._batch, self._last_record, self._records = None, None, iter(())
        while True:
            try:
                batch = await self._feed.next_batch(end)
            except Truncated as error:
                self._feed.position = await self._after_truncation(error)
                continue
            if batch is None:
                return None
            batch = self._wanted(batch)
            if len(batch):
                return batch

    def _wanted(self, batch: RecordBatch) -> RecordBatch:
        """Returns the batch without records before a start that was not written yet when the reader
        opened."""
        skipped = batch.first_slot
        if batch.first_sequence < self._min_sequence:
            skipped += self._min_sequence - batch.first_sequence
        if self._min_time_ms is not None:
            if batch.append_time_ms < self._min_time_ms:
                skipped = batch.stop_slot
            else:
                # Found: in segments that sinks committed, earlier times may follow, and count.
                self._min_time_ms = None
        if self._min_event_ms is not None:
            slot = first_event_slot(batch, self._min_event_ms)
            if slot is None:
                skipped = batch.stop_slot
            else:
                skipped = max(skipped, slot)
                self._min_event_ms = None
        return batch.since(skipped) if skipped > batch.first_slot else batch


class BatchIterator:
    """Batches of a reader. It owns nothing: it may simply be dropped, and another one continues."""

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
        """Does nothing; it exists for `aclosing`."""
        await trio.lowlevel.checkpoint()
