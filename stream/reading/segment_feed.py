"""The batches of a stream: its segments one after the other, then its end.

Returns every confirmed entry of published segments once, in order, decoded. It waits by long polls
on the ledger and by a watch on the stream's metadata; nothing polls on a timer. Never fences a
writer, never shows an unconfirmed record; that data is missing is decided only by metadata that was
read after it was found missing.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import aclosing

import trio

from ledger.client import LedgerClient
from ledger.core.entry import Entry
from ledger.errors import FinalError, LedgerClosed, MetadataUnavailable, NoSuchEntry, NoSuchLedger
from ledger.reading.read_ahead import EntryRange
from ledger.reading.reader import LedgerReader
from ledger.reading.tail import Tail
from stream.core.entry.records import RecordBatch, decode
from stream.core.metadata.streams import Segment, StreamMetadata
from stream.core.position import Position
from stream.errors import NoSuchStream
from stream.store.pages import PageLost
from stream.store.streams import StreamStore

_log = logging.getLogger(__name__)

_METADATA_PAUSE_S = 0.5
_MERGED_AT_ONCE = 256
"""Segments on one ledger that are read as one range, at most."""


class SegmentFeed:
    """Batches of one stream in order, for one consumer task.

    A call that was cancelled or failed loses nothing: the next one continues at `position`.
    """

    def __init__(
        self, client: LedgerClient, store: StreamStore, namespace: str, stream: str
    ) -> None:
        self.stream = stream
        self.read_ahead_bytes: int | None = None
        """Applies to segments entered from now on; None: the client's option."""
        self.position: Position | None = None
        """Everything before this was returned. The owner of the feed sets where it begins."""
        self.created_ms: int | None = None
        """When the stream was created, known from the first read on. Another stream of its name is
        never read: its positions denote other records."""
        self._client = client
        self._store = store
        self._namespace = namespace
        self._metadata: StreamMetadata | None = None
        self._entered: StreamMetadata | None = None
        """The metadata by which the ledger was opened, or was to be opened."""
        self._segment: Segment | None = None
        """The segment of the next entry."""
        self._merged: deque[Segment] = deque()
        """Those behind it whose entries are fetched with its own."""
        self._ledger: LedgerReader | None = None
        self._entries: Tail | EntryRange | None = None
        self._fetched: deque[Entry] = deque()
        self._fetching: trio.CancelScope | None = None

    async def aclose(self) -> None:
        """Closes the ledger. Closing twice is allowed. A call in progress in another task raises
        LedgerClosed."""
        if self._fetching is not None:
            self._fetching.cancel()
        await self._leave_segment()

    @property
    def is_behind(self) -> bool:
        """Whether there is more in this segment without waiting for a writer."""
        entries = self._entries
        return bool(self._fetched) or (isinstance(entries, Tail) and entries.is_behind)

    async def next_batch(
        self, end: Position | None, *, may_wait: bool = True
    ) -> RecordBatch | None:
        """Returns the records of the next entry from `position` on; None at `end`, if there is one.

        Without `end` it waits forever at the end of the stream. If it may not wait, None says that
        everything that is known to be confirmed was returned. Raises Truncated, NoSuchStream and
        what reading ledgers raises.
        """
        while True:
            at = self.position
            assert at is not None, "the feed has a position"
            if end is not None:
                if at >= end:
                    return None
                await self._note_end(at, end)
            if not self._fetched:
                with trio.CancelScope() as self._fetching:
                    has_more = await self._fetch(at, end, may_wait)
                if self._fetching.cancel_called:
                    await self._leave_segment()
                    raise LedgerClosed(f"the reader of stream {self.stream!r} was closed")
                if not has_more:
                    return None
                continue
            batch = self._next_fetched(end)
            if batch is not None:
                return batch

    async def _note_end(self, at: Position, end: Position) -> None:
        """Notes what the reading of `end` showed: what is confirmed, and what was truncated."""
        stream = self._metadata
        if stream is not None:
            try:
                await self._check(stream, at)
            except PageLost as error:
                await self._explain(at, error, stream)
        ledger, segment = self._ledger, self._segment
        if ledger is not None and segment is not None and segment.number == end.segment:
            ledger.note_confirmed(end.entry - 1)

    def _next_fetched(self, end: Position | None) -> RecordBatch | None:
        """Returns the next records among the fetched entries; None if there are none left, or if
        `end` was reached."""
        while self._fetched:
            at, segment, entry = self.position, self._segment, self._fetched[0]
            assert at is not None, "the feed has a position"
            assert segment is not None, "fetched from no segment"
            entry_id = entry.entry_id - segment.base_entry
            if self._merged and entry_id > segment.last_entry:
                self._segment = self._merged.popleft()
                begin = Position(self._segment.number, 0, 0)
                if end is not None and begin >= end:
                    self.position = begin
                    return None
                continue
            batch = decode(
                entry.payload,
                segment=segment.number,
                entry=entry_id,
                base_sequence=segment.first_sequence,
                committed_ms=segment.last_time_ms,
            )
            self._fetched.popleft()
            self.position = batch.after
            if at.slot and (at.segment, at.entry) == (segment.number, entry_id):
                batch = batch.since(at.slot)
            if len(batch):
                return batch
        return None

    async def _fetch(self, at: Position, end: Position | None, may_wait: bool) -> bool:
        """Fetches entries from `at` on; returns False if there is nothing more before `end`.

        One step at a time: it may also only move to the next segment.
        """
        try:
            if self._entries is None:
                return await self._enter_segment(at, end, may_wait)
            if isinstance(self._entries, Tail):
                self._fetched.extend(await self._entries.take(may_wait=may_wait))
                return bool(self._fetched)
            self._fetched.extend(await self._entries.__anext__())
        except StopAsyncIteration:
            segment = self._segment
            assert segment is not None, "entries of no segment"
            assert not self._merged, f"entries of segment {self._merged[0].number} are missing"
            if segment.is_merged:
                await self._leave_range()  # the next one may be on the same ledger
            else:
                await self._leave_segment()
            if end is not None and end.segment <= segment.number:
                return False
            self.position = Position(segment.number + 1, 0, 0)
        except (NoSuchLedger, NoSuchEntry, PageLost) as error:
            await self._leave_segment()
            await self._explain(at, error, self._entered)
            self._entered = self._metadata
        except MetadataUnavailable as error:
            await self._leave_segment()
            if end is not None:
                raise
            # A reader that follows a stream waits anyway, as its writer does.
            _log.info("stream=%s: waiting for its metadata: %s", self.stream, error)
            await trio.sleep(_METADATA_PAUSE_S)
        except BaseException:
            # Also when cancelled: requests in flight are dropped, the next call begins again.
            await self._leave_segment()
            raise
        return True

    async def _enter_segment(self, at: Position, end: Position | None, may_wait: bool) -> bool:
        """Opens the segment of `at`, waiting for one if the stream ends here."""
        found = await self._segments_at(await self.refresh(), at)
        if not found:
            if end is not None or not may_wait:
                return False
            found = await self._segments_at(await self._wait_segment(at), at)
            assert found, "waited for a segment"
        segment, *merged = found
        if end is not None and segment.number > end.segment:
            return False
        self._entered = self._metadata
        first = at.entry if segment.number == at.segment else 0
        ledger = self._ledger
        if ledger is None or ledger.ledger_id != segment.ledger_id:
            await self._leave_segment()
            ledger = await self._client.open_ledger(segment.ledger_id, recover=False)
        self._segment, self._merged, self._ledger = segment, deque(merged), ledger
        if self.read_ahead_bytes is not None:
            ledger.read_ahead_bytes = self.read_ahead_bytes
        if not segment.is_open:
            last = found[-1].base_entry + found[-1].last_entry
            self._entries = ledger.entries(segment.base_entry + first, last)
        elif end is None:
            self._entries = ledger.tail(first)
        elif segment.number == end.segment and first < end.entry:
            ledger.note_confirmed(end.entry - 1)
            self._entries = ledger.entries(first, end.entry - 1)
        else:
            # The segment of `end` was sealed and this one begun after `end` was read, or
            # nothing is before `end` in it.
            await self._leave_segment()
            return False
        return True

    async def _check(self, stream: StreamMetadata, at: Position) -> None:
        if stream.restores or at < stream.truncated_to:
            await self._store.pages.resolve(stream, lambda known: known.check_position(at))

    async def _segments_at(self, stream: StreamMetadata, at: Position) -> tuple[Segment, ...]:
        """Returns the segment at or behind `at`, and those behind it on the same ledger. Raises
        Truncated."""

        def find(known: StreamMetadata) -> tuple[Segment, ...]:
            known.check_position(at)
            return known.together_at(at, _MERGED_AT_ONCE)

        return await self._store.pages.resolve(stream, find)

    async def _wait_segment(self, at: Position) -> StreamMetadata:
        """Waits until the stream has a segment at or behind `at`."""
        async with aclosing(self._store.watch_stream(self._namespace, self.stream)) as versions:
            async for stream in versions:
                if stream is None:
                    raise NoSuchStream(f"stream {self.stream!r} was deleted")
                self._note(stream)
                if await self._store.pages.resolve(stream, lambda known: known.segment_at(at)):
                    return stream
        raise AssertionError("a watch never ends by itself")

    async def refresh(self) -> StreamMetadata:
        """Reads the stream as it is now. Raises NoSuchStream."""
        stream, _ = await self._store.read_stream(self._namespace, self.stream)
        if stream.is_deleted:
            raise NoSuchStream(f"stream {self.stream!r} was deleted")
        self._note(stream)
        return stream

    def _note(self, stream: StreamMetadata) -> None:
        if self.created_ms is None:
            self.created_ms = stream.created_ms
        elif stream.created_ms != self.created_ms:
            raise NoSuchStream(f"stream {self.stream!r} was deleted and created again")
        self._metadata = stream

    async def _explain(
        self, at: Position, error: FinalError, before: StreamMetadata | None
    ) -> None:
        """Explains a missing ledger, entry or page: returns if the stream is not as it was
        `before`, so that trying again is right; raises Truncated if it was truncated, else `error`.
        """
        stream = await self.refresh()
        try:
            await self._check(stream, at)
        except PageLost:
            if stream == before:
                raise
            return  # unless it was purged just now, the next attempt raises it
        if stream == before:
            raise error

    async def _leave_range(self) -> None:
        """Leaves the segment, but not its ledger."""
        entries, self._entries, self._segment = self._entries, None, None
        self._merged.clear()
        self._fetched.clear()
        if entries is not None:
            with trio.CancelScope(shield=True):
                await entries.aclose()  # otherwise the read-ahead continues

    async def _leave_segment(self) -> None:
        await self._leave_range()
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            with trio.CancelScope(shield=True):
                await ledger.aclose()
