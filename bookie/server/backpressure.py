"""What a bookie can take now: bounds over all connections, and who waits for what.

Ledgers of one shard share a journal and a ledger directory, and are one group: a group whose write
cache or journal is full holds only its own adds, and only those wait who ask it for more. Recovery
adds may use a reserve above the bounds that ordinary ones keep to, so that a full bookie can be
recovered from.

What a request makes a bookie keep in memory until a journal or a checkpoint has got so far.

Adds are not asked about, but for the ledgers that they make known: frames of adds have bounds of
their own (`bookie.server.backpressure`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, NamedTuple

import trio

from bookie.config import BookieConfig
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
    ReadRequest,
    RequestBody,
    StartTlsRequest,
    WriteLacRequest,
)


class RequestCost(enum.Flag):
    NOTHING = 0
    ANSWER = enum.auto()
    """One that waits for the journal."""
    FRAME = enum.auto()
    """In the journal, and there may be ever more of them."""
    STATE = enum.auto()
    """A new or changed ledger, which only a checkpoint stores."""
    URGENT = enum.auto()
    """Fencing: it may have what others may not."""


def cost_of(storage: BookieStorage, body: RequestBody) -> RequestCost:
    """Costs a look at the ledger: ask only when room is short."""
    if isinstance(body, WriteLacRequest):
        return RequestCost.FRAME | RequestCost.STATE | RequestCost.ANSWER
    if isinstance(body, ForceLedgerRequest):
        return RequestCost.ANSWER
    if not isinstance(body, AddRequest | ReadRequest | BatchReadRequest) or body.ledger_id < 0:
        return RequestCost.NOTHING
    try:
        state = storage.state(body.ledger_id)
    except BookieIoError:
        return RequestCost.NOTHING  # which is what it is answered with
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
        return RequestCost.NOTHING  # polls have a bound of their own
    if state is None or 0 <= body.entry_id <= state.lac:
        return RequestCost.NOTHING
    return RequestCost.ANSWER


_ASK_STATES_S: Final = 0.1
QUEUED_CALLBACKS_MAX = 100_000
"""Answers that wait for all journals together, each having an equal share: what only waits has no
bytes. Fences may be twice as many."""
RESERVE: Final = 1.25
"""So many times a bound may requests with priority fill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackpressureLimits:
    """Bounds over all connections of a bookie. Bytes and seconds."""

    queued_bytes_max: int
    """Waiting for all journals together; each has an equal share."""
    add_wait_s_max: float = 10.0
    """How long an add waits for room before it is refused."""
    replies_bytes_max: int = 128 << 20
    """Replies that wait for peers, of all connections together."""
    reply_wait_s_max: float = 60.0
    """How long a peer may take none of the replies that wait for it."""

    @classmethod
    def of(cls, config: BookieConfig) -> BackpressureLimits:
        return cls(
            queued_bytes_max=config.journal_queue_bytes_max,
            add_wait_s_max=config.write_cache_wait_ms_max / 1000,
            replies_bytes_max=config.replies_bytes_max,
            reply_wait_s_max=config.reply_wait_ms_max / 1000,
        )


class Blocked(NamedTuple):
    """What a request waits for before it is looked at again."""

    shard: Shard
    need: RequestCost


