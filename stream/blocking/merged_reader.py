"""stream.merged_reader for threads.

Generated from stream/merged_reader.py by `make faces`. Not to be edited.
"""

from __future__ import annotations

from stream.blocking.crossing import Crossing
from stream.core.position import Position
from stream.merged_reader import MergedBatch, MergedRecord
from stream.merged_reader import MergedBatches as TrioMergedBatches
from stream.merged_reader import MergedReader as TrioMergedReader


class MergedReader:
    """Made by `Namespace.merged_reader`: an iterator of MergedRecord, for one consumer task.

    A call that was cancelled, or failed with a RetryableError, loses nothing: call again.
    """

    _crossing: Crossing
    _inner: TrioMergedReader

    @classmethod
    def _of(cls, crossing: Crossing, holder: TrioMergedReader) -> MergedReader:
        made = cls.__new__(cls)
        made._crossing, made._inner = crossing, holder
        return made

    @property
    def watermark_ms(self) -> int | None:
        """What is given out from now on has this time or a later one, or is late. None while some
        stream has not said anything."""
        return self._inner.watermark_ms

    @property
    def streams(self) -> list[str]:
        """The streams and partitions that are read now."""
        return self._inner.streams

    @property
    def buffered_bytes(self) -> int:
        """What waits for its turn, with what records cost in memory; see `buffer_bytes`."""
        return self._inner.buffered_bytes

    def positions(self) -> dict[str, Position]:
        """Where to resume, by stream: `start` of another merged reader.

        Everything before was handed out. Of what is behind some was too, where lateness, or event
        times that go back, changed the order within a stream.
        """
        return self._crossing.ask(lambda: self._inner.positions())

    def __iter__(self) -> MergedReader:
        return self

    def __next__(self) -> MergedRecord:
        """The next record in the merged order. Waits for ever if the reader follows.

        Raises what readers of the streams raise: NoSuchStream for one that was named, Truncated,
        RecordFormatError, and retryable errors.
        """
        return self._crossing.call(lambda: anext(self._inner))

    def next_batch(self) -> MergedBatch:
        """The next records in the merged order, as many of one entry as follow each other.

        Raises StopIteration at the end, if there is one; else as iteration does.
        """
        return self._crossing.call(lambda: self._inner.next_batch())

    def batches(self) -> MergedBatches:
        """Batches in the merged order; columns without copies, `batch.to_arrow()`."""
        return MergedBatches._of(self._crossing, self._inner.batches())


class MergedBatches:
    """Batches of a merged reader. Holds nothing: it may simply be dropped."""

    _crossing: Crossing
    _inner: TrioMergedBatches

    @classmethod
    def _of(cls, crossing: Crossing, holder: TrioMergedBatches) -> MergedBatches:
        made = cls.__new__(cls)
        made._crossing, made._inner = crossing, holder
        return made

    def __iter__(self) -> MergedBatches:
        return self

    def __next__(self) -> MergedBatch:
        return self._crossing.call(lambda: anext(self._inner))

    def close(self) -> None:
        """For `closing`; there is nothing to close."""
        self._crossing.call(lambda: self._inner.aclose())
