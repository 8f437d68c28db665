"""Back-pressure: the limits over all connections of a bookie, and what a request must wait for.

Ledgers of one shard share a journal and a ledger directory and form one group: a group whose write
cache or journal is full throttles only its own adds, and only requests to that group wait. Recovery
adds may use a reserve above the limits of ordinary adds, so that ledgers can be recovered from a
full bookie.

Requests other than adds have a cost: what they make the bookie keep in memory until a journal or a
checkpoint has made progress. Frames of adds have limits of their own; an add has a cost only if it
creates a ledger.

Received frames that are not whole, and replies that peers do not take, have limits that hold for
every peer, before any of its requests was valid.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import trio

from bookie.config import BookieConfig
from bookie.server.read_scheduler import ReadScheduler
from bookie.server.request_metrics import Wait
from bookie.storage.bookie_storage import BookieStorage, Shard
from ledger.errors import BookieIoError
from ledger.wire.connection import SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN
from ledger.wire.messages import (
    AddRequest,
    AuthRequest,
    BatchReadRequest,
    ForceLedgerRequest,
    GetBookieInfoRequest,
    ListEntriesRequest,
    ReadRequest,
    RequestBody,
    StartTlsRequest,
    WriteLacRequest,
)


class RequestCost(enum.Flag):
    """What a request makes the bookie keep in memory."""

    NOTHING = 0
    ANSWER = enum.auto()
    """A reply that waits for the journal."""
    FRAME = enum.auto()
    """A frame in the journal, of which a peer may send any number."""
    STATE = enum.auto()
    """A new or changed ledger, which only a checkpoint stores."""
    URGENT = enum.auto()
    """A fence, which may use the reserve."""


def cost_of(storage: BookieStorage, body: RequestBody) -> RequestCost:
    """Returns the cost of a request. Looks up the ledger: to be called only under pressure."""
    if isinstance(body, WriteLacRequest):
        return RequestCost.FRAME | RequestCost.STATE | RequestCost.ANSWER
    if isinstance(body, ForceLedgerRequest | ListEntriesRequest):
        return RequestCost.ANSWER
    if not isinstance(body, AddRequest | ReadRequest | BatchReadRequest) or body.ledger_id < 0:
        return RequestCost.NOTHING
    try:
        state = storage.state(body.ledger_id)
    except BookieIoError:
        return RequestCost.NOTHING  # the reply will be this error
    if isinstance(body, AddRequest):
        is_taken = not storage.gate.refuses(is_urgent=body.is_urgent)
        return RequestCost.STATE if state is None and is_taken else RequestCost.NOTHING
    if body.is_fencing:
        if state is None or not state.is_fenced:
            return RequestCost.ANSWER | RequestCost.STATE | RequestCost.URGENT
        return (
            RequestCost.NOTHING
            if state.is_fence_durable
            else RequestCost.ANSWER | RequestCost.URGENT
        )
    if isinstance(body, ReadRequest) and body.previous_lac is not None:
        return RequestCost.NOTHING  # long polls have a limit of their own
    if state is None or 0 <= body.entry_id <= state.lac:
        return RequestCost.NOTHING
    return RequestCost.ANSWER


_ASK_STATES_S: Final = 0.1
QUEUED_CALLBACKS_MAX = 100_000
"""Replies that may wait for all journals together, in equal shares; replies have no bytes in a
journal. Twice as many fences may wait."""
RESERVE: Final = 1.25
"""Requests with priority may use this multiple of a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackpressureLimits:
    """Limits over all connections of a bookie, in bytes and seconds."""

    queued_bytes_max: int
    """Bytes that may wait for all journals together, in equal shares."""
    add_wait_s_max: float = 10.0
    """Longest time an add waits for capacity before it is refused."""
    replies_bytes_max: int = 128 << 20
    """Bytes of replies that may wait for peers, of all connections together."""
    reply_wait_s_max: float = 60.0
    """Longest time in which a peer takes almost none of the replies that wait for it."""
    receive_bytes_max: int = 256 << 20
    """Bytes of receive buffers of all connections, beyond SEGMENT_BYTES_MIN of each."""

    @classmethod
    def of(cls, config: BookieConfig) -> BackpressureLimits:
        return cls(
            queued_bytes_max=config.journal_queue_bytes_max,
            add_wait_s_max=config.write_cache_wait_ms_max / 1000,
            replies_bytes_max=config.replies_bytes_max,
            reply_wait_s_max=config.reply_wait_ms_max / 1000,
            receive_bytes_max=config.receive_bytes_max,
        )


