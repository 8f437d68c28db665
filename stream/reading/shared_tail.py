"""The end of a stream, read once for all readers of a client that are there.

Readers that have caught up share one feed, with one long poll and one decoding, whatever their
number. A slow reader falls behind the kept batches and reads alone until it has caught up; a reader
that is cancelled or leaves does not disturb the others. Must never return a batch twice to one
reader, nor skip one, nor hide an error: when the shared feed fails each reader continues alone and
meets the error.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from operator import itemgetter

import trio

from ledger.client import LedgerClient
from ledger.errors import LedgerClosed, LedgerError
from ledger.runtime.parking import ParkedTasks, ParkingSlot
from stream.core.entry.records import RecordBatch
from stream.core.metadata.streams import StreamMetadata
from stream.core.position import Position
from stream.reading.segment_feed import SegmentFeed
from stream.store.streams import StreamStore

_log = logging.getLogger(__name__)

_END = itemgetter(0)
_GAP_ENTRIES = 1000
_MANY_FOLLOWERS = 32
_HISTORY_BYTES = 512 << 10
"""Bytes that are kept although all readers have them, for readers that have almost caught up."""
_RECORD_OBJECT_BYTES = 300
"""Memory of a record beside its bytes once readers have taken it as an object."""


@dataclass(slots=True)
class TailCounts:
    """Counters of the shared tails of a namespace."""

    feeds: int = 0
    """Shared feeds that were begun."""

    batches: int = 0
    """Batches that were fetched and decoded."""

    delivered: int = 0
    """Batches delivered to readers; many for each one fetched."""

    fell_behind: int = 0
    """Readers that were too slow for the kept batches."""


class SharedTail:
    """One feed and those of its batches that some follower has not taken yet.

    Followers pull: nothing is fetched unless one of them waits for it. `run` is the task that
    fetches; it ends with the last follower, or when the feed fails.
    """

    def __init__(self, feed: SegmentFeed, counts: TailCounts, bytes_max: int) -> None:
        assert feed.position is not None, "the feed has a position"
        self.is_over = False
        self.created_ms = feed.created_ms
        """When the stream was created."""
        self._feed = feed
        self._counts = counts
        self._bytes_max = bytes_max
        self._history_bytes = min(_HISTORY_BYTES, bytes_max // 4)
        self._kept: deque[tuple[Position, RecordBatch]] = deque()
        """Batches, each with the position where it ends."""
        self._kept_bytes = 0
        self._first_number = 0
        """Number of the first kept batch; batches are numbered in the order of their arrival."""
        self._begin = feed.position
        """Where the first kept batch begins."""
        self._followers: dict[ReaderFeed, None] = {}
        self._waiting = ParkedTasks()
        self._fetcher = ParkingSlot()
        self._scope = trio.CancelScope()

    # Followers

    def join(self, follower: ReaderFeed, position: Position) -> bool:
        """Adds `follower` if it can continue here from `position` without a gap; returns whether it
        can. It must skip batches that end before its position."""
        end = self._feed.position
        assert end is not None, "the feed has a position"
        if self.is_over or position.slot or position < self._begin:
            return False
        if position > end and not self._will_reach(position, end):
            return False
        # Batches follow each other without gaps: the first that ends behind it is the next.
        before = bisect_right(self._kept, position, key=_END)
        follower.number = self._first_number + before
        self._followers[follower] = None
        return True

    def _will_reach(self, position: Position, end: Position) -> bool:
        """Whether a follower that learned of entries a little earlier need not wait long: the feed
        is being pulled, or is near."""
        is_near = position.segment == end.segment and position.entry - end.entry <= _GAP_ENTRIES
        return is_near or bool(self._waiting)

    def is_behind(self, position: Position) -> bool:
        """Whether all kept batches, and the feed, are before `position`."""
        end = self._feed.position
        assert end is not None, "the feed has a position"
        return end < position

    def leave(self, follower: ReaderFeed) -> None:
        """Removes a follower."""
        self._followers.pop(follower, None)
        self._waiting.unpark(follower.task)
        if not self._followers:
            self.end()

    def end(self) -> None:
        """Ends the tail: no follower gets anything more from it."""
        self.is_over = True
        self._scope.cancel()
        self._waiting.unpark_all()

    def take(self, follower: ReaderFeed) -> tuple[Position, RecordBatch] | None:
        """Returns the next batch and where it ends; None if there is none for this follower now."""
        index = follower.number - self._first_number
        if not 0 <= index < len(self._kept):
            return None
        follower.number += 1
        self._counts.delivered += 1
        return self._kept[index]

    async def wait_batch(self, follower: ReaderFeed) -> bool:
        """Returns when `take` may have a batch; False if the follower must continue alone. May be
        cancelled."""
        if follower.number < self._first_number:
            self._counts.fell_behind += 1
            return False
        if self.is_over:
            return False
        follower.task = trio.lowlevel.current_task()
        self._fetcher.unpark()
        await self._waiting.park()
        return True

    # The feed

    async def run(self) -> None:
        """Fetches what followers wait for, until `end` or the end of the client."""
        try:
            with self._scope:
                while not self.is_over:
                    if not self._waiting:
                        await self._fetcher.park()
                        continue
                    await self._fetch()
                    self._waiting.unpark_all()
        except LedgerError as error:
            # Each follower meets the error in a call of its own.
            _log.info("stream=%s: its readers continue one by one: %r", self._feed.stream, error)
        finally:
            self.end()
            await self._feed.aclose()

    async def _fetch(self) -> None:
        """Fetches the next batch, or several.

        Where many wait, and waking them costs more than another request to a bookie, it fetches all
        that is known to be confirmed by now; but not so much that readers fall behind that are just
        being woken.
        """
        is_first = True
        while is_first or (
            len(self._followers) >= _MANY_FOLLOWERS
            and self._feed.is_behind
            and 2 * self._kept_bytes <= self._bytes_max
        ):
            batch = await self._feed.next_batch(None)
            assert batch is not None, "without an end there is always a next batch"
            if not self._followers:
                return  # the last one left at the moment the answer arrived
            self._keep(batch)
            is_first = False

    def _keep(self, batch: RecordBatch) -> None:
        """Keeps a batch for followers that have not taken it, as far as the bytes allow."""
        kept = self._kept
        kept.append((batch.after, batch))
        self._kept_bytes += _memory_bytes(batch)
        self._counts.batches += 1
        slowest = min(follower.number for follower in self._followers)
        while len(kept) > 1 and self._kept_bytes > (
            self._bytes_max if self._first_number >= slowest else self._history_bytes
        ):
            self._begin, gone = kept.popleft()
            self._first_number += 1
            self._kept_bytes -= _memory_bytes(gone)


class SharedTails:
    """The shared tails of one namespace, by stream. Empty when no reader follows a stream."""

    def __init__(self, client: LedgerClient) -> None:
        self.counts = TailCounts()
        self._client = client
        self._tails: dict[str, SharedTail] = {}

    @property
    def streams(self) -> list[str]:
        """The streams whose end is being followed."""
        return list(self._tails)

    def join(self, follower: ReaderFeed, feed: SegmentFeed) -> SharedTail | None:
        """Returns the tail with which `follower` may continue instead of its own `feed`, if there
        is one."""
        tail, position = self._tails.get(feed.stream), feed.position
        assert position is not None, "the feed has a position"
        if tail is None or tail.created_ms != feed.created_ms:
            return None  # none, or of a stream of this name that was deleted
        return tail if tail.join(follower, position) else None

    def begin(self, follower: ReaderFeed, feed: SegmentFeed) -> SharedTail | None:
        """Shares `feed`, which has reached the end, among all readers. Returns None if others are
        ahead of it: it has not quite caught up."""
        position = feed.position
        present = self._tails.get(feed.stream)
        if position is None or position.slot:
            return None
        if present is not None and not present.is_over:
            if present.created_ms == feed.created_ms and not present.is_behind(position):
                return None
            # Its followers are all busy, and it stayed far behind with them; or its stream was
            # deleted.
            present.end()
        tail = SharedTail(feed, self.counts, self._client.options.read_ahead_bytes)
        tail.join(follower, position)
        self._client.start_background(self._run, tail, feed.stream)
        self._tails[feed.stream] = tail
        self.counts.feeds += 1
        return tail

    async def _run(self, tail: SharedTail, stream: str) -> None:
        try:
            await tail.run()
        finally:
            if self._tails.get(stream) is tail:
                del self._tails[stream]


class ReaderFeed:
    """The source of one reader's batches: a feed of its own, or at the end the shared one.

    As with a `SegmentFeed` there is one consumer task, and a call that was cancelled or failed
    loses nothing. Without `tails` it shares nothing.
    """

    def __init__(
        self,
        client: LedgerClient,
        store: StreamStore,
        namespace: str,
        stream: str,
        tails: SharedTails | None,
        read_ahead_bytes: int | None = None,
    ) -> None:
        self.number = 0
        """Number of the batch that it takes next from the tail it follows."""
        self.task: trio.lowlevel.Task | None = None
        """The last task that waited for it."""
        self._client = client
        self._store = store
        self._namespace = namespace
        self._stream = stream
        self._tails = tails
        self._own = SegmentFeed(client, store, namespace, stream)
        self._own.read_ahead_bytes = read_ahead_bytes
        self._tail: SharedTail | None = None
        self._reads_alone = tails is None
        self._is_closed = False

    @property
    def position(self) -> Position | None:
        """Everything before this was returned. The owner of the feed sets where it begins."""
        return self._own.position

    @position.setter
    def position(self, position: Position) -> None:
        self._leave_tail()
        self._own.position = position

    async def refresh(self) -> StreamMetadata:
        """Reads the stream as it is now. Raises NoSuchStream."""
        return await self._own.refresh()

    async def aclose(self) -> None:
        """Leaves the tail and closes the own feed. Closing twice is allowed. A call in progress
        raises LedgerClosed."""
        self._is_closed = True
        self._leave_tail()
        await self._own.aclose()

    async def next_batch(self, end: Position | None) -> RecordBatch | None:
        """Returns the records of the next entry from `position` on; None at `end`, if there is one.

        Without `end` it waits forever at the end of the stream. Raises Truncated, NoSuchStream and
        what reading ledgers raises.
        """
        if end is not None:
            self._leave_tail()
            return await self._own.next_batch(end)
        while True:
            tail, position = self._tail, self._own.position
            assert position is not None, "the feed has a position"
            if tail is not None:
                taken = tail.take(self)
                if taken is not None:
                    end_of_batch, batch = taken
                    if end_of_batch <= position:
                        continue
                    self._own.position = end_of_batch
                    return batch
                if await tail.wait_batch(self):
                    continue
                # If it failed, the error must be raised here, not end another shared feed.
                self._reads_alone = tail.is_over
                self._leave_tail()
            if self._is_closed:
                raise LedgerClosed(f"the reader of stream {self._stream!r} was closed")
            if not self._client.is_open:
                raise LedgerClosed(f"the client that reads stream {self._stream!r} is closed")
            if not self._reads_alone and await self._join():
                continue
            own = await self._own.next_batch(None, may_wait=self._reads_alone)
            if own is not None:
                self._reads_alone = self._tails is None
                return own
            if not await self._join():
                self._begin_tail()

    async def _join(self) -> bool:
        assert self._tails is not None, "only a reader with tails shares"
        self._tail = self._tails.join(self, self._own)
        if self._tail is None:
            return False
        await self._own.aclose()
        return True

    def _begin_tail(self) -> None:
        assert self._tails is not None, "only a reader with tails shares"
        try:
            self._tail = self._tails.begin(self, self._own)
        except LedgerClosed:
            pass  # the own feed raises a better error
        if self._tail is None:
            self._reads_alone = True
            return
        shared = self._own
        self._own = SegmentFeed(self._client, self._store, self._namespace, self._stream)
        self._own.position, self._own.created_ms = shared.position, shared.created_ms
        self._own.read_ahead_bytes = shared.read_ahead_bytes

    def _leave_tail(self) -> None:
        tail, self._tail = self._tail, None
        if tail is not None:
            tail.leave(self)


def _memory_bytes(batch: RecordBatch) -> int:
    header = batch.header
    return batch.nbytes + header.body_bytes + _RECORD_OBJECT_BYTES * header.count
