"""Readers and iterators of the trio thread, behind buffers for a consumer in another thread."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, TypeVar

from ledger.metastore.tasks import open_background
from ledger.runtime.bridge import Wake
from stream.bridged.prefetch import Prefetch
from stream.core.position import Position
from stream.core.records import RecordBatch
from stream.reader import StreamReader

T = TypeVar("T")
Post = Callable[[Callable[[], object]], None]
Source = Callable[[], AsyncIterator[T]]

BATCH_OVERHEAD_BYTES: Final = 512
"""Counted per batch for its objects."""

ITEM_BYTES: Final = 4096
"""Counted per item of other iterators: about a thousand wait at most."""


def _batch_bytes(batch: RecordBatch) -> int:
    return batch.header.body_bytes + BATCH_OVERHEAD_BYTES


class BridgedReader:
    """A stream reader and the buffer in front of it. `reader` is for its slow questions only."""

    def __init__(
        self, reader: StreamReader, prefetch: Prefetch[RecordBatch, Position | None]
    ) -> None:
        self.reader = reader
        self.prefetch = prefetch
        self.begin = reader.position

    async def aclose(self) -> None:
        """In the trio thread: lets go of the ledger."""
        self.prefetch.close()
        await self.reader.aclose()


@asynccontextmanager
async def bridged_reader(
    opening: AbstractAsyncContextManager[StreamReader], post: Post, wake: Wake
) -> AsyncIterator[BridgedReader]:
    """In the trio thread: a reader whose batches are fetched ahead, up to the end asked for."""
    async with opening as reader:

        async def pull(end: Position | None) -> RecordBatch | None:
            if end is None:
                return await reader.next_batch()
            return await reader.next_batch_before(end)

        prefetch: Prefetch[RecordBatch, Position | None] = Prefetch(pull, _batch_bytes, post, wake)
        async with open_background() as nursery:
            nursery.start_soon(prefetch.run)
            yield BridgedReader(reader, prefetch)


@asynccontextmanager
async def bridged_iterator(
    make: Source[T], post: Post, wake: Wake, *, bytes_max: int
) -> AsyncIterator[Prefetch[T, None]]:
    """In the trio thread: what an async generator yields, fetched ahead."""
    iterator = make()

    async def pull(_goal: None) -> T | None:
        return await anext(iterator, None)

    async def close() -> None:
        aclose = getattr(iterator, "aclose", None)
        if aclose is not None:
            await aclose()

    prefetch: Prefetch[T, None] = Prefetch(
        pull, lambda _item: ITEM_BYTES, post, wake, bytes_max=bytes_max
    )
    try:
        async with open_background() as nursery:
            nursery.start_soon(prefetch.run)
            yield prefetch
    finally:
        await close()
