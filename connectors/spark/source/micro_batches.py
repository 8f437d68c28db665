"""Decides what the next micro-batch reads of each stream, from Spark's offsets, ends and limits.

Offsets must never move back or pass what is confirmed; two of them fully determine the records
between. A stream that is not in the offsets is read from its first record. A deleted stream is
data loss, unless all its records were read. Does not depend on Spark; belongs to one loop.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import trio

from connectors.spark.core.admission import Limits
from connectors.spark.core.offsets import Offsets, StreamOffset, advances, is_one_reading
from connectors.spark.core.planner import SegmentRange, ranges_between
from connectors.spark.options.options import Positions, Selection
from connectors.spark.source.admission import ReadSpan, admit_spans
from connectors.spark.source.data_loss import (
    DataLossLog,
    LostRange,
    lost_by_deletion,
    lost_by_restore,
    lost_by_truncation,
)
from connectors.spark.source.discovery import is_selected, read_metadata, starting_offset
from connectors.spark.source.end_tracker import EndTracker
from connectors.spark.source.stream_index import StreamIndex
from ledger.errors import LedgerError, NoSuchEntry, NoSuchLedger, RetryableError
from ledger.runtime.concurrency import map_bounded
from stream.store.pages import PageLost

if TYPE_CHECKING:
    from connectors.spark.source.checkpoint_cursors import CheckpointCursors

T = TypeVar("T")

_log = logging.getLogger(__name__)

RETRY_FOR_S = 60.0
"""How long a metadata store or bookies may be unavailable before the query fails."""
_RETRY_PAUSE_S = 0.5
_PURGES_MAX = 5
"""How many times one call is retried because streams were purged."""
_TRASH_CHECK_S = 600.0
"""The interval at which deleted streams are looked up in the trash again."""
_AGES_MAX = 32
"""Up to this many streams have the age of their oldest unread record looked up for the lag."""


@dataclass(frozen=True, slots=True)
class Lag:
    """The unread records, their stored bytes, and the age of the oldest in whole seconds.

    `least` and `most` are the unread records of one of the `streams`, those that are read to their
    end included.
    """

    records: int = 0
    nbytes: int = 0
    seconds: int = 0
    streams: int = 0
    least: int = 0
    most: int = 0


@dataclass(frozen=True, slots=True)
class _DeletedStream:
    """A deleted stream, in the trash since `gone_ms` (0: it cannot be restored).

    This has to be checked again at `known_until_s`.
    """

    gone_ms: int
    known_until_s: float


class MicroBatches:
    """The offsets of one query.

    Args:
        selection: the streams of the options.
        starting: where a new query begins in them.
        losses: counts lost records, or raises an error for them.
        cursors: those that follow the checkpoint, if any do.
    """

    def __init__(
        self,
        selection: Selection,
        starting: Positions,
        losses: DataLossLog,
        cursors: CheckpointCursors | None = None,
    ) -> None:
        self._selection = selection
        self._starting = starting
        self._losses = losses
        self._cursors = cursors
        self._tracker: EndTracker | None = None
        self._final: Offsets | None = None
        """Where a query with Trigger.AvailableNow ends."""
        self._turn = ""
        self._settled: dict[tuple[str, int], _DeletedStream] = {}
        """Deleted streams whose loss has been reported."""

    @property
    def tracker(self) -> EndTracker:
        """The tracker of the selected streams. It may be replaced between two calls."""
        assert self._tracker is not None, "the streams are not tracked"
        return self._tracker

    @tracker.setter
    def tracker(self, tracker: EndTracker) -> None:
        self._tracker = tracker

    async def initial(self) -> Offsets:
        """Returns where a new query begins. Raises what `starting_offset` raises."""

        async def of_one(name: str) -> StreamOffset:
            index = self.tracker.streams[name]
            return await starting_offset(index, self._starting, self._losses)

        async def of_all() -> Offsets:
            names = list(self.tracker.streams)
            return Offsets(dict(zip(names, await map_bounded(names, of_one), strict=True)))

        return await self.retrying(of_all)

    async def settle_end(self) -> None:
        """Fixes the current ends as the end of the query (Trigger.AvailableNow)."""
        await self.retrying(self.tracker.read_ends)
        self._final = self.newest()

    def newest(self) -> Offsets:
        """Returns the known end of each stream."""
        return Offsets({name: index.end for name, index in self.tracker.streams.items()})

    async def latest(self, start: Offsets, limits: Limits, waited_ms: int) -> Offsets:
        """Returns where the micro-batch that begins at `start` ends: `start` if it is not due.

        `waited_ms` have passed since the previous one. Raises DataLoss, and what reading ledgers
        and metadata raises.
        """
        await self._begin_cursors(start)
        await self.tracker.catch_up()
        return await self.retrying(lambda: self._latest(start, limits, waited_ms))

    async def _begin_cursors(self, start: Offsets, planned: Offsets | None = None) -> None:
        cursors = self._cursors
        if cursors is not None and not cursors.has_begun:
            await self.retrying(lambda: cursors.begin(self.tracker, start, planned))

    async def _latest(self, start: Offsets, limits: Limits, waited_ms: int) -> Offsets:
        await self._settle_deleted(start)
        spans = await self._spans(start)
        records = sum(span.records for span in spans.values())
        is_due = records > 0 if self._final is not None else limits.is_due(records, waited_ms)
        if not is_due:
            return start
        ends = {name: replace(span.end, begin=span.begin.begin) for name, span in spans.items()}
        if limits.records_max is not None or limits.bytes_max is not None:
            ends, self._turn = await admit_spans(spans, limits, self._turn)
        kept = {
            name: replace(offset, gone_ms=self._gone_ms(name, offset))
            for name, offset in start.items()
            if self._is_kept(name, offset) or self._gone_ms(name, offset)
        }
        owner = start.cursor_owner or ("" if self._cursors is None else self._cursors.owner)
        return Offsets({**kept, **ends}, owner)

    async def reported(self, position: Offsets) -> tuple[Offsets, Lag]:
        """Returns the newest offsets, and the lag behind `position`.

        A stream that is not in `position` counts from where reading it would begin now.
        """
        streams = dict(self.tracker.streams)
        fresh = [s for name, s in streams.items() if not _is_same_stream(position.get(name), s)]
        starts = {**position, **{index.name: await _first_or_end(index) for index in fresh}}
        newest = {name: replace(s.end, begin=starts[name].begin) for name, s in streams.items()}
        return Offsets(newest), await self.lag(Offsets(starts))

    async def lag(self, position: Offsets) -> Lag:
        """Returns the lag between `position` and the newest known records.

        The age is looked up in the streams with the largest backlog only.
        """
        behind: list[tuple[int, StreamIndex, StreamOffset]] = []
        counts: list[int] = []
        nbytes = 0
        for name, offset in position.items():
            index = self._present(name, offset)
            if index is None:
                continue
            records = max(0, await index.records_between(offset, index.end))
            counts.append(records)
            if records > 0:
                behind.append((records, index, offset))
                nbytes += await index.bytes_between(offset, index.end)
        behind.sort(key=lambda each: each[0], reverse=True)

        async def age_ms(each: tuple[int, StreamIndex, StreamOffset]) -> int:
            _, index, offset = each
            return self.tracker.client.now_ms() - await index.time_ms(offset)

        ages_ms = await map_bounded(behind[:_AGES_MAX], age_ms)
        return Lag(
            sum(counts), nbytes, max([0, *ages_ms]) // 1000, len(counts),
            min(counts, default=0), max(counts, default=0),
        )  # fmt: skip

    async def ranges(self, start: Offsets, end: Offsets) -> list[SegmentRange]:
        """Returns the records from `start` on and before `end`. Raises DataLoss."""
        names = [name for name, behind in end.items() if advances(start.get(name), behind)]
        if names:  # Spark may plan an empty range for offsets that are not committed
            await self._begin_cursors(start, end)

        async def of_one(name: str) -> list[SegmentRange]:
            return await self._ranges_of(name, start.get(name), end[name])

        found = await self.retrying(lambda: map_bounded(names, of_one))
        return [each for ranges in found for each in ranges]

    def forget_before(self, end: Offsets) -> None:
        """Drops what is known of the streams before `end`, which is not needed any more."""
        for name, offset in end.items():
            index = self._present(name, offset)
            if index is not None:
                index.forget_before(offset)

    async def retrying(self, work: Callable[[], Awaitable[T]]) -> T:
        """Runs `work` and returns its result; runs it again after errors that may pass.

        These are segments that were purged in the meantime, and services that do not answer: they
        must not end a query that runs for days.
        """
        give_up_s = trio.current_time() + RETRY_FOR_S
        purges = 0
        while True:
            before = self.tracker.version
            try:
                return await work()
            except (NoSuchLedger, NoSuchEntry, PageLost):
                await map_bounded(list(self.tracker.streams), self.tracker.refresh)
                purges += 1
                if purges > _PURGES_MAX or self.tracker.version == before:
                    raise  # nothing was truncated: the error has another cause
            except RetryableError as error:
                if trio.current_time() > give_up_s:
                    raise
                _log.warning("a query waits and retries cause=%s", error)
                await trio.sleep(_RETRY_PAUSE_S)

    # Streams that exist

    async def _spans(self, start: Offsets) -> dict[str, ReadSpan]:
        """Returns the unread spans of all streams that have any."""
        spans: dict[str, ReadSpan] = {}
        for name, index in list(self.tracker.streams.items()):
            end = index.end
            if self._final is not None:
                last = self._final.get(name)
                if last is None or last.created_ms != end.created_ms:
                    continue
                end = min(end, last, key=lambda offset: offset.sequence)
            offset = start.get(name)
            if offset is not None and offset.created_ms == end.created_ms:
                if offset.sequence >= end.sequence:
                    continue
                begin = await self._available(index, replace(offset, gone_ms=0), end)
            else:
                begin = await index.first()
            if begin.sequence < end.sequence:
                spans[name] = await ReadSpan.of(index, begin, end)
        return spans

    async def _available(
        self, index: StreamIndex, offset: StreamOffset, end: StreamOffset
    ) -> StreamOffset:
        """Returns `offset`, or the first available record if records before `end` are truncated."""
        if offset.position >= await index.ask(lambda known: known.first_available):
            loss, following = await lost_by_restore(index, offset)
            if loss is not None:
                self._losses.record(loss)
            return offset if following is None else replace(following, begin=offset.begin)
        first = await index.first()
        if first.sequence > end.sequence:
            first = end
        loss = await lost_by_truncation(index, offset, first)
        if loss is not None:
            self._losses.record(loss)
        elif first.sequence != offset.sequence:
            return offset
        # The segment of `offset` may be purged, so that no bytes can be counted from there.
        return replace(first, begin=offset.begin)

    # Deleted streams

    def _present(self, name: str, offset: StreamOffset) -> StreamIndex | None:
        """Returns the stream of the offset, or None if it does not exist."""
        index = self.tracker.streams.get(name)
        return index if index is not None and _is_same_stream(offset, index) else None

    def _is_kept(self, name: str, offset: StreamOffset) -> bool:
        """Returns whether to keep the offset: its stream exists, or is not selected any more.

        A stream that is not selected may be selected again after a restart.
        """
        return self._present(name, offset) is not None or not is_selected(self._selection, name)

    def _gone_ms(self, name: str, offset: StreamOffset) -> int:
        """Returns when the stream was moved to the trash; 0 if it cannot be restored."""
        if self._is_kept(name, offset):
            return 0
        gone = self._settled.get((name, offset.created_ms))
        return 0 if gone is None else gone.gone_ms

    async def _settle_deleted(self, start: Offsets) -> None:
        now_s = trio.current_time()
        for name, offset in start.items():
            key = (name, offset.created_ms)
            if self._is_kept(name, offset):
                self._settled.pop(key, None)
                continue
            gone = self._settled.get(key)
            if gone is not None:
                if now_s < gone.known_until_s:
                    continue
                offset = replace(offset, gone_ms=gone.gone_ms)
            loss, gone_ms = await lost_by_deletion(self.tracker.client, name, offset)
            if loss is not None:
                self._losses.record(loss)
            self._settled[key] = _DeletedStream(
                gone_ms, now_s + _TRASH_CHECK_S if gone_ms else math.inf
            )

    async def _ranges_of(
        self, name: str, start: StreamOffset | None, end: StreamOffset
    ) -> list[SegmentRange]:
        index = self._present(name, end) or await self._not_meant(name, end)
        if start is not None and not is_one_reading(start, end):
            start = None
        if index is None:
            first = end.begin if start is None else start.sequence
            reason = "the stream was deleted after the micro-batch was planned"
            self._losses.record(LostRange(name, end.created_ms, first, end.sequence, reason))
            return []
        begin = await self._begin_of(index, start, end)
        return ranges_between(name, await index.segments_between(begin, end), begin, end)

    async def _not_meant(self, name: str, offset: StreamOffset) -> StreamIndex | None:
        """Returns an index of a stream that is not selected any more, or None.

        A micro-batch that was planned with other options must still read the same records.
        """
        client = self.tracker.client
        stream = None if is_selected(self._selection, name) else await read_metadata(client, name)
        if stream is None or stream.created_ms != offset.created_ms:
            return None
        index = StreamIndex(client, name, stream)
        await index.read_end()
        await index.aclose()
        return index

    async def _begin_of(
        self, index: StreamIndex, start: StreamOffset | None, end: StreamOffset
    ) -> StreamOffset:
        if start is not None:
            return await self._available(index, start, end)
        first = await index.first()
        if first.sequence <= end.begin:
            return await index.at_sequence(end.begin)
        # The stream was new in this micro-batch, and was truncated after planning.
        begun = replace(first, sequence=end.begin, begin=end.begin)
        loss = await lost_by_truncation(index, begun, min(first, end, key=lambda o: o.sequence))
        assert loss is not None, "records are missing"
        self._losses.record(loss)
        return first


def _is_same_stream(offset: StreamOffset | None, index: StreamIndex) -> bool:
    return offset is not None and offset.created_ms == index.metadata.created_ms


async def _first_or_end(index: StreamIndex) -> StreamOffset:
    """Returns the first record, or the end if that cannot be read now.

    The next report will have it.
    """
    try:
        return await index.first()
    except LedgerError:
        return replace(index.end, begin=index.end.sequence)
