"""stream.reading.reader for threads.

Generated from stream/reading/reader.py by `make faces`. Not to be edited.
"""

from __future__ import annotations

from stream.blocking.batches import BatchIterator, Reading
from stream.blocking.bridge import Bridge
from stream.blocking.opening import Opened
from stream.bridge.reading import BridgedReader
from stream.core.entry.records import Record, RecordBatch
from stream.core.position import Position
from stream.reading.reader import StreamReader as TrioStreamReader


class StreamReader(Reading, Opened):
    """Made by `Namespace.reader`; an `async with` object for one consumer task.

    Yields each record once, in order, without gaps (except those that `on_truncated` skips). A call
    that was cancelled or failed loses nothing: the next one continues at `position`.
    """

    _bridge: Bridge
    _inner: TrioStreamReader

    @classmethod
    def _of(cls, bridge: Bridge, holder: BridgedReader) -> StreamReader:
        made = cls.__new__(cls)
        made._bridge, made._inner = bridge, holder.reader
        made._bridged = holder
        made._at = holder.begin
        return made

    @property
    def stream(self) -> str:
        return self._inner.stream

    def close(self) -> None:
        """Closes the ledger. Closing twice is allowed."""
        try:
            self._close()
        finally:
            self._leave()

    @property
    def position(self) -> Position:
        """Where to resume: behind the last record returned."""
        return self._position()

    def __iter__(self) -> StreamReader:
        return self

    def __next__(self) -> Record:
        """Returns the next record; waits forever at the end of the stream."""
        while True:
            for record in self._records:
                self._last_record = record
                return record
            self._begin_batch()

    def next_batch(self) -> RecordBatch:
        """Returns the next records, one entry at a time; waits forever at the end of the stream."""
        batch = self._next_batch(None)
        assert batch is not None, "without an end there is always a next batch"
        return batch

    def batches(self) -> BatchIterator:
        """Returns batches of records, forever."""
        return BatchIterator(self, stops=False)

    def read_to_end(self) -> BatchIterator:
        """Returns batches up to the end of the stream as it is at the first request."""
        return BatchIterator(self, stops=True)

    def next_batch_before(self, end: Position) -> RecordBatch | None:
        """Returns the next records; None when `end` is reached (see `end_position`)."""
        return self._next_batch(end)

    def end_position(self) -> Position:
        """Returns the position behind the last confirmed record, asked of metadata and bookies
        now."""
        return self._bridge.call(lambda: self._inner.end_position())
