"""Merges several streams into one, ordered by time behind a watermark.

The watermark is a promise: every record returned from now on has its time or a later one, or is
marked late. It is as far as the slowest source that counts, less the allowed lateness. Never drops
or repeats a record. Memory is bounded in bytes: a source far ahead must wait, and where the
requested lateness needs more memory than the bound, the watermark advances without waiting for it.
Shell: reading/merged_reader.py.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush, heapreplace
from typing import Generic, NamedTuple, TypeVar

from ledger.errors import InvalidArgument

B = TypeVar("B")


class MergedSpan(NamedTuple, Generic[B]):
    """Records of one batch that follow each other in the merged order: its `slots`, in this order.

    `slots` count from 0 within the pushed batch. `is_late`: their times are before the watermark as
    it was when they were pushed, so that records with a later time may have been returned before.
    """

    source: MergeSource[B]
    batch: B
    slots: Sequence[int]
    is_late: bool


class _Run(Generic[B]):
    """A batch with its times in order; those from index `at` on were not returned yet."""

    __slots__ = ("at", "batch", "late_stop", "nbytes", "slots", "source", "times")

    def __init__(
        self, source: MergeSource[B], batch: B, times: Sequence[int], nbytes: int, watermark: int
    ) -> None:
        self.source = source
        self.batch = batch
        self.nbytes = nbytes
        self.times = sorted(times)
        self.slots: Sequence[int] = range(len(times))
        if self.times != times:
            self.slots = sorted(self.slots, key=times.__getitem__)
        self.at = 0
        self.late_stop = bisect_left(self.times, watermark)


class MergeSource(Generic[B]):
    """A stream of the merge; made by `Merge.add`."""

    __slots__ = ("is_finished", "is_idle", "name", "nbytes", "newest_ms", "ordinal", "runs")

    def __init__(self, name: str, ordinal: int) -> None:
        self.name = name
        self.ordinal = ordinal
        self.runs: deque[_Run[B]] = deque()
        self.nbytes = 0
        self.newest_ms: int | None = None
        """The highest time of all its records; None before its first record."""
        self.is_idle = False
        self.is_finished = False

    def unread(self) -> tuple[B, int] | None:
        """Returns batch and slot of the first buffered record, in the order of the stream."""
        if not self.runs:
            return None
        run = self.runs[0]
        rest = run.slots[run.at :]
        return run.batch, rest[0] if isinstance(rest, range) else min(rest)

    def lowest_ms(self) -> int | None:
        """Returns the time of the first buffered record, in the order of time."""
        return min((run.times[run.at] for run in self.runs), default=None)


NO_WATERMARK = -(1 << 63)
"""A time before all others."""


class Merge(Generic[B]):
    """Merges sources; records of equal time keep the order in which their sources were added.

    Args:
        lateness_ms: how far a record's time may be behind the newest of its source without being
            late.
        bytes_max: bytes buffered over all sources, shared evenly. Exceeded by at most one batch per
            source.
    """

    def __init__(self, *, lateness_ms: int, bytes_max: int) -> None:
        if lateness_ms < 0:
            raise InvalidArgument(f"lateness_ms is {lateness_ms}, it must be 0 or more")
        if bytes_max <= 0:
            raise InvalidArgument(f"bytes_max is {bytes_max}, it must be positive")
        self._lateness_ms = lateness_ms
        self._bytes_max = bytes_max
        self._added = 0
        self._sources: list[MergeSource[B]] = []  # those that may still deliver
        self._shares = 0  # sources that may deliver, or have buffered records
        self._heap: list[tuple[int, int, int, _Run[B]]] = []  # time, source, batch
        self._pushed = 0
        self._newest_ms = NO_WATERMARK
        self.watermark_ms = NO_WATERMARK
        """Advances when records are requested, and never goes back."""
        self.nbytes = 0
        """Bytes buffered now."""

    def add(self, name: str) -> MergeSource[B]:
        """Adds a source. It holds the watermark back until it delivers, is idle or has finished."""
        source: MergeSource[B] = MergeSource(name, self._added)
        self._added += 1
        self._shares += 1
        self._sources.append(source)
        return source

    def push(self, source: MergeSource[B], batch: B, times_ms: Sequence[int], nbytes: int) -> None:
        """Adds the next records of a source, with a time for each; `nbytes` is what they occupy."""
        assert not source.is_finished, f"source {source.name!r} has finished"
        if not times_ms:
            return
        run = _Run(source, batch, times_ms, nbytes, self.watermark_ms)
        source.runs.append(run)
        source.nbytes += nbytes
        self.nbytes += nbytes
        newest = run.times[-1]
        if source.newest_ms is None or newest > source.newest_ms:
            source.newest_ms = newest
        self._newest_ms = max(self._newest_ms, newest)
        source.is_idle = False
        heappush(self._heap, (run.times[0], source.ordinal, self._pushed, run))
        self._pushed += 1

    def wants(self, source: MergeSource[B]) -> bool:
        """Whether there is buffer space for another batch of this source."""
        return not source.is_finished and source.nbytes * self._shares < self._bytes_max

    def note_idle(self, source: MergeSource[B]) -> None:
        """Notes that the source has no more records for now: the watermark does not wait for it
        until it delivers again."""
        source.is_idle = True

    def finish(self, source: MergeSource[B]) -> None:
        """Notes that the source will never deliver again. What it delivered is still returned."""
        if not source.is_finished:
            source.is_finished = True
            self._sources.remove(source)
            self._shares -= not source.runs

    @property
    def is_finished(self) -> bool:
        """Whether all sources have finished and everything was returned."""
        return not self._sources and not self._heap

    def pop(self) -> MergedSpan[B] | None:
        """Returns the next records; None if some source must deliver (or be idle) first."""
        heap = self._heap
        if not heap:
            return None
        if heap[0][0] > self.watermark_ms:
            self._advance()
            if heap[0][0] > self.watermark_ms:
                return None
        _, ordinal, number, run = heap[0]
        first = run.at
        stop = self._stop(run, ordinal, number)
        is_late = first < run.late_stop
        if is_late:
            stop = min(stop, run.late_stop)
        run.at = stop
        if stop < len(run.times):
            heapreplace(heap, (run.times[stop], ordinal, number, run))
        else:
            heappop(heap)
            self._forget(run)
        return MergedSpan(run.source, run.batch, run.slots[first:stop], is_late)

    def _stop(self, run: _Run[B], ordinal: int, number: int) -> int:
        """Returns how far the first run of the heap may go before the turn of another one."""
        heap, times = self._heap, run.times
        stop = bisect_right(times, self.watermark_ms, run.at)
        for rival in heap[1:3]:  # the smaller one of them is the next
            if times[stop - 1] < rival[0]:
                continue
            if (ordinal, number) < (rival[1], rival[2]):
                stop = bisect_right(times, rival[0], run.at, stop)
            else:
                stop = bisect_left(times, rival[0], run.at, stop)
        assert stop > run.at, "the first of the heap is never behind another"
        return stop

    def _forget(self, run: _Run[B]) -> None:
        source = run.source
        source.nbytes -= run.nbytes
        self.nbytes -= run.nbytes
        source.runs.remove(run)  # nearly always the first one
        self._shares -= source.is_finished and not source.runs

    def _advance(self) -> None:
        """Advances the watermark as far as the sources that count allow."""
        counted = [source for source in self._sources if not source.is_idle]
        if not counted:
            # No source will deliver an earlier time: everything buffered may be returned.
            self.watermark_ms = max(self.watermark_ms, self._newest_ms)
            return
        bound = min(self._bound(source) for source in counted)
        self.watermark_ms = max(self.watermark_ms, bound)

    def _bound(self, source: MergeSource[B]) -> int:
        if source.newest_ms is None:
            return NO_WATERMARK
        bound = source.newest_ms - self._lateness_ms
        if not self.wants(source):
            # Its buffer is full: it cannot deliver more, so waiting for it would never end.
            lowest = source.lowest_ms()
            assert lowest is not None, "a source that holds bytes has records"
            bound = max(bound, lowest)
        return bound