class Backpressure:
    """Shared by all connections of one server."""

    def __init__(self, storage: BookieStorage, limits: BackpressureLimits) -> None:
        self.limits = limits
        self.held_bytes = 0
        """Adds that connections hold until there is room."""
        self.replies_bytes = 0
        """Replies that wait for peers to take them."""
        self.peers_dropped = 0
        """Connections closed because the peer took no replies."""
        self.connections = 0
        """Open ones; each has a receive buffer."""
        self.segment_bytes_max = SEGMENT_BYTES_MAX
        """Of the receive buffer of each connection."""
        self._storage = storage
        self._share = share = limits.queued_bytes_max // len(storage.journals)
        self._callbacks_max = callbacks_max = QUEUED_CALLBACKS_MAX // len(storage.journals)
        for journal in storage.journals:
            journal.capacity.bound(
                bytes_max=share, critical_bytes_max=share * RESERVE, callbacks_max=callbacks_max
            )
        self._cache_bytes = sum(one.cache.bytes_max for one in storage.directories)
        # Per shard: what must end for it to open, and since when that is so.
        self._closed: dict[int, tuple[tuple[Wait, object], float]] = {}

    # --- adds

    def cause(self, shard: Shard) -> Wait | None:
        """Why the group takes no ordinary adds now; None if it does."""
        if shard.directory.is_full and not self._storage.gate.is_shut:
            return Wait.WRITE_CACHE
        return Wait.JOURNAL if shard.journal.capacity.is_limited else None

    def may_use_reserve(self, shard: Shard) -> bool:
        """Whether a recovery add may go on although the group is closed."""
        cache = shard.directory.cache
        # Buffers with few frames in them take as much memory as full ones.
        return (
            max(cache.nbytes, cache.released_bytes) < cache.bytes_max * RESERVE
            and shard.journal.queued_bytes <= self._share * RESERVE
        )

    def closed_since(self, shard_no: int, shard: Shard, cause: Wait) -> float:
        """When a closed group was first found in this state with no step of progress since."""
        is_cache = cause is Wait.WRITE_CACHE
        key = (cause, shard.directory.task.checkpoints if is_cache else shard.journal.mark)
        known = self._closed.get(shard_no)
        if known is None or known[0] != key:
            known = self._closed[shard_no] = key, trio.current_time()
        return known[1]

    async def wait_open(self, shard: Shard) -> None:
        """Returns when the group may take ordinary adds again. Raises StorageFailed or
        JournalFailed if never."""
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

    # --- what adds nothing to a cache, but must be kept all the same

    def blocking(self, body: RequestBody) -> Blocked | None:
        """What the request must wait for; None if it may be taken now."""
        if isinstance(body, AuthRequest | StartTlsRequest | GetBookieInfoRequest):
            return None
        shards = self._storage.shards
        blocked = Blocked(shards[body.ledger_id % len(shards)], cost_of(self._storage, body))
        return blocked if self.must_wait(blocked) else None

    def must_wait(self, blocked: Blocked) -> bool:
        """There is still no room for it."""
        shard, need = blocked
        journal = shard.journal
        if need & RequestCost.STATE and shard.directory.are_states_over:
            return True
        if need & RequestCost.FRAME and journal.queued_bytes > self._share * RESERVE:
            return True
        most = self._callbacks_max * (2 if need & RequestCost.URGENT else 1)
        return bool(need & RequestCost.ANSWER) and journal.queued_callbacks > most

    async def wait_less(self, blocked: Blocked) -> None:
        """Returns when it may be that `must_wait` is no more. Raises as `wait_open`."""
        shard, need = blocked
        if need & RequestCost.STATE and shard.directory.are_states_over:
            await shard.directory.wait_capacity()
            if shard.directory.are_states_over:
                # The checkpoint has not begun, or its disk has no room: nobody tells when there is.
                await trio.sleep(_ASK_STATES_S)
            return
        done = trio.Event()
        shard.journal.when_durable(done.set)
        await done.wait()

    # --- received bytes

    def count_connection(self, change: int) -> None:
        """A connection was opened (1) or closed (-1)."""
        self.connections += change
        # All together take about as much memory as half a write cache, which they become.
        share = self._cache_bytes // max(1, self.connections)
        self.segment_bytes_max = max(SEGMENT_BYTES_MIN, min(share, SEGMENT_BYTES_MAX))

    # --- replies

    @property
    def are_replies_over(self) -> bool:
        """So many bytes wait for peers that those for whom some wait get no more."""
        return self.replies_bytes > self.limits.replies_bytes_max
