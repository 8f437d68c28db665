"""Reads a stream from its end, or from before a position, towards its beginning.

Never fences a writer and never shows a record that is not confirmed. It begins at the end as it is
at the first request, and ends where the stream begins. It fetches a few entries at a time, bounded
in number and, once their size is known, in bytes.
"""

from __future__ import annotations

from types import TracebackType

import trio

from ledger.client import LedgerClient
from ledger.core.entry import Entry
from ledger.errors import InvalidArgument, LedgerError, NoSuchEntry, NoSuchLedger
from ledger.reading.reader import LedgerReader
from stream.core.entry.records import Record, RecordBatch, decode
from stream.core.metadata.streams import Segment, StreamMetadata
from stream.core.position import BEGINNING, Position
from stream.errors import NoSuchStream
from stream.reading.seek import end_of
from stream.store.pages import PageLost
from stream.store.streams import StreamStore

_FETCH_ENTRIES_FIRST = 4
_FETCH_ENTRIES_MAX = 64
_FETCH_BYTES = 1 << 20
"""Bytes that the next fetch should return, estimated by the entries of the last one."""


class BackwardBatches:
    """Made by `Namespace.backward_batches`: an async iterator of batches, the newest first.

    The records within a batch are in the order of the stream. A call that was cancelled or failed
    loses nothing: the next one continues before `position`. Use it in `async with`, or `aclose` it.
    """

    def __init__(
        self,
        client: LedgerClient,
        store: StreamStore,
        namespace: str,
        stream: str,
        before: Position | None = None,
    ) -> None:
        self.stream = stream
        self._client = client
        self._store = store
        self._namespace = namespace
        self._before = before
        self._metadata: StreamMetadata | None = None
        self._begin = BEGINNING
        """Where the stream begins by that metadata."""
        self._segment: Segment | None = None
        self._ledger: LedgerReader | None = None
        self._fetched: list[Entry] = []
        self._fetch_entries = _FETCH_ENTRIES_FIRST

    async def __aenter__(self) -> BackwardBatches:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the ledger. Closing twice is allowed."""
        await self._leave_segment()
        await trio.lowlevel.checkpoint()

    @property
    def position(self) -> Position | None:
        """The position of the first record returned so far: records before it come next. None
        before the first call, if none was given."""
        return self._before

    def __aiter__(self) -> BackwardBatches:
        return self

    async def __anext__(self) -> RecordBatch:
        """Returns the records before those of the last call.

        Raises NoSuchStream, and what reading ledgers raises. Records that were truncated meanwhile
        no longer exist: the stream begins behind them.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while self._fetched or await self._fetch():
            segment, before = self._segment, self._before
            if not self._fetched:
                continue
            assert segment is not None, "fetched from a segment"
            assert before is not None, "fetched before a position"
            entry = self._fetched.pop()
            entry_id = entry.entry_id - segment.base_entry
            batch = decode(
                entry.payload,
                segment=segment.number,
                entry=entry_id,
                base_sequence=segment.first_sequence,
                committed_ms=segment.last_time_ms,
            )
            if before < batch.after:
                batch = batch.between(0, before.slot)
            begin = self._begin
            if batch.first_position < begin:
                batch = batch.since(begin.slot)
            self._before = Position(segment.number, entry_id, batch.first_slot)
            if len(batch):
                return batch
        raise StopAsyncIteration

    def _take_back(self, batch: RecordBatch) -> None:
        """Takes back a batch that never reached the caller: it is returned again."""
        self._before, self._fetched = batch.after, []

    async def _fetch(self) -> bool:
        """Fetches entries before `_before`; returns False at the beginning of the stream.

        One step at a time: it may also only move to the previous segment.
        """
        stream = self._metadata
        try:
            if stream is None or self._ledger is None:
                stream = await self._refresh()
            if self._before is None:
                self._before = await end_of(self._client, stream)
            if self._before <= self._begin:
                return False
            await self._fetch_before(stream, self._before)
        except (NoSuchLedger, NoSuchEntry, PageLost) as error:
            await self._leave_segment()
            if not await self._has_changed(stream, error):
                raise
        except BaseException:
            await self._leave_segment()
            raise
        return True

    async def _fetch_before(self, stream: StreamMetadata, before: Position) -> None:
        if self._ledger is None:
            self._segment = await self._store.pages.resolve(
                stream, lambda known: _segment_before(known, before)
            )
            if self._segment is None:
                self._before = self._begin
                return
            self._ledger = await self._client.open_ledger(self._segment.ledger_id, recover=False)
            if self._segment.is_open:
                await self._ledger.read_last_confirmed()
                if before.segment == self._segment.number:
                    # A reader returned this position, so that all before it is confirmed.
                    self._ledger.note_confirmed(before.entry - 1 + bool(before.slot))
        segment, ledger = self._segment, self._ledger
        assert segment is not None, "its ledger is open"
        last = ledger.last_add_confirmed if segment.is_open else segment.last_entry
        if before.segment == segment.number:
            last = min(last, before.entry - (not before.slot))
        begin = self._begin
        first = begin.entry if begin.segment == segment.number else 0
        if last < first:
            await self._leave_segment()
            self._before = max(begin, Position(segment.number, 0, 0))
            return
        base = segment.base_entry
        first = max(first, last + 1 - self._fetch_entries)
        self._fetched = await ledger.read(base + first, base + last)
        nbytes = sum(len(entry.payload) for entry in self._fetched) // len(self._fetched)
        self._fetch_entries = max(
            1, min(2 * self._fetch_entries, _FETCH_ENTRIES_MAX, _FETCH_BYTES // max(1, nbytes))
        )

    async def _has_changed(self, before: StreamMetadata | None, error: LedgerError) -> bool:
        """Whether the present metadata explains why something was not found."""
        stream = await self._refresh()
        at = self._before
        if at is None or stream != before:
            return True
        segment = stream.open_segment
        if isinstance(error, NoSuchEntry) and segment is not None and segment.number == at.segment:
            # No reader returned this position: it is behind the end.
            end = await end_of(self._client, stream)
            if end < at:
                self._before = end
                return True
        return False

    async def _refresh(self) -> StreamMetadata:
        stream, _ = await self._store.read_stream(self._namespace, self.stream)
        if stream.is_deleted:
            raise NoSuchStream(f"stream {self.stream!r} was deleted")
        if self._metadata is not None and stream.created_ms != self._metadata.created_ms:
            raise NoSuchStream(f"stream {self.stream!r} was deleted and created again")
        self._begin = await self._store.pages.resolve(stream, lambda known: known.first_available)
        self._metadata = stream
        return stream

    async def _leave_segment(self) -> None:
        ledger, self._ledger = self._ledger, None
        self._segment = None
        self._fetched = []
        if ledger is not None:
            with trio.CancelScope(shield=True):
                await ledger.aclose()


def _segment_before(stream: StreamMetadata, before: Position) -> Segment | None:
    """Returns the last segment that can have a record before this position."""
    segment = stream.last_where(lambda span: Position(span.number, 0, 0) < before)
    return None if segment is None or stream.is_dropped(segment) else segment


async def read_last(batches: BackwardBatches, records: int) -> list[Record]:
    """Returns the last `records` records of a stream, in its order; all, if it has fewer.

    Raises InvalidArgument for a negative number, and what the iterator raises.
    """
    if records < 0:
        raise InvalidArgument(f"the last {records} records: it must be 0 or more")
    found: list[RecordBatch] = []
    left = records
    async with batches:
        while left > 0:
            try:
                batch = await batches.__anext__()
            except StopAsyncIteration:
                break
            found.append(batch.since(batch.stop_slot - left) if len(batch) > left else batch)
            left -= len(found[-1])
    return [record for batch in reversed(found) for record in batch.records()]