class Blocked(NamedTuple):
    """The reason why the next request of a connection waits."""

    shard: Shard
    need: RequestCost


class Backpressure:
    """The state of back-pressure, shared by all connections of one server."""

    def __init__(
        self, storage: BookieStorage, limits: BackpressureLimits, reads: ReadScheduler
    ) -> None:
        """`reads` starts no ordinary read while `are_replies_full`."""
        self.limits = limits
        self._reads = reads
        reads.hold_while(self._hold_reads)
        self.on_shortage: Callable[[], None] = _nothing
        """Called when memory for replies or unfinished frames is short: peers that hold it without
        making progress must be disconnected."""
        self.receive_bytes = 0
        """Bytes of receive buffers, beyond SEGMENT_BYTES_MIN of each."""
        self._receive_waiters = 0
        self._receive_freed = trio.Event()
        self.held_bytes = 0
        """Bytes of throttled adds, of all connections."""
        self.replies_bytes = 0
        """Bytes of replies that wait for peers."""
        self.peers_dropped = 0
        """Number of connections closed because the peer took no replies."""
        self.connections = 0
        """Number of open connections; each has a receive buffer."""
        self.segment_bytes_max = SEGMENT_BYTES_MAX
        """Largest segment of the receive buffer of each connection."""
        self._storage = storage
        self._share = share = limits.queued_bytes_max // len(storage.journals)
        self._callbacks_max = callbacks_max = QUEUED_CALLBACKS_MAX // len(storage.journals)
        for journal in storage.journals:
            journal.capacity.bound(
                bytes_max=share, critical_bytes_max=share * RESERVE, callbacks_max=callbacks_max
            )
        self._cache_bytes = sum(one.cache.bytes_max for one in storage.directories)
        # Per shard: the state that must end before it opens, and when that state began.
        self._closed: dict[int, tuple[tuple[Wait, object], float]] = {}

    # --- adds

    def cause(self, shard: Shard) -> Wait | None:
        """Returns why the group takes no ordinary adds now, or None if it takes them."""
        if shard.directory.is_full and not self._storage.gate.is_shut:
            return Wait.WRITE_CACHE
        return Wait.JOURNAL if shard.journal.capacity.is_limited else None

    def may_use_reserve(self, shard: Shard) -> bool:
        """Returns whether a recovery add is taken although the group is closed."""
        cache = shard.directory.cache
        # A buffer with few frames takes as much memory as a full one.
        return (
            max(cache.nbytes, cache.released_bytes) < cache.bytes_max * RESERVE
            and shard.journal.queued_bytes <= self._share * RESERVE
        )

    def closed_since(self, shard_no: int, shard: Shard, cause: Wait) -> float:
        """Returns since when a closed group has been in this state without progress."""
        is_cache = cause is Wait.WRITE_CACHE
        key = (cause, shard.directory.task.checkpoints if is_cache else shard.journal.mark)
        known = self._closed.get(shard_no)
        if known is None or known[0] != key:
            known = self._closed[shard_no] = key, trio.current_time()
        return known[1]

    async def wait_open(self, shard: Shard) -> None:
        """Waits until the group takes ordinary adds again. Raises StorageFailed or JournalFailed
        if it never will."""
        await trio.lowlevel.checkpoint()
        while True:
            gate = self._storage.gate
            if shard.directory.is_full and not gate.is_shut:
                await shard.directory.wait_capacity(gate)
            elif shard.journal.capacity.is_limited:
                done = trio.Event()
                shard.journal.with_group(on_accepted=done.set)
                await done.wait()
            else:
                return

    # --- requests that add nothing to a cache, but are kept in memory

    def blocking(self, body: RequestBody) -> Blocked | None:
        """Returns what the request must wait for, or None if it may be taken now."""
        if isinstance(body, AuthRequest | StartTlsRequest | GetBookieInfoRequest):
            return None
        shard = self._storage.shards[self._storage.shard_of(body.ledger_id)]
        blocked = Blocked(shard, cost_of(self._storage, body))
        return blocked if self.must_wait(blocked) else None

    def must_wait(self, blocked: Blocked) -> bool:
        """Returns whether there is still no capacity for it."""
        shard, need = blocked
        journal = shard.journal
        if need & RequestCost.STATE and shard.directory.capacity.are_states_over:
            return True
        if need & RequestCost.FRAME and journal.queued_bytes > self._share * RESERVE:
            return True
        most = self._callbacks_max * (2 if need & RequestCost.URGENT else 1)
        return bool(need & RequestCost.ANSWER) and journal.queued_callbacks > most

    async def wait_less(self, blocked: Blocked) -> None:
        """Waits until `must_wait` may have changed. Raises the same errors as `wait_open`."""
        shard, need = blocked
        if need & RequestCost.STATE and shard.directory.capacity.are_states_over:
            await shard.directory.wait_capacity()
            if shard.directory.capacity.are_states_over:
                # The checkpoint has not begun, or its disk is full: no event reports the end of it.
                await trio.sleep(_ASK_STATES_S)
            return
        done = trio.Event()
        shard.journal.when_durable(done.set)
        await done.wait()

    # --- received bytes

    def count_connection(self, change: int) -> None:
        """Counts a connection that was opened (1) or closed (-1)."""
        self.connections += change
        # Together they take about half the memory of a write cache, of which they become a part.
        share = self._cache_bytes // max(1, self.connections)
        self.segment_bytes_max = max(SEGMENT_BYTES_MIN, min(share, SEGMENT_BYTES_MAX))

    def may_receive(self, more_bytes: int) -> bool:
        """Returns whether receive buffers may have this many bytes more."""
        return self.receive_bytes + more_bytes <= self.limits.receive_bytes_max

    def count_received(self, change: int) -> None:
        """Counts bytes of receive buffers."""
        self.receive_bytes += change
        if change < 0 and self._receive_waiters:
            self._receive_freed.set()
            self._receive_freed = trio.Event()

    @property
    def is_receive_short(self) -> bool:
        """Whether a connection is not read because receive buffers take all they may."""
        return self._receive_waiters > 0

    async def wait_receive_freed(self) -> None:
        """Returns when receive buffers may have become smaller."""
        self._receive_waiters += 1
        try:
            self.on_shortage()
            await self._receive_freed.wait()
        finally:
            self._receive_waiters -= 1

    # --- replies

    @property
    def are_replies_over(self) -> bool:
        """Whether peers with waiting replies get no more, because half of the limit is reached."""
        return self._reply_bytes > self.limits.replies_bytes_max // 2

    @property
    def are_replies_full(self) -> bool:
        """Whether nothing is read for any peer, because what waits for peers and what is being read
        for them may take more than the limit."""
        return self._reply_bytes > self.limits.replies_bytes_max

    @property
    def _reply_bytes(self) -> int:
        """What waits for peers, and what may be added by the reads in progress."""
        return self.replies_bytes + self._reads.reply_bytes

    def count_replies(self, change: int) -> None:
        """Counts the memory of replies that wait for peers."""
        self.replies_bytes += change
        if change < 0:
            self._reads.release()

    def _hold_reads(self) -> bool:
        if not self.are_replies_full:
            return False
        self.on_shortage()
        return True


def _nothing() -> None:
    """Stands for a listener that is not there yet."""
