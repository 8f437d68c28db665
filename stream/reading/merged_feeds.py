"""The streams of a merged reader: a reader and a task for each. Core: core/merge.py.

Streams that match a pattern join when they are created, and partitions when a stream grows. Their
buffers are bounded in bytes over all streams, and a stream far ahead waits. A stream holds the
others back while it may still deliver: it counts as idle only when the bookies were asked and it is
at its end. Must never drop a record or skip an error.
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
from stream.core.merge import Merge, MergedSpan, MergeSource
from stream.core.position import EARLIEST, FromSequence, Position, Start
from stream.core.stream_patterns import StreamPatterns
from stream.errors import IsPartitioned, NoSuchStream
from stream.reading.merge_options import MergeOptions
from stream.reading.merge_options import OrderBy as OrderBy
from stream.reading.reader import StreamReader
from stream.reading.seek import end_of, is_at_end
from stream.reading.selected_streams import find_streams, streams_folder
from stream.reading.shared_tail import SharedTails
from stream.scope import NamespaceScope

_log = logging.getLogger(__name__)

STREAMS_MAX = 1000
"""Streams that one reader merges; each has a task and reads ahead."""
IDLE_CHECKS_MAX = 16
_IDLE_PAUSE_S = 0.02
_METADATA_PAUSE_S = 0.5
RECORD_OVERHEAD_BYTES = 200
"""Memory of a record beside its bytes, roughly."""


class BufferedBatch:
    """A batch in the merge; its records are made once, when the first is requested."""

    __slots__ = ("batch", "records")

    def __init__(self, batch: RecordBatch) -> None:
        self.batch = batch
        self.records: list[Record] | None = None

    def position(self, slot: int) -> Position:
        batch = self.batch
        return Position(batch.segment, batch.entry, batch.first_slot + slot)


@dataclass(slots=True, eq=False)
class _Feed:
    """A stream of the merge."""

    stream: str
    start: Start
    source: MergeSource[BufferedBatch]
    position: Position | None = None
    """The position behind what was pushed to the merge."""
    reader: StreamReader | None = None
    batches: int = 0
    waits_since: float = math.inf
    demand: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)
    recreation: trio.CancelScope | None = None
    """The wait until a deleted stream is created again."""


class MergedFeeds:
    """Reads the selected streams, in tasks of one nursery, for one consumer task."""

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
        self.merge: Merge[BufferedBatch] = Merge(
            lateness_ms=options.lateness_ms, bytes_max=options.buffer_bytes
        )
        self._feeds: dict[str, _Feed] = {}
        self._feed_of: dict[MergeSource[BufferedBatch], _Feed] = {}
        self._listed: set[str] = set()
        self._changed = trio.lowlevel.ParkingLot()
        self._failure: LedgerError | None = None
        """Final: raised by every call that finds nothing to return."""
        self._errors: list[tuple[RetryableError, trio.Event]] = []
        """Each is raised once; the event lets its stream try again."""
        self._reported: list[trio.Event] = []
        self._is_closed = False

    @property
    def streams(self) -> list[str]:
        return [name for name, feed in self._feeds.items() if not feed.source.is_finished]

    def positions(self) -> dict[str, Position]:
        """Returns the position of the first record, in the order of each stream, that was not
        taken."""
        found = {}
        for name, feed in self._feeds.items():
            unread = feed.source.unread()
            if unread is not None:
                found[name] = unread[0].position(unread[1])
            elif feed.position is not None:
                found[name] = feed.position
        return found

    async def next_span(self) -> MergedSpan[BufferedBatch] | None:
        """Returns the next records; None at the end, if there is one. If it is cancelled or fails
        with a RetryableError nothing is lost: call again."""
        if self._is_closed:
            raise LedgerClosed("the merged reader is closed")
        await trio.lowlevel.checkpoint_if_cancelled()
        for event in self._reported:
            event.set()
        self._reported.clear()
        while True:
            span = self.merge.pop()
            if span is not None:
                self._note_taken(span.source)
                return span
            if self._failure is not None:
                raise self._failure
            if self._errors:
                trouble, event = self._errors.pop(0)
                self._reported.append(event)
                raise trouble
            if self.merge.is_finished and not self._options.follow:
                return None
            await self._changed.park()

    def _note_taken(self, source: MergeSource[BufferedBatch]) -> None:
        if source.is_finished and not source.runs:
            self._feed_of.pop(source, None)
            for feed in self._feeds.values():  # each has a larger share of the buffer now
                feed.demand.unpark_all()
        elif self.merge.wants(source):
            self._feed_of[source].demand.unpark_all()

    # Streams

    async def open(self, nursery: trio.Nursery) -> None:
        """Finds the streams and begins to read them in tasks of this nursery.

        Raises NoSuchStream for a named stream that does not exist, InvalidArgument.
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
                nursery.start_soon(self._detect_idle, options.idle_timeout_ms / 1000)

    def close(self) -> None:
        """Makes all calls raise LedgerClosed from now on."""
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
        """Lets new streams and partitions join. It survives a metadata store that is
        unavailable."""
        while True:
            try:
                children = self._scope.client.store.watch_children(streams_folder(self._scope))
                async with aclosing(children) as listings:
                    async for listed in listings:
                        self._note_listed(nursery, listed)
            except RetryableError as error:
                _log.info("merged reader waits for the list of streams cause=%s", error)
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
            if feed.recreation is not None and name not in self._listed:
                feed.recreation.cancel()

    async def _read(self, feed: _Feed) -> None:
        """Reads one stream; a deleted stream that only matches a pattern may be created again."""
        while True:
            try:
                if feed.source.is_finished:
                    if not await self._wait_recreated(feed):
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
        """Reads a stream to its end, if the reader does not follow; else forever."""
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
                    await feed.demand.park()
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
        self.merge.push(feed.source, BufferedBatch(batch), times, nbytes)
        self._changed.unpark_all()

    async def _wait_recreated(self, feed: _Feed) -> bool:
        """Waits until there is a stream of this name again; returns False if it is no longer
        listed, or is another kind of stream."""
        store, namespace = self._scope.store, self._scope.name
        try:
            with trio.CancelScope() as feed.recreation:
                if feed.stream not in self._listed:
                    feed.recreation.cancel()
                async with aclosing(store.watch_stream(namespace, feed.stream)) as versions:
                    async for stream in versions:
                        if stream is not None:
                            return True
        except IsPartitioned:
            pass  # its partitions are listed
        finally:
            feed.recreation = None
        self._feeds.pop(feed.stream, None)
        return False

    def _finish(self, feed: _Feed) -> None:
        feed.waits_since = math.inf
        self.merge.finish(feed.source)
        for other in self._feeds.values():
            other.demand.unpark_all()
        self._changed.unpark_all()

    def _fail(self, error: LedgerError) -> None:
        if self._failure is None:
            self._failure = error
        self._changed.unpark_all()

    async def _report(self, error: RetryableError) -> None:
        """Raises the error in the consumer's call; continues when the consumer calls again."""
        event = trio.Event()
        self._errors.append((error, event))
        self._changed.unpark_all()
        await event.wait()

    # Idle streams

    async def _detect_idle(self, timeout_s: float) -> None:
        """Marks streams as idle that delivered nothing for `timeout_s` and are at their end."""
        while True:
            waiting = [f for f in self._feeds.values() if not f.source.is_idle]
            due = min((feed.waits_since + timeout_s for feed in waiting), default=math.inf)
            # A stream that begins to wait from now on is not due before this (or little before).
            latest = trio.current_time() + max(timeout_s, _IDLE_PAUSE_S)
            await trio.sleep_until(min(due, latest))
            now = trio.current_time()
            limiter = trio.CapacityLimiter(IDLE_CHECKS_MAX)
            async with trio.open_nursery() as nursery:
                for feed in waiting:
                    if feed.waits_since + timeout_s <= now:
                        nursery.start_soon(self._check_idle, feed, limiter)

    async def _check_idle(self, feed: _Feed, limiter: trio.CapacityLimiter) -> None:
        scope, batches = self._scope, feed.batches
        async with limiter:
            try:
                stream, _ = await scope.store.read_stream(scope.name, feed.stream)
                end = await end_of(scope.client, stream)
                # The reader's own position: it may have skipped records before its start.
                is_quiet = feed.reader is not None and await is_at_end(
                    scope.client, stream, feed.reader.position, end
                )
            except LedgerError:
                # Unknown holds the others back; its own task reports the error, if it lasts.
                is_quiet = False
        if feed.batches != batches or feed.waits_since == math.inf:
            return
        feed.waits_since = trio.current_time() + _IDLE_PAUSE_S
        if is_quiet and feed.reader is not None:
            self.merge.note_idle(feed.source)
            self._changed.unpark_all()


def _times_of(batch: RecordBatch, order_by: OrderBy) -> Sequence[int]:
    """Returns the time by which each record is ordered. A record without an event time has that of
    its append."""
    appended_ms = batch.append_time_ms
    if order_by == "append_time":
        return [appended_ms] * len(batch)
    times = batch.event_times()
    return [appended_ms if time_ms is None else time_ms for time_ms in times]
