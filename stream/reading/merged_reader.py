"""MergedReader: several streams as one, ordered by time behind a watermark.

Returns each record of each stream once; a record that is too late for the order is marked, never
dropped. Never fences a writer. The streams are read by reading/merged_feeds.py and ordered by
core/merge.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import trio

from ledger.runtime.background import open_background
from ledger.runtime.opening import Opened
from stream.core.entry.records import Record, RecordBatch
from stream.core.merge import NO_WATERMARK, MergedSpan
from stream.core.position import Position
from stream.reading.merge_options import MergeOptions
from stream.reading.merged_feeds import BufferedBatch, MergedFeeds
from stream.reading.shared_tail import SharedTails
from stream.scope import NamespaceScope


class MergedRecord(NamedTuple):
    """A record and its stream (or partition).

    `is_late`: its time is before the watermark as it was when the record was read, so that records
    with a later time may have been returned before it.
    """

    stream: str
    record: Record
    is_late: bool = False


class MergedBatch(NamedTuple):
    """Records of one entry that follow each other in the merged order. `batch` is a view."""

    stream: str
    batch: RecordBatch
    is_late: bool = False


class MergedReader(Opened):
    """Made by `Namespace.merged_reader`: an async iterator of MergedRecord, for one consumer task.

    A call that was cancelled, or failed with a RetryableError, loses nothing: call again.
    """

    def __init__(
        self,
        scope: NamespaceScope,
        tails: SharedTails,
        streams: str | Sequence[str],
        options: MergeOptions,
    ) -> None:
        self._feeds = MergedFeeds(scope, tails, streams, options)
        self._span: MergedSpan[BufferedBatch] | None = None
        self._at = 0
        """Index in the slots of the span: those before it were returned."""

    @property
    def watermark_ms(self) -> int | None:
        """All records returned from now on have this time or a later one, or are late. None while
        some stream has delivered nothing."""
        watermark_ms = self._feeds.merge.watermark_ms
        return None if watermark_ms == NO_WATERMARK else watermark_ms

    @property
    def streams(self) -> list[str]:
        """The streams and partitions that are being read."""
        return self._feeds.streams

    @property
    def buffered_bytes(self) -> int:
        """Bytes that are buffered, with the memory that records cost; see `buffer_bytes`."""
        return self._feeds.merge.nbytes

    def positions(self) -> dict[str, Position]:
        """Returns where to resume, by stream: the `start` of another merged reader.

        Everything before was returned. Some of what is behind was too, where lateness, or event
        times that go back, changed the order within a stream.
        """
        positions = self._feeds.positions()
        span = self._span
        if span is not None and self._at < len(span.slots):
            name = span.source.name
            here = span.batch.position(min(span.slots[self._at :]))
            positions[name] = min(here, positions.get(name, here))
        return positions

    def __aiter__(self) -> MergedReader:
        return self

    async def __anext__(self) -> MergedRecord:
        """Returns the next record in the merged order. Waits forever if the reader follows.

        Raises what readers of the streams raise: NoSuchStream for one that was named, Truncated,
        RecordFormatError, and retryable errors.
        """
        span = self._span
        if span is None or self._at >= len(span.slots):
            span = await self._next_span()
        buffered = span.batch
        if buffered.records is None:
            buffered.records = buffered.batch.records()
        record = buffered.records[span.slots[self._at]]
        self._at += 1
        return MergedRecord(span.source.name, record, span.is_late)

    async def next_batch(self) -> MergedBatch:
        """Returns the next records in the merged order, as many of one entry as follow each other.

        Raises StopAsyncIteration at the end, if there is one; else as iteration does.
        """
        span = self._span
        if span is None or self._at >= len(span.slots):
            span = await self._next_span()
        first = self._at
        self._at = stop = first + _run_length(span.slots, first)
        whole = span.batch.batch
        base = whole.first_slot
        batch = whole.between(base + span.slots[first], base + span.slots[stop - 1] + 1)
        return MergedBatch(span.source.name, batch, span.is_late)

    def batches(self) -> MergedBatches:
        """Returns batches in the merged order; columns without copies, `batch.to_arrow()`."""
        return MergedBatches(self)

    async def _next_span(self) -> MergedSpan[BufferedBatch]:
        span = await self._feeds.next_span()
        self._span, self._at = span, 0
        if span is None:
            raise StopAsyncIteration
        return span

    async def open(self, nursery: trio.Nursery) -> None:
        """Begins to read, in tasks of this nursery. Raises NoSuchStream, InvalidArgument."""
        await self._feeds.open(nursery)

    def close(self) -> None:
        """Makes all calls raise LedgerClosed from now on."""
        self._feeds.close()

    def _description(self) -> str:
        return f"of {', '.join(self.streams) or 'no streams'}"

    async def aclose(self) -> None:
        """Closes a reader that was opened without a block. Idempotent."""
        await self._leave()


class MergedBatches:
    """Batches of a merged reader. It owns nothing: it may simply be dropped."""

    def __init__(self, reader: MergedReader) -> None:
        self._reader = reader

    def __aiter__(self) -> MergedBatches:
        return self

    async def __anext__(self) -> MergedBatch:
        return await self._reader.next_batch()

    async def aclose(self) -> None:
        """Does nothing; it exists for `aclosing`."""
        await trio.lowlevel.checkpoint()


@asynccontextmanager
async def open_merged_reader(reader: MergedReader) -> AsyncIterator[MergedReader]:
    """Reads while the block lasts."""
    async with open_background() as nursery:
        await reader.open(nursery)
        try:
            yield reader
        finally:
            reader.close()


def _run_length(slots: Sequence[int], first: int) -> int:
    """Returns how many slots from `first` on are consecutive."""
    if isinstance(slots, range):
        return len(slots) - first
    length = 1
    while first + length < len(slots) and slots[first + length] == slots[first] + length:
        length += 1
    return length
