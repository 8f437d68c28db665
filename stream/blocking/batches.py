"""Batches taken from the buffer of a reader: the consumer's half of what reads ahead.

The public class is reader.py; the trio half stream/bridge/reading.py. Must hand out each record
once and know where to resume, whatever was cancelled.

Generated from stream/aio by `make faces`. Not to be edited.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from ledger.errors import LedgerClosed
from stream.blocking.bridge import Bridge
from stream.bridge.reading import BridgedReader
from stream.core.entry.records import Record, RecordBatch
from stream.core.position import Position


class Reading:
    """The hand-written half of StreamReader. `_bridged` is its half in the trio thread."""

    _bridge: Bridge
    _bridged: BridgedReader
    _at: Position
    """Every record before this position was returned, or is in `_batch`."""
    _batch: RecordBatch | None = None
    _last_record: Record | None = None
    _records: Iterator[Record] = iter(())
    _is_closed = False

    def _position(self) -> Position:
        last, batch = self._last_record, self._batch
        if last is not None and batch is not None and last.position < batch.last_position:
            return last.position.after
        return self._at

    def _description(self) -> str:
        if self._is_closed:
            return f"of {self._bridged.reader.stream!r}, closed"
        return f"of {self._bridged.reader.stream!r} at {self._position()}"

    def _rest(self) -> RecordBatch | None:
        """Returns the rest of a batch of which single records were returned."""
        batch, last = self._batch, self._last_record
        self._batch, self._last_record, self._records = None, None, iter(())
        if batch is None:
            return None
        rest = batch.since(batch.first_slot if last is None else last.position.slot + 1)
        return rest if len(rest) else None

    def _next_batch(self, end: Position | None) -> RecordBatch | None:
        """Returns the next batch; None at `end`, if there is one."""
        rest = self._rest()
        if rest is not None:
            return rest
        prefetch = self._bridged.prefetch
        while True:
            if self._is_closed:
                raise LedgerClosed(
                    f"the reader of stream {self._bridged.reader.stream!r} is closed"
                )
            fetched = prefetch.head()
            if fetched is None:
                self._bridge.wait(prefetch.want(end))
                continue
            batch = fetched.item
            if batch is not None:
                if end is not None and batch.first_position >= end:
                    return None
                prefetch.pop()
                self._at = batch.after
                return batch
            prefetch.pop()
            if fetched.error is not None:
                raise fetched.error
            if fetched.goal == end:
                return None

    def _begin_batch(self) -> None:
        """Fetches the next batch, whose records are returned one at a time."""
        batch = self._next_batch(None)
        assert batch is not None, "without an end there is always a next batch"
        self._batch = batch
        self._records = iter(batch.records())

    def _close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._bridge.call(self._bridged.aclose)

    def _end_position(self) -> Position:
        return self._bridge.call(self._bridged.reader.end_position)


class BatchIterator(Iterator[RecordBatch]):
    """Batches of a reader. It holds no resources: drop it, and another one continues."""

    def __init__(self, reader: Reading, *, stops: bool) -> None:
        self._reader = reader
        self._stops = stops
        self._end: Position | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RecordBatch:
        reader = self._reader
        if self._stops and self._end is None:
            self._end = reader._end_position()
        batch = reader._next_batch(self._end)
        if batch is None:
            raise StopIteration
        return batch

    def close(self) -> None:
        """For `closing`; there is nothing to close."""
