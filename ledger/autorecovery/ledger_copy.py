"""One copy of entries of one ledger: reads them, checks them and adds them to the target.

One task runs it. Reads are in flight at several sources (`copy_reads`) and adds at the target;
their answers arrive as calls that only note them and wake the task. Bodies are sent as they were
read, byte for byte, after their digests were checked. An entry counts as copied only when the
target acknowledged it: a bookie acknowledges adds of a recovery when they are synced. After a lost
connection, what was in flight is read and sent again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain

import trio

from ledger.autorecovery.copy_reads import CopyReads, Limits, ReadBodies
from ledger.connection.claims import is_key_of, must_show_key, other_key
from ledger.connection.connection import BookieConnection
from ledger.connection.pending_calls import WRITER_TXN_ID
from ledger.core.autorecovery.adds_in_flight import AddsInFlight
from ledger.core.autorecovery.copy_plan import CopyPlan
from ledger.core.copies import BadCopy, CopyState
from ledger.core.entry import HEADER_BYTES, master_key
from ledger.core.metadata import LedgerMetadata, digest_of
from ledger.errors import (
    DigestMismatch,
    LedgerClosed,
    LedgerError,
    OperationTimeout,
    Status,
    TooManyRequests,
    Unauthorized,
    error_of_status,
)
from ledger.runtime.parking import ParkingSlot
from ledger.wire import v2, v3
from ledger.wire.messages import AddRequest, Buffer, Request

_JOINED_BYTES_MAX = 256 * 1024
"""Entries that were read one by one are sent in pieces of about this size."""
_TRIES_MAX = 4
_PAUSE_S = 0.2
"""After the first failure of the target; doubles."""
_ADD_TIMEOUTS = 3
"""The target may be silent for this number of the client's timeouts of an add: a bookie without
capacity makes an add wait for ten seconds before it refuses."""
_OVERLOADED_S_MAX = 60.0
"""A target that refuses everything for this long is given up."""
_LOOK_S = 1.0
"""The task asks at least this often whether the copy is still wanted."""
_FRAME_OVERHEAD_BYTES = 100
_ADD_HEADER = (v2.ADD_HEADER | v2.RANGE_ACKS | v2.RECOVERY_ADD).to_bytes(4, "big")
_SIZES_MAX = 4096


class _Heads(dict[int, bytes]):
    """The bytes of a v2 frame before the entry, by the size of the entry; made on first use."""

    def __init__(self, key: bytes) -> None:
        super().__init__()
        self._key = key

    def __missing__(self, size: int) -> bytes:
        if len(self) >= _SIZES_MAX:
            self.clear()
        head = self[size] = (24 + size).to_bytes(4, "big") + _ADD_HEADER + self._key
        return head


class LedgerCopy:
    """Copies the entries of a plan to `target`; `run` does it, once. It is the sink of the acks.

    Args:
        up: bookies that are registered; others are asked last.
        is_wanted: asked before each batch; the copy stops when it returns False.
    """

    def __init__(
        self,
        limits: Limits,
        metadata: LedgerMetadata,
        target: str,
        plan: CopyPlan,
        *,
        up: frozenset[str],
        is_wanted: Callable[[], bool],
    ) -> None:
        self.entries = 0
        self.payload_bytes = 0
        self.is_stopped = False
        self.target_error: LedgerError | None = None
        self._limits = limits
        self._metadata = metadata
        self._ledger_id = metadata.ledger_id
        self._is_digest_known = metadata.digest_type is not None
        self._proven: set[str] = set()
        """Sources that have shown that they have the ledger under the key of its metadata."""
        self._target = target
        self._plan = plan
        self._is_wanted = is_wanted
        self._digest = digest_of(metadata, metadata.password)
        self._key = master_key(metadata.password)
        self._heads = _Heads(self._key)
        self._overhead = HEADER_BYTES + self._digest.size
        entry_bytes = None
        if metadata.length:
            entry_bytes = self._overhead + metadata.length / (metadata.last_entry_id + 1)
        self.reads = CopyReads(
            limits, self._ledger_id, plan, up=up, entry_bytes=entry_bytes, on_progress=self.wake
        )
        self._adds = AddsInFlight()
        self._window = limits.target(target)
        self._connection: BookieConnection | None = None
        self._failures = 0
        self._pause_until_s = 0.0
        self._acked_s = 0.0
        self._refused_since_s = math.inf
        self._slot = ParkingSlot()
        self._is_woken = False

    # ---- the task

    async def run(self) -> None:
        """Returns when all entries are copied or given up, when it is not wanted any more, or when
        the target failed (`target_error`). May be cancelled."""
        reads = self.reads
        try:
            while True:
                await trio.lowlevel.checkpoint()  # what follows may take milliseconds
                self._is_woken = False
                if not self._is_wanted():
                    self.is_stopped = True
                    return
                now_s = trio.current_time()
                reads.expire(now_s)
                await self._check_sources()
                self._check_target(now_s)
                self._send_ready(now_s)
                if self.target_error is not None:
                    return
                options = self._limits.options
                batch_bytes = min(options.batch_read_bytes, self._window.nbytes // 4)
                probe = reads.ask_more(now_s, batch_bytes)
                if probe is not None:
                    await reads.probe(probe)
                elif reads.is_idle and not self._adds.entries and self._plan.is_done:
                    return
                elif not self._is_woken and not self._plan.is_interrupted:
                    with trio.move_on_at(self._next_s(now_s)):
                        await self._slot.park()
        finally:
            self._close()

    @property
    def is_blocked(self) -> bool:
        """Whether it may wait for bytes in flight of another copy."""
        return self.reads.is_blocked or bool(self.reads.ready)

    def wake(self) -> None:
        """Has the task look at everything again."""
        self._is_woken = True
        self._slot.unpark()

    def _next_s(self, now_s: float) -> float:
        """Returns when the task must look again although nothing was answered."""
        times = (
            self.reads.next_s(now_s),
            self._window.paused_until_s,
            self._pause_until_s,
            now_s + _LOOK_S,
        )
        return min(one for one in times if one > now_s)

    def _close(self) -> None:
        self._leave()
        self._drop_adds()
        self.reads.close()
        self._limits.wake_all()

    def _leave(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.sinks.get(self._ledger_id) is self:
            del connection.sinks[self._ledger_id]

    def _drop_adds(self) -> list[tuple[int, int]]:
        self._window.dropped(self._adds.nbytes)
        return self._adds.drain()

    # ---- sending

    def _send_ready(self, now_s: float) -> None:
        """Sends what was read and is valid, as far as the window allows."""
        ready, window = self.reads.ready, self._window
        pieces: list[Buffer] = []
        nbytes = 0
        while ready and self._connection is not None and window.may_send(now_s):
            read = ready.popleft()
            bodies = self._valid(read)
            if not bodies:
                continue
            sizes = list(map(len, bodies))
            total = sum(sizes)
            self.reads.sent(total)
            self._adds.add(read.first, sizes, now_s)
            window.sent(total)
            self._plan.found(read.first, read.first + len(bodies) - 1)
            pieces += self._frames(read.first, bodies, sizes)
            nbytes += total
            if nbytes >= _JOINED_BYTES_MAX:
                self._connection.send_adds(b"".join(pieces))
                pieces, nbytes = [], 0
        if pieces and self._connection is not None:
            self._connection.send_adds(b"".join(pieces))

    async def _check_sources(self) -> None:
        """Drops what came from bookies that have the ledger under another key than its metadata
        implies. Otherwise the metadata of another's ledger could be changed, and a copy of its
        entries made under the key of the client that did so: digests need not depend on the key."""
        if not must_show_key(self._metadata, self._limits.keys):
            return
        for source in {read.source for read in self.reads.ready} - self._proven:
            timeout_s = self._limits.options.read_timeout_s
            try:
                is_key = await is_key_of(
                    self._limits.pool, source, self._metadata, timeout_s=timeout_s
                )
            except LedgerError as error:
                self._drop_source(source, BadCopy(CopyState.UNREACHABLE, str(error)))
                continue
            if is_key:
                self._proven.add(source)
            else:
                why = other_key(self._metadata, source)
                self._drop_source(source, BadCopy(CopyState.UNREADABLE, why))

    def _drop_source(self, source: str, why: BadCopy) -> None:
        self._plan.gone(source, why)
        for read in [one for one in self.reads.ready if one.source == source]:
            self.reads.ready.remove(read)
            self.reads.sent(sum(map(len, read.bodies)))
            self._plan.again(read.first, read.first + len(read.bodies) - 1)

    def _valid(self, read: ReadBodies) -> Sequence[Buffer]:
        """Returns the valid bodies at the front. The first other one is looked for elsewhere, and
        those behind it wait for their turn."""
        source, first, bodies = read
        count = self._digest.count_valid(self._ledger_id, first, bodies)
        if count == len(bodies):
            return bodies
        try:
            self._digest.decode_entry(self._ledger_id, first + count, bodies[count])
            raise AssertionError(f"entry {first + count} is valid, and it is not")
        except DigestMismatch as error:
            # Without the type of its digest in the metadata, a mismatch proves nothing.
            state = CopyState.CORRUPT if self._is_digest_known else CopyState.UNREADABLE
            self._plan.bad(source, first + count, BadCopy(state, str(error)))
        self.reads.sent(len(bodies[count]))
        if count + 1 < len(bodies):
            rest = ReadBodies(source, first + count + 1, bodies[count + 1 :])
            self.reads.ready.appendleft(rest)
        return bodies[:count]

    def _frames(self, first: int, bodies: Sequence[Buffer], sizes: Sequence[int]) -> list[Buffer]:
        """Returns the pieces of adds of a recovery, with the bodies as they are."""
        assert self._connection is not None
        if self._connection.version != 3:
            return list(
                chain.from_iterable(zip(map(self._heads.__getitem__, sizes), bodies, strict=True))
            )
        ledger_id, key = self._ledger_id, self._key
        return [
            v3.encode_request(
                Request(
                    3,
                    WRITER_TXN_ID,
                    AddRequest(ledger_id, entry_id, key, body, is_recovery=True),
                )
            )
            for entry_id, body in enumerate(bodies, first)
        ]

    # ---- the target

    def _check_target(self, now_s: float) -> None:
        """Connects to the target if necessary, and ends a connection that is silent."""
        connection = self._connection
        if connection is None:
            if now_s >= self._pause_until_s and self.target_error is None:
                self._connect()
            return
        if not self._adds.entries:
            return
        silent_s = now_s - max(self._acked_s, self._adds.oldest_s)
        if silent_s > _ADD_TIMEOUTS * self._limits.options.add_timeout_s:
            connection.close(
                OperationTimeout(
                    f"bookie {self._target} acknowledged nothing for {silent_s:.1f} s, "
                    f"{self._adds.entries} entries of ledger {self._ledger_id} wait"
                )
            )

    def _connect(self) -> None:
        limits = self._limits
        version = limits.options.wire_version
        try:
            connection = limits.pool.connection(self._target, version)
        except LedgerError as error:
            self._target_failed(error)
            return
        connection.sinks[self._ledger_id] = self
        self._connection = connection

    def _target_failed(self, error: LedgerError) -> None:
        self._failures += 1
        if self._failures >= _TRIES_MAX or isinstance(error, Unauthorized | LedgerClosed):
            self.fail(error)
        self._pause_until_s = trio.current_time() + _PAUSE_S * 2 ** (self._failures - 1)

    @property
    def bytes_pending(self) -> int:
        """Bytes of frames at the target without an ack, for the bound of its connection."""
        return self._adds.nbytes + _FRAME_OVERHEAD_BYTES * self._adds.entries

    def acked(self, bookie: str, first: int, last: int, *, is_unpolled: bool = False) -> None:
        found = self._adds.acked(first, last)
        if not found.entries:
            return
        now_s = trio.current_time()
        payload_bytes = found.nbytes - found.entries * self._overhead
        self.entries += found.entries
        self.payload_bytes += payload_bytes
        self._window.answered(found.nbytes, now_s - found.sent_s, now_s)
        self._limits.count(found.entries, payload_bytes)
        self._acked_s = now_s
        self._failures = 0
        self._refused_since_s = math.inf

    def settle(self) -> None:
        """All acks of a chunk were reported: the window may have capacity."""
        self.wake()
        self._limits.wake_all()

    def refused(self, bookie: str, entry_id: int, status: Status) -> None:
        found = self._adds.acked(entry_id, entry_id)
        if not found.entries:
            return
        self._window.dropped(found.nbytes)
        what = f"entry {entry_id} of ledger {self._ledger_id} at bookie {bookie}"
        if status is not Status.TOO_MANY_REQUESTS:
            self.fail(error_of_status(status, what))
            return
        now_s = trio.current_time()
        self._window.refused(now_s)
        self._plan.again(entry_id, entry_id)
        self._refused_since_s = min(self._refused_since_s, now_s)
        if now_s - self._refused_since_s > _OVERLOADED_S_MAX:
            self.fail(
                TooManyRequests(
                    f"bookie {bookie} refused all entries of ledger {self._ledger_id} for "
                    f"{now_s - self._refused_since_s:.0f} s: it is overloaded"
                )
            )

    def fail(self, error: LedgerError) -> None:
        """The target takes no more entries of this ledger."""
        if self.target_error is None:
            self.target_error = error
        self.wake()

    def lost(self, bookie: str, error: LedgerError) -> None:
        self._connection = None
        for first, last in self._drop_adds():
            self._plan.again(first, last)
        self._target_failed(error)
        self._limits.wake_all()
