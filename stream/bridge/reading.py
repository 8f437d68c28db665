"""Readers in the trio thread, each behind a buffer for a consumer in another thread."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, NamedTuple

from ledger.runtime.background import open_background
from ledger.runtime.bridge import Post, Wake
from stream.bridge.prefetch import Prefetch
from stream.core.entry.records import RecordBatch
from stream.core.position import Position
from stream.reading.merged_reader import MergedBatch, MergedReader
from stream.reading.reader import StreamReader

BATCH_OVERHEAD_BYTES: Final = 512
"""Bytes counted per batch for its objects."""


def _batch_bytes(batch: RecordBatch) -> int:
    return batch.header.body_bytes + BATCH_OVERHEAD_BYTES


class BridgedReader:
    """A stream reader and the buffer in front of it. Use `reader` only for its rare methods."""

    def __init__(
        self, reader: StreamReader, prefetch: Prefetch[RecordBatch, Position | None]
    ) -> None:
        self.reader = reader
        self.prefetch = prefetch
        self.begin = reader.position

    async def aclose(self) -> None:
        """In the trio thread: closes the ledger."""
        self.prefetch.close()
        await self.reader.aclose()


@asynccontextmanager
async def bridged_reader(
    opening: AbstractAsyncContextManager[StreamReader], post: Post, wake: Wake
) -> AsyncIterator[BridgedReader]:
    """In the trio thread: opens a reader whose batches are fetched ahead, up to the wanted end."""
    async with opening as reader:

        async def pull(end: Position | None) -> RecordBatch | None:
            if end is None:
                return await reader.next_batch()
            return await reader.next_batch_before(end)

        prefetch: Prefetch[RecordBatch, Position | None] = Prefetch(pull, _batch_bytes, post, wake)
        async with open_background() as nursery:
            nursery.start_soon(prefetch.run)
            yield BridgedReader(reader, prefetch)


class MergedStep(NamedTuple):
    """A batch of a merged reader, and the reader's state right after it returned the batch."""

    batch: MergedBatch
    watermark_ms: int | None
    streams: list[str]
    positions: dict[str, Position]


class BridgedMerge:
    """A merged reader and the buffer in front of it, with its state when it was opened."""

    def __init__(self, reader: MergedReader, prefetch: Prefetch[MergedStep, None]) -> None:
        self.reader = reader
        self.prefetch = prefetch
        self.streams = reader.streams
        self.positions = reader.positions()

    def live_watermark_ms(self) -> tuple[int | None] | None:
        """In the trio thread: returns the watermark now, if no batch waits for the consumer."""
        # No other task runs between the return of a batch and its arrival in the buffer.
        return None if self.prefetch.head() is not None else (self.reader.watermark_ms,)


def _step_bytes(step: MergedStep) -> int:
    header, records = step.batch.batch.header, len(step.batch.batch)
    return header.body_bytes * records // max(header.count, 1) + BATCH_OVERHEAD_BYTES


@asynccontextmanager
async def bridged_merge(
    opening: AbstractAsyncContextManager[MergedReader], post: Post, wake: Wake
) -> AsyncIterator[BridgedMerge]:
    """In the trio thread: opens a merged reader whose batches are fetched ahead."""
    async with opening as reader:

        async def pull(_goal: None) -> MergedStep | None:
            try:
                batch = await reader.next_batch()
            except StopAsyncIteration:
                return None
            return MergedStep(batch, reader.watermark_ms, reader.streams, reader.positions())

        prefetch: Prefetch[MergedStep, None] = Prefetch(pull, _step_bytes, post, wake)
        async with open_background() as nursery:
            merge = BridgedMerge(reader, prefetch)
            nursery.start_soon(prefetch.run)
            yield merge
