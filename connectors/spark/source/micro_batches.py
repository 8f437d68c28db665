"""What the next micro-batch reads of each stream: from Spark's offsets, what is there, and limits.

Offsets never go back, never pass what is confirmed, and decide together what is read between them.
A stream that is not in the offsets begins at its first record; one that is gone is a loss, unless
all of it had been read. Without Spark in it, and for one loop.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import trio

from connectors.spark.core.admission import Limits
from connectors.spark.core.offsets import Offsets, StreamOffset, advances, is_one_reading
from connectors.spark.core.planner import SegmentRange, ranges_between
from connectors.spark.options.options import Positions, Selection
from connectors.spark.source.admission import Span, admitted
from connectors.spark.source.data_loss import Loss, LossLog, of_truncated, of_vanished
from connectors.spark.source.discovery import is_meant, read_metadata, starting_offset
from connectors.spark.source.end_tracker import Followers
from connectors.spark.source.stream_offsets import StreamPlaces
from ledger.errors import LedgerError, NoSuchEntry, NoSuchLedger, RetryableError
from ledger.runtime.concurrency import map_bounded

T = TypeVar("T")

_log = logging.getLogger(__name__)

PATIENCE_S = 60.0
"""How long a metadata store or bookies may be away before the query ends with their error."""
_PAUSE_S = 0.5
_PURGES_MAX = 5
"""So often streams may be purged under our hands in one call."""
_GONE_S = 600.0
"""So often streams that are gone are looked for in the trash once more."""
_AGES_MAX = 32
"""Streams whose oldest unread record is looked up for the lag."""


@dataclass(frozen=True, slots=True)
class Lag:
    """What was not read: records, their stored bytes, the age of the oldest in whole seconds."""

    records: int = 0
    nbytes: int = 0
    seconds: int = 0


@dataclass(frozen=True, slots=True)
class _Gone:
    """A stream that is in the trash since `gone_ms` (0: it cannot come back), as known until."""

    gone_ms: int
    known_until_s: float


class MicroBatches:
    """The offsets of one query.

    Args:
        selection, starting: as the options name streams, and where a new query begins in them.
        losses: takes note of what is lost, or raises it.
    """

    def __init__(self, selection: Selection, starting: Positions, losses: LossLog) -> None:
        self._selection = selection
        self._starting = starting
        self._losses = losses
        self._followers: Followers | None = None
        self._final: Offsets | None = None
        """With Trigger.AvailableNow: where it ends."""
        self._turn = ""
        self._settled: dict[tuple[str, int], _Gone] = {}
        """Streams that are gone, whose loss was told."""

    @property
    def followers(self) -> Followers:
        """Of this selection. Others may take their place while nothing is asked here."""
        assert self._followers is not None, "nobody follows the streams"
        return self._followers

    @followers.setter
    def followers(self, followers: Followers) -> None:
        self._followers = followers

    async def initial(self) -> Offsets:
        """Where a new query begins. Raises what `starting_offset` raises."""

        async def of_one(name: str) -> StreamOffset:
            places = self.followers.streams[name]
            return await starting_offset(places, self._starting, self._losses)

        async def of_all() -> Offsets:
            names = list(self.followers.streams)
            return Offsets(dict(zip(names, await map_bounded(names, of_one), strict=True)))

        return await self.steadily(of_all)

    async def settle_end(self) -> None:
        """From now on nothing is read but what is confirmed now (Trigger.AvailableNow)."""
        await self.steadily(self.followers.look_closely)
        self._final = self.newest()

    def newest(self) -> Offsets:
        """Behind the last record of each stream, as far as it is known."""
        return Offsets({name: places.end for name, places in self.followers.streams.items()})

    async def latest(self, start: Offsets, limits: Limits, waited_ms: int) -> Offsets:
        """Where the micro-batch that begins at `start` ends: `start` itself if it is not due.

        `waited_ms` have passed since the one before. Raises DataLoss, and what reading ledgers
        and metadata raises.
        """
        await self.followers.catch_up()
        return await self.steadily(lambda: self._latest(start, limits, waited_ms))

    async def _latest(self, start: Offsets, limits: Limits, waited_ms: int) -> Offsets:
        await self._settle_vanished(start)
        spans = await self._spans(start)
        records = sum(span.records for span in spans.values())
        is_due = records > 0 if self._final is not None else limits.is_due(records, waited_ms)
        if not is_due:
            return start
        ends = {name: replace(span.end, begin=span.begin.begin) for name, span in spans.items()}
        if limits.records_max is not None or limits.bytes_max is not None:
            ends, self._turn = await admitted(spans, limits, self._turn)
        kept = {
            name: replace(offset, gone_ms=self._gone_ms(name, offset))
            for name, offset in start.items()
            if self._is_kept(name, offset) or self._gone_ms(name, offset)
        }
        return Offsets({**kept, **ends})

    async def reported(self, position: Offsets) -> tuple[Offsets, Lag]:
        """The newest offsets, and the lag: streams that were not begun at `position` begin where
        they would now, and count from there."""
        streams = dict(self.followers.streams)
        fresh = [s for name, s in streams.items() if not _is_of(position.get(name), s)]
        starts = {**position, **{places.name: await _first_or_end(places) for places in fresh}}
        newest = {name: replace(s.end, begin=starts[name].begin) for name, s in streams.items()}
        return Offsets(newest), await self.lag(Offsets(starts))

    async def lag(self, position: Offsets) -> Lag:
        """Between `position` and the newest records that are known. The age is that of the oldest
        where most is waiting."""
        behind: list[tuple[int, StreamPlaces, StreamOffset]] = []
        nbytes = 0
        for name, offset in position.items():
            places = self._there(name, offset)
            records = 0 if places is None else places.end.sequence - offset.sequence
            if places is not None and records > 0:
                behind.append((records, places, offset))
                nbytes += places.bytes_between(offset, places.end)
        behind.sort(key=lambda each: each[0], reverse=True)

        async def age_ms(each: tuple[int, StreamPlaces, StreamOffset]) -> int:
            _, places, offset = each
            return self.followers.client.now_ms() - await places.time_ms(offset)

        ages_ms = await map_bounded(behind[:_AGES_MAX], age_ms)
        records = sum(records for records, _, _ in behind)
        return Lag(records, nbytes, max([0, *ages_ms]) // 1000)

    async def ranges(self, start: Offsets, end: Offsets) -> list[SegmentRange]:
        """The records from `start` on and before `end`. Raises DataLoss."""
        names = [name for name, behind in end.items() if advances(start.get(name), behind)]

        async def of_one(name: str) -> list[SegmentRange]:
            return await self._ranges_of(name, start.get(name), end[name])

        found = await self.steadily(lambda: map_bounded(names, of_one))
        return [each for ranges in found for each in ranges]

    def forget_before(self, end: Offsets) -> None:
        """Nothing before `end` will be asked for any more."""
        for name, offset in end.items():
            places = self._there(name, offset)
            if places is not None:
                places.forget_before(offset)

    async def steadily(self, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` gives; once more if streams were purged while it looked at them, or somebody
        did not answer for a while: a query of many days must not end for that."""
        give_up_s = trio.current_time() + PATIENCE_S
        purges = 0
        while True:
            before = self.followers.version
            try:
                return await work()
            except (NoSuchLedger, NoSuchEntry):
                await map_bounded(list(self.followers.streams), self.followers.refresh)
                purges += 1
                if purges > _PURGES_MAX or self.followers.version == before:
                    raise  # nobody truncated anything: something is wrong
            except RetryableError as error:
                if trio.current_time() > give_up_s:
                    raise
                _log.warning("a query waits, and asks again: %s", error)
                await trio.sleep(_PAUSE_S)

    # Streams that are there

    async def _spans(self, start: Offsets) -> dict[str, Span]:
        """Of all streams of which something is to be read."""
        spans: dict[str, Span] = {}
        for name, places in list(self.followers.streams.items()):
            end = places.end
            if self._final is not None:
                last = self._final.get(name)
                if last is None or last.created_ms != end.created_ms:
                    continue
                end = min(end, last, key=lambda offset: offset.sequence)
            offset = start.get(name)
            if offset is not None and offset.created_ms == end.created_ms:
                if offset.sequence >= end.sequence:
                    continue
                begin = await self._available(places, replace(offset, gone_ms=0), end)
            else:
                begin = await places.first()
            if begin.sequence < end.sequence:
                spans[name] = Span(places, begin, end)
        return spans

    async def _available(
        self, places: StreamPlaces, offset: StreamOffset, end: StreamOffset
    ) -> StreamOffset:
        """`offset`, or if records before `end` were truncated the first one that is left."""
        if offset.position >= places.metadata.first_available:
            return offset
        first = await places.first()
        if first.sequence > end.sequence:
            first = end
        loss = await of_truncated(places, offset, first)
        if loss is not None:
            self._losses.meet(loss)
        elif first.sequence != offset.sequence:
            return offset
        return replace(
            first, begin=offset.begin
        )  # its segment may be purged: no place to count from

    # Streams that are gone

    def _there(self, name: str, offset: StreamOffset) -> StreamPlaces | None:
        """The stream that the offset is of, if it is there."""
        places = self.followers.streams.get(name)
        return places if places is not None and _is_of(offset, places) else None

    def _is_kept(self, name: str, offset: StreamOffset) -> bool:
        """Whether the offset stays: of a stream that is there, or that is not meant any more and
        may be again."""
        return self._there(name, offset) is not None or not is_meant(self._selection, name)

    def _gone_ms(self, name: str, offset: StreamOffset) -> int:
        """Since when the stream is in the trash; 0 if it is not, or cannot come back."""
        if self._is_kept(name, offset):
            return 0
        gone = self._settled.get((name, offset.created_ms))
        return 0 if gone is None else gone.gone_ms

    async def _settle_vanished(self, start: Offsets) -> None:
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
            loss, gone_ms = await of_vanished(self.followers.client, name, offset)
            if loss is not None:
                self._losses.meet(loss)
            self._settled[key] = _Gone(gone_ms, now_s + _GONE_S if gone_ms else math.inf)

    async def _ranges_of(
        self, name: str, start: StreamOffset | None, end: StreamOffset
    ) -> list[SegmentRange]:
        places = self._there(name, end) or await self._not_meant(name, end)
        if start is not None and not is_one_reading(start, end):
            start = None
        if places is None:
            first = end.begin if start is None else start.sequence
            reason = "the stream was deleted after the micro-batch had been planned"
            self._losses.meet(Loss(name, end.created_ms, first, end.sequence, reason))
            return []
        begin = await self._begin_of(places, start, end)
        return ranges_between(name, places.metadata, begin, end)

    async def _not_meant(self, name: str, offset: StreamOffset) -> StreamPlaces | None:
        """A stream that nobody follows, because the options do not name it any more: a micro-batch
        that was planned with others is what it was."""
        client = self.followers.client
        stream = None if is_meant(self._selection, name) else await read_metadata(client, name)
        if stream is None or stream.created_ms != offset.created_ms:
            return None
        places = StreamPlaces(client, name, stream)
        await places.look()
        await places.aclose()
        return places

    async def _begin_of(
        self, places: StreamPlaces, start: StreamOffset | None, end: StreamOffset
    ) -> StreamOffset:
        if start is not None:
            return await self._available(places, start, end)
        first = await places.first()
        if first.sequence <= end.begin:
            return await places.at_sequence(end.begin)
        # It was new in this micro-batch, and is not what it was when that was planned.
        begun = replace(first, sequence=end.begin, begin=end.begin)
        loss = await of_truncated(places, begun, min(first, end, key=lambda o: o.sequence))
        assert loss is not None, "records are missing"
        self._losses.meet(loss)
        return first


def _is_of(offset: StreamOffset | None, places: StreamPlaces) -> bool:
    return offset is not None and offset.created_ms == places.metadata.created_ms


async def _first_or_end(places: StreamPlaces) -> StreamOffset:
    """The first record; the end where that cannot be known now: the next report tells."""
    try:
        return await places.first()
    except LedgerError:
        return replace(places.end, begin=places.end.sequence)
