"""Records of several streams taken from the buffer of a merged reader: the consumer's half.

The public class is merged_reader.py; the trio half stream/bridge/reading.py. Must know what was
handed out and what only waits in the buffer: watermark and positions are the consumer's.

Generated from stream/aio by `make faces`. Not to be edited.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from stream.blocking.bridge import Bridge
from stream.bridge.reading import BridgedMerge, MergedStep
from stream.core.entry.records import Record
from stream.core.position import Position
from stream.reading.merged_reader import MergedBatch


class Merging:
    """The hand-written half of MergedReader. `_bridged` is its half in the trio thread."""

    _bridge: Bridge
    _bridged: BridgedMerge
    _step: MergedStep | None = None
    """The step taken from the buffer last."""
    _records: Iterator[Record] = iter(())
    _last_record: Record | None = None
    """The records of the step, if they are returned one at a time."""
    _is_partial = False
    """Some records of the step were returned, and some were not."""

    def _take(self) -> MergedStep:
        prefetch = self._bridged.prefetch
        while True:
            fetched = prefetch.head()
            if fetched is None:
                self._bridge.wait(prefetch.want(None))
                continue
            prefetch.pop()
            if fetched.item is not None:
                self._step = fetched.item
                return fetched.item
            if fetched.error is not None:
                raise fetched.error
            raise StopIteration

    def _begin_step(self) -> None:
        step = self._take()
        self._records = iter(step.batch.batch.records())
        self._is_partial = True

    def _next_merged(self) -> MergedBatch:
        if self._is_partial:
            step, last = self._step, self._last_record
            assert step is not None, "records of no batch"
            self._records, self._last_record, self._is_partial = iter(()), None, False
            batch = step.batch.batch
            rest = batch if last is None else batch.since(last.position.slot + 1)
            if len(rest):
                return step.batch._replace(batch=rest)
        return (self._take()).batch

    def _watermark(self) -> int | None:
        step = self._step
        if not self._is_partial and self._bridged.prefetch.head() is None:
            live = self._bridge.ask(self._bridged.live_watermark_ms)
            if live is not None:
                return live[0]
        return None if step is None else step.watermark_ms

    def _streams(self) -> list[str]:
        return self._bridged.streams if self._step is None else self._step.streams

    def _positions(self) -> dict[str, Position]:
        step = self._step
        if step is None:
            return dict(self._bridged.positions)
        places = dict(step.positions)
        if self._is_partial:
            last, batch = self._last_record, step.batch.batch
            here = batch.first_position if last is None else last.position.after
            if here <= batch.last_position:
                places[step.batch.stream] = min(here, places.get(step.batch.stream, here))
        return places


class MergedBatches(Iterator[MergedBatch]):
    """Batches of a merged reader. It holds no resources and may simply be dropped."""

    def __init__(self, reader: Merging) -> None:
        self._reader = reader

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> MergedBatch:
        return self._reader._next_merged()

    def close(self) -> None:
        """For `closing`; there is nothing to close."""
