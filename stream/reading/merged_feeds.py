"""Where the records of a merged reader come from: a reader and a task for each stream. Core: merge.

Streams that match a pattern join when they are made, and partitions when a stream grows. What all
of them bring is bounded in bytes, and one far ahead waits. A stream holds the others up while it
may still say something: that it has nothing to say for now is believed only when the bookies were
asked and it is at its end. Must never drop a record or pass over an error.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import trio

from ledger.errors import InvalidArgument, LedgerClosed, LedgerError, RetryableError
from stream.core.entry.records import Record, RecordBatch
from stream.core.merge import Merge, MergeSource, Span
from stream.core.position import EARLIEST, FromSequence, Position, Start
from stream.core.stream_patterns import StreamPatterns
from stream.errors import IsPartitioned, NoSuchStream
from stream.reading.merge_options import MergeOptions
from stream.reading.merge_options import OrderBy as OrderBy
from stream.reading.reader import StreamReader
from stream.reading.seek import end_of, is_at_end
from stream.reading.shared_tail import SharedTails
from stream.scope import NamespaceScope
from stream.store.partitions import PartitionStore
from stream.store.streams import namespace_path

_log = logging.getLogger(__name__)

STREAMS_MAX = 1000
"""Streams that one reader merges; each has a task and reads ahead."""
ASKED_AT_ONCE_MAX = 16
_IDLE_PAUSE_S = 0.02
_METADATA_PAUSE_S = 0.5
RECORD_OVERHEAD_BYTES = 200
"""What a record costs in memory beside its bytes, roughly."""


class Held:
    """A batch in the merge; its records are made once, when the first is asked for."""

    __slots__ = ("batch", "records")

    def __init__(self, batch: RecordBatch) -> None:
        self.batch = batch
        self.records: list[Record] | None = None

    def position(self, slot: int) -> Position:
        batch = self.batch
        return Position(batch.segment, batch.entry, batch.first_slot + slot)


@dataclass(slots=True, eq=False)
class _Feed:
    """One stream of the merge."""

    stream: str
    start: Start
    source: MergeSource[Held]
    position: Position | None = None
    """Behind what was given to the merge."""
    reader: StreamReader | None = None
    batches: int = 0
    waits_since: float = math.inf
    room: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)
    gone: trio.CancelScope | None = None
    """Waits for a stream that was deleted to be made again."""


class MergedFeeds:
    """Reads the streams that are meant, in tasks of one nursery, for one consumer task."""

    def __init__(
        self,
        scope: NamespaceScope,
        tails: SharedTails,
        streams: str | Sequence[str],
        options: MergeOptions,
    ) -> None:
        self._scope = scope
        self._tails = tails
        self._patterns = StreamPatterns(streams)
        self._options = options
        self.merge: Merge[Held] = Merge(
            lateness_ms=options.lateness_ms, bytes_max=options.buffer_bytes
        )
        self._feeds: dict[str, _Feed] = {}
        self._feed_of: dict[MergeSource[Held], _Feed] = {}
        self._listed: set[str] = set()
        self._changed = trio.lowlevel.ParkingLot()
        self._failure: LedgerError | None = None
        """Final: raised by every call that finds nothing to give out."""
        self._troubles: list[tuple[RetryableError, trio.Event]] = []
        """Each is raised once; the event lets its stream try again."""
        self._told: list[trio.Event] = []
        self._is_closed = False

    @property
    def streams(self) -> list[str]:
        return [name for name, feed in self._feeds.items() if not feed.source.is_finished]

    def positions(self) -> dict[str, Position]:
        """Of the first record, in the order of each stream, that was not taken."""
        found = {}
        for name, feed in self._feeds.items():
            unread = feed.source.unread()
            if unread is not None:
                found[name] = unread[0].position(unread[1])
            elif feed.position is not None:
                found[name] = feed.position
        return found

    async def next_span(self) -> Span[Held] | None:
        """The next records; None at the end, if there is one. Cancelled or failed with a
        RetryableError nothing is lost: call again."""
        if self._is_closed:
            raise LedgerClosed("the merged reader is closed")
        await trio.lowlevel.checkpoint_if_cancelled()
        for event in self._told:
            event.set()
        self._told.clear()
        while True:
            span = self.merge.pop()
            if span is not None:
                self._make_room(span.source)
                return span
            if self._failure is not None:
                raise self._failure
            if self._troubles:
                trouble, event = self._troubles.pop(0)
                self._told.append(event)
                raise trouble
            if self.merge.is_finished and not self._options.follow:
                return None
            await self._changed.park()

    def _make_room(self, source: MergeSource[Held]) -> None:
        if source.is_finished and not source.runs:
            self._feed_of.pop(source, None)
            for feed in self._feeds.values():  # each has a larger share now
                feed.room.unpark_all()
        elif self.merge.wants(source):
            self._feed_of[source].room.unpark_all()

    # Streams

    async def open(self, nursery: trio.Nursery) -> None:
        """Finds the streams and begins to read them in tasks of this nursery.

        Raises NoSuchStream for one that is named and not there, InvalidArgument.
        """
        options = self._options
        found = await find_streams(self._scope, self._patterns)
        may_grow = bool(self._patterns.patterns) or found != list(self._patterns.names)
        if len(found) > 1 and isinstance(options.start, Position | FromSequence):
            raise InvalidArgument(
                f"start {options.start} is a place in one stream, and these are {len(found)}: "
                f"give a mapping of streams to starts"
            )
        for name in found:
            self._join(nursery, name, options.start_of(name))
        if options.follow:
            if may_grow:
                nursery.start_soon(self._watch_streams, nursery)
            if options.idle_timeout_ms is not None:
                nursery.start_soon(self._look_for_idle, options.idle_timeout_ms / 1000)

    def close(self) -> None:
        """Calls raise LedgerClosed from now on."""
        self._is_closed = True
        self._changed.unpark_all()

    def _join(self, nursery: trio.Nursery, name: str, start: Start) -> None:
        if len(self._feeds) >= STREAMS_MAX:
            raise InvalidArgument(
                f"{len(self._feeds) + 1} streams to merge, {STREAMS_MAX} at most: use a narrower "
                f"pattern, or several readers"
            )
        feed = _Feed(name, start, self.merge.add(name))
        self._feeds[name] = self._feed_of[feed.source] = feed
        nursery.start_soon(self._read, feed)

    async def _watch_streams(self, nursery: trio.Nursery) -> None:
        """New streams join, as do new partitions. It outlives a store that is out of reach."""
        while True:
            try:
                children = self._scope.client.store.watch_children(_folder(self._scope))
                async with aclosing(children) as listings:
                    async for listed in listings:
                        self._note_listed(nursery, listed)
            except RetryableError as error:
                _log.info("merged reader: waiting for the list of streams: %s", error)
                await trio.sleep(_METADATA_PAUSE_S)
            except LedgerError as error:
                self._fail(error)
                return

    def _note_listed(self, nursery: trio.Nursery, listed: Sequence[str]) -> None:
        self._listed = set(listed)
        for name in self._patterns.select(listed):
            if name not in self._feeds:
                self._join(nursery, name, self._options.start_of(name, is_new=True))
        for name, feed in self._feeds.items():
            if feed.gone is not None and name not in self._listed:
                feed.gone.cancel()

    async def _read(self, feed: _Feed) -> None:
        """Reads one stream; one that was deleted and only matches a pattern may come back."""
        while True:
            try:
                if feed.source.is_finished:
                    if not await self._wait_made_again(feed):
                        return
                    feed.source, feed.start = self.merge.add(feed.stream), EARLIEST
                    self._feed_of[feed.source] = feed
                await self._read_once(feed)
            except NoSuchStream as error:
                if self._patterns.is_named(feed.stream):
                    self._fail(error)
                    return
                self._finish(feed)
                feed.position = None
                if not self._options.follow:
                    return
            except RetryableError as error:
                await self._report(error)
            except LedgerError as error:
                self._fail(error)
                return
            else:
                self._finish(feed)
                return

    async def _read_once(self, feed: _Feed) -> None:
        """To the end, if we do not follow; else for ever."""
        scope, options = self._scope, self._options
        start = feed.start if feed.position is None else feed.position
        read_ahead_bytes = scope.client.options.read_ahead_bytes
        async with StreamReader(
            scope.client, scope.store, scope.name, feed.stream, start,
            options.on_truncated, self._tails,
            min(read_ahead_bytes, options.buffer_bytes // len(self._feeds)),
        ) as reader:  # fmt: skip
            feed.reader, feed.position = reader, reader.position
            end = None if options.follow else await reader.end_position()
            while True:
                while not self.merge.wants(feed.source):
                    await feed.room.park()
                feed.waits_since = trio.current_time()
                try:
                    if end is None:
                        batch = await reader.next_batch()
                    elif (found := await reader.next_batch_before(end)) is not None:
                        batch = found
                    else:
                        return
                except RetryableError as error:
                    await self._report(error)
                    continue
                feed.waits_since = math.inf
                self._push(feed, batch)

    def _push(self, feed: _Feed, batch: RecordBatch) -> None:
        feed.position = batch.after
        feed.batches += 1
        times = _times_of(batch, self._options.order_by)
        nbytes = batch.nbytes + batch.header.body_bytes + RECORD_OVERHEAD_BYTES * len(batch)
        self.merge.push(feed.source, Held(batch), times, nbytes)
        self._changed.unpark_all()

    async def _wait_made_again(self, feed: _Feed) -> bool:
        """Until there is a stream of this name again; False if nobody lists it any more, or it is
        another kind of stream."""
        store, namespace = self._scope.store, self._scope.name
        try:
            with trio.CancelScope() as feed.gone:
                if feed.stream not in self._listed:
                    feed.gone.cancel()
                async with aclosing(store.watch_stream(namespace, feed.stream)) as versions:
                    async for stream in versions:
                        if stream is not None:
                            return True
        except IsPartitioned:
            pass  # its partitions are listed
        finally:
            feed.gone = None
        self._feeds.pop(feed.stream, None)
        return False

    def _finish(self, feed: _Feed) -> None:
        feed.waits_since = math.inf
        self.merge.finish(feed.source)
        for other in self._feeds.values():
            other.room.unpark_all()
        self._changed.unpark_all()

    def _fail(self, error: LedgerError) -> None:
        if self._failure is None:
            self._failure = error
        self._changed.unpark_all()

    async def _report(self, error: RetryableError) -> None:
        """The consumer is told; it goes on when the consumer calls again."""
        event = trio.Event()
        self._troubles.append((error, event))
        self._changed.unpark_all()
        await event.wait()

    # Idle streams

    async def _look_for_idle(self, timeout_s: float) -> None:
        """A stream that brought nothing for so long, and is at its end, holds nobody up."""
        while True:
            waiting = [f for f in self._feeds.values() if not f.source.is_idle]
            due = min((feed.waits_since + timeout_s for feed in waiting), default=math.inf)
            # Who begins to wait from now on is not due before this (or little before).
            latest = trio.current_time() + max(timeout_s, _IDLE_PAUSE_S)
            await trio.sleep_until(min(due, latest))
            now = trio.current_time()
            limiter = trio.CapacityLimiter(ASKED_AT_ONCE_MAX)
            async with trio.open_nursery() as nursery:
                for feed in waiting:
                    if feed.waits_since + timeout_s <= now:
                        nursery.start_soon(self._ask_whether_idle, feed, limiter)

    async def _ask_whether_idle(self, feed: _Feed, limiter: trio.CapacityLimiter) -> None:
        scope, batches = self._scope, feed.batches
        async with limiter:
            try:
                stream, _ = await scope.store.read_stream(scope.name, feed.stream)
                end = await end_of(scope.client, stream)
            except LedgerError:
                # Doubt holds the others up; its own task tells what is wrong, if it lasts.
                stream, end = None, None
        if feed.batches != batches or feed.waits_since == math.inf:
            return
        feed.waits_since = trio.current_time() + _IDLE_PAUSE_S
        if stream is None or end is None or feed.reader is None:
            return
        # Of the reader: it has also gone past what nobody wanted.
        if is_at_end(stream, feed.reader.position, end):
            self.merge.note_idle(feed.source)
            self._changed.unpark_all()


async def find_streams(scope: NamespaceScope, patterns: StreamPatterns) -> list[str]:
    """The streams and partitions that are meant, as they are now.

    Raises NoSuchStream for one that is named and not there, NoSuchNamespace.
    """
    found: list[str] = []
    partitions = PartitionStore(scope.client.store)
    for name in patterns.names:
        found += await partitions.partition_names(scope.name, name)
    if patterns.patterns:
        await scope.policy()  # a namespace that is not there is an error
        listed = await scope.client.store.children(_folder(scope))
        found += patterns.select(listed)
        for name in patterns.ambiguous(listed):
            try:
                found += await partitions.partition_names(scope.name, name)
            except NoSuchStream:
                pass  # gone, as its partitions are
    return list(dict.fromkeys(found))


def _folder(scope: NamespaceScope) -> str:
    return f"{namespace_path(scope.name)}/streams"


def _times_of(batch: RecordBatch, order_by: OrderBy) -> Sequence[int]:
    """What each record is ordered by. One without an event time has that of its append."""
    appended_ms = batch.append_time_ms
    if order_by == "append_time":
        return [appended_ms] * len(batch)
    times = batch.event_times()
    return [appended_ms if time_ms is None else time_ms for time_ms in times]
