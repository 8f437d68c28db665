"""stream.reading.merged_reader for asyncio.

Generated from stream/reading/merged_reader.py by `make faces`. Not to be edited.
"""

from __future__ import annotations

from ledger.runtime.opening import Opened
from stream.aio.bridge import Bridge
from stream.aio.merging import MergedBatches, Merging
from stream.bridge.reading import BridgedMerge
from stream.core.position import Position
from stream.reading.merged_reader import MergedBatch, MergedRecord
from stream.reading.merged_reader import MergedReader as TrioMergedReader


class MergedReader(Merging, Opened):
    """Made by `Namespace.merged_reader`: an async iterator of MergedRecord, for one consumer task.

    A call that was cancelled, or failed with a RetryableError, loses nothing: call again.
    """

    _bridge: Bridge
    _inner: TrioMergedReader

    @classmethod
    def _of(cls, bridge: Bridge, holder: BridgedMerge) -> MergedReader:
        made = cls.__new__(cls)
        made._bridge, made._inner = bridge, holder.reader
        made._bridged = holder
        return made

    @property
    def watermark_ms(self) -> int | None:
        """All records returned from now on have this time or a later one, or are late. None while
        some stream has delivered nothing."""
        return self._watermark()

    @property
    def streams(self) -> list[str]:
        """The streams and partitions that are being read."""
        return self._streams()

    @property
    def buffered_bytes(self) -> int:
        """Bytes that are buffered, with the memory that records cost; see `buffer_bytes`."""
        return self._inner.buffered_bytes

    def positions(self) -> dict[str, Position]:
        """Returns where to resume, by stream: the `start` of another merged reader.

        Everything before was returned. Some of what is behind was too, where lateness, or event
        times that go back, changed the order within a stream.
        """
        return self._positions()

    def __aiter__(self) -> MergedReader:
        return self

    async def __anext__(self) -> MergedRecord:
        """Returns the next record in the merged order. Waits forever if the reader follows.

        Raises what readers of the streams raise: NoSuchStream for one that was named, Truncated,
        RecordFormatError, and retryable errors.
        """
        while True:
            for record in self._records:
                self._last_record = record
                step = self._step
                assert step is not None, "records of no batch"
                return MergedRecord(step.batch.stream, record, step.batch.is_late)
            self._is_partial, self._last_record = False, None
            await self._begin_step()

    async def next_batch(self) -> MergedBatch:
        """Returns the next records in the merged order, as many of one entry as follow each other.

        Raises StopAsyncIteration at the end, if there is one; else as iteration does.
        """
        return await self._next_merged()

    def batches(self) -> MergedBatches:
        """Returns batches in the merged order; columns without copies, `batch.to_arrow()`."""
        return MergedBatches(self)

    async def aclose(self) -> None:
        """Closes a reader that was opened without a block. Idempotent."""
        await self._leave()
