"""LedgerWriter: appends to one ledger. Shell of `ledger.core.append`.

An append costs one header, one digest and two list appends; once per scheduler tick what has
gathered is joined and the same bytes go to all bookies of the write set. Acks come back as
runs of entries; callers are woken when the last add confirmed has passed their entry.
Replacing failed bookies is `ledger.ensemble_change`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType

import trio

from ledger.bookie_connection import BookieConnection
from ledger.core.append import AppendCore
from ledger.core.entry import Digest, DigestType, master_key
from ledger.core.metadata import LedgerMetadata
from ledger.ensemble_change import EnsembleChange
from ledger.errors import (
    InvalidArgument,
    LedgerClosed,
    LedgerError,
    LedgerFenced,
    OperationTimeout,
    Status,
    Unauthorized,
    error_of_status,
)
from ledger.wire import v2
from ledger.wire.messages import FRAME_BYTES_MAX, Buffer, WriteLacRequest
from ledger.write_loop import WriteLoop

_SEND_BYTES = 128 * 1024
"""A burst of appends is sent in pieces of this size: they stay in the processor's cache."""
ENTRY_PAYLOAD_BYTES_MAX = FRAME_BYTES_MAX - 500
"""Largest payload of one entry: a frame less its headers (facts section 1)."""


@dataclass(frozen=True, slots=True)
class WriterStatistics:
    entries: int
    bytes: int
    entries_pending: int
    bytes_pending: int
    ensemble_changes: int


@dataclass(slots=True)
class _Sent:
    """Frames of one class of entries that were handed to the connections together."""

    entry_class: int
    last_entry_id: int
    frames: bytes


class LedgerWriter:
    """The only writer of one ledger; made by `LedgerClient.create_ledger`.

    Guarantees: entry ids are dense from 0; an entry is confirmed when `ack_quorum` bookies
    of its write set have fsynced it and all entries before it are confirmed. After an error
    the writer stays failed (`error`), and unconfirmed entries are *unknown*: recovery may
    find them.
    """

    def __init__(self, metadata: LedgerMetadata, loop: WriteLoop) -> None:
        self.metadata = metadata
        self.ledger_id = metadata.ledger_id
        self.error: LedgerError | None = None
        self.is_closed = False
        self._is_closing = False
        self.length = 0
        self.on_confirmed: Callable[[int], None] | None = None
        self.on_failed: Callable[[LedgerError], None] | None = None
        self.core = AppendCore(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        self.connections: list[BookieConnection | None] = [None] * metadata.ensemble_size
        self.lac_carried = -1
        self.is_dirty = False
        self.is_lac_queued = False
        self._loop = loop
        self._options = loop.options
        self._change = EnsembleChange(self, loop)
        self._key = master_key(metadata.password)
        self.digest = Digest(metadata.digest_type or DigestType.CRC32C, metadata.password)
        self._frame_heads: dict[int, bytes] = {}
        self._buffers: list[list[Buffer]] = [[] for _ in range(self.core.stride)]
        self._sent: deque[_Sent] = deque()
        self._bytes_pending = 0
        self._send_at = 0
        self._waiters: list[tuple[int, int, list[trio.lowlevel.Task | None]]] = []
        self._waiter_count = 0
        self._room_waiters: deque[trio.lowlevel.Task] = deque()
        self._progress: list[tuple[int, float]] = [(-1, 0.0)] * metadata.ensemble_size
        for index in range(metadata.ensemble_size):
            self.attach(index)
        loop.add(self)

    # ---- appending

    @property
    def last_add_pushed(self) -> int:
        """Id of the newest entry handed to `append`; -1 for none."""
        return self.core.last_add_pushed

    @property
    def last_add_confirmed(self) -> int:
        """Every entry up to this id is durable on its ack quorum; -1 for none."""
        return self.core.last_add_confirmed

    @property
    def has_room(self) -> bool:
        """Whether `append_nowait` would take an entry now."""
        core = self.core
        return (
            core.last_add_pushed - core.last_add_confirmed < self._options.window_entries
            and self._bytes_pending < self._options.window_bytes
        )

    @property
    def _is_half_empty(self) -> bool:
        """Who waits for room is woken for half a window at once, not for each ack."""
        core = self.core
        return (
            2 * (core.last_add_pushed - core.last_add_confirmed) <= self._options.window_entries
            and 2 * self._bytes_pending <= self._options.window_bytes
        )

    def append_nowait(self, payload: Buffer) -> int:
        """Queues an entry and returns its id; it is sent at the end of this scheduler tick.

        `payload` must not be changed afterwards. Raises trio.WouldBlock when the window
        (entries or bytes) is full, InvalidArgument if the payload is too large, and the
        writer's error if it failed or is closed.
        """
        core = self.core
        entry_id = core.last_add_pushed + 1
        confirmed = core.last_add_confirmed
        if self.error is not None:
            raise self._failure()
        if (
            entry_id - confirmed > self._options.window_entries
            or self._bytes_pending >= self._options.window_bytes
        ):
            raise trio.WouldBlock
        size = len(payload)
        head = self._frame_heads.get(size)
        if head is None:
            head = self._frame_head(size)
        core.last_add_pushed = entry_id
        self.length += size
        header, _ = self.digest.encode_entry(
            self.ledger_id, entry_id, confirmed, self.length, payload
        )
        stride = core.stride
        buffer = self._buffers[0 if stride == 1 else entry_id % stride]
        buffer.append(head + header)
        buffer.append(payload)
        pending = self._bytes_pending + size + 64
        self._bytes_pending = pending
        if not self.is_dirty:
            self._send_at = pending + _SEND_BYTES
            self._loop.kick(self)
        elif pending >= self._send_at:
            # The bookies begin on these while the rest of the burst is made.
            self.send_gathered()
            self._send_at = pending + _SEND_BYTES
            self.is_dirty = True  # the loop still has this writer on its list
        return entry_id

    def _frame_head(self, size: int) -> bytes:
        if size > ENTRY_PAYLOAD_BYTES_MAX:
            raise InvalidArgument(
                f"an entry of {size} bytes; the largest is {ENTRY_PAYLOAD_BYTES_MAX}"
            )
        if len(self._frame_heads) > 4096:
            self._frame_heads.clear()
        length = 4 + 20 + 32 + self.digest.size + size
        head = length.to_bytes(4, "big") + _ADD_HEADER + self._key
        self._frame_heads[size] = head
        return head

    async def wait_room(self) -> None:
        """Returns when the window has room again; raises the writer's error if it failed."""
        while not self.has_room:
            if self.error is not None:
                raise self._failure()
            task = trio.lowlevel.current_task()
            self._room_waiters.append(task)

            def forget(
                _raise_cancel: object, task: trio.lowlevel.Task = task
            ) -> trio.lowlevel.Abort:
                self._room_waiters.remove(task)
                return trio.lowlevel.Abort.SUCCEEDED

            await trio.lowlevel.wait_task_rescheduled(forget)

    async def append(self, payload: Buffer) -> int:
        """Appends one entry and returns its id once it is confirmed.

        Waits while the window is full. If cancelled or failed after the entry was sent, its
        fate is unknown. Raises LedgerFenced, LedgerClosed, NotEnoughBookies, InvalidArgument.
        """
        while not self.has_room:
            await self.wait_room()
        entry_id = self.append_nowait(payload)
        await self.wait_confirmed(entry_id)
        return entry_id

    async def append_many(self, payloads: Iterable[Buffer]) -> int:
        """Appends all payloads in order; returns the last id once all are confirmed."""
        for payload in payloads:
            while not self.has_room:
                await self.wait_room()
            self.append_nowait(payload)
        last = self.last_add_pushed
        await self.wait_confirmed(last)
        return last

    async def wait_confirmed(self, entry_id: int) -> None:
        """Returns when `entry_id` and all before it are confirmed."""
        if entry_id <= self.core.last_add_confirmed:
            await trio.lowlevel.checkpoint()
            return
        if self.error is not None:
            raise self._failure()
        if entry_id > self.core.last_add_pushed:
            raise InvalidArgument(f"entry {entry_id} was not appended yet")
        slot: list[trio.lowlevel.Task | None] = [trio.lowlevel.current_task()]
        self._waiter_count += 1
        heapq.heappush(self._waiters, (entry_id, self._waiter_count, slot))

        def forget(_raise_cancel: object) -> trio.lowlevel.Abort:
            slot[0] = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(forget)
        if entry_id > self.core.last_add_confirmed:
            raise self._failure()

    async def flush(self) -> None:
        """Returns when everything appended so far is confirmed."""
        await self.wait_confirmed(self.core.last_add_pushed)

    # ---- sending (called by the write loop, once per tick)

    def send_gathered(self) -> None:
        """Hands what `append_nowait` gathered to the connections."""
        self.is_dirty = False
        if self.error is not None:
            return
        core = self.core
        for entry_class, buffer in enumerate(self._buffers):
            if not buffer:
                continue
            frames = b"".join(buffer)
            buffer.clear()
            # The newest entry of this class: at most stride - 1 before the newest of all.
            last = core.last_add_pushed - (core.last_add_pushed - entry_class) % core.stride
            self._sent.append(_Sent(entry_class, last, frames))
            for index in core.write_set(entry_class):
                self._send(index, frames)
        self.lac_carried = core.last_add_confirmed

    def _send(self, index: int, frames: bytes) -> None:
        connection = self.connections[index]
        if connection is not None and index not in self.core.failed:
            connection.send_adds(frames)

    def resend(self, indices: tuple[int, ...]) -> None:
        """Sends all that is unconfirmed to the bookies that are new at `indices`."""
        for sent in self._sent:
            members = self.core.write_set(sent.entry_class)
            for index in indices:
                if index in members:
                    self._send(index, sent.frames)

    # ---- answers (AckSink)

    def acked(self, bookie: str, first: int, last: int) -> None:
        index = self._index_of(bookie)
        if index is None:
            return
        try:
            self.core.acked(index, first, last)
        except LedgerError as error:
            self.bookie_failed(index, error)

    def refused(self, bookie: str, entry_id: int, status: Status) -> None:
        what = f"entry {entry_id} of ledger {self.ledger_id} at bookie {bookie}"
        if status is Status.FENCED:
            self.fail(
                LedgerFenced(
                    f"{what}: another client fenced the ledger to recover it; "
                    f"confirmed up to entry {self.last_add_confirmed}"
                )
            )
        elif status is Status.UNAUTHORIZED:
            self.fail(Unauthorized(f"{what}: wrong password"))
        elif (index := self._index_of(bookie)) is not None:
            self.bookie_failed(index, error_of_status(status, what))

    def lost(self, bookie: str, error: LedgerError) -> None:
        index = self._index_of(bookie)
        if index is not None:
            self.bookie_failed(index, error)

    def settle(self) -> None:
        """Moves the last add confirmed as far as the acks allow and wakes who waits for it."""
        core = self.core
        before = core.last_add_confirmed
        confirmed = core.advance()
        if confirmed == before or self.error is not None:
            return
        sent = self._sent
        while sent and sent[0].last_entry_id <= confirmed:
            self._bytes_pending -= len(sent.popleft().frames)
        if not sent and not self.is_dirty:
            self._bytes_pending = 0
        waiters = self._waiters
        reschedule = trio.lowlevel.reschedule
        while waiters and waiters[0][0] <= confirmed:
            task = heapq.heappop(waiters)[2][0]
            if task is not None:
                reschedule(task)
        if self._room_waiters and self._is_half_empty:
            while self._room_waiters:
                reschedule(self._room_waiters.popleft())
        if confirmed == core.last_add_pushed and confirmed > self.lac_carried:
            self._loop.queue_lac(self)
        if self.on_confirmed is not None:
            self.on_confirmed(confirmed)

    def _index_of(self, bookie: str) -> int | None:
        bookies = self.metadata.last_fragment.bookies
        return bookies.index(bookie) if bookie in bookies else None

    # ---- bookies

    def attach(self, index: int) -> None:
        """Takes the connection to the bookie that is now at `index`."""
        bookie = self.metadata.last_fragment.bookies[index]
        self._progress[index] = (-1, trio.current_time())
        try:
            connection = self._loop.pool.connection(bookie, 2)
        except LedgerError as error:
            self.connections[index] = None
            self.bookie_failed(index, error)
            return
        self.connections[index] = connection
        connection.sinks[self.ledger_id] = self

    def detach(self, index: int) -> None:
        """The bookie at `index` is not ours any more: its late answers are not ours either."""
        connection = self.connections[index]
        if connection is not None and connection.sinks.get(self.ledger_id) is self:
            del connection.sinks[self.ledger_id]
        self.connections[index] = None

    def bookie_failed(self, index: int, error: LedgerError) -> None:
        """Stops using the bookie at `index` and looks for another in the background."""
        if self.error is None and self.core.fail(index):
            self.detach(index)
            self._change.begin(index, error)

    def check_progress(self, now: float) -> None:
        """Gives up a bookie that acknowledged nothing for the add timeout (seconds)."""
        core = self.core
        for index, connection in enumerate(self.connections):
            if connection is None or index in core.failed:
                continue
            mark = core.acked_up_to(index)
            seen, since = self._progress[index]
            if mark >= core.last_add_pushed or mark != seen:
                self._progress[index] = (mark, now)
            elif now - since > self._options.add_timeout_s:
                connection.close(
                    OperationTimeout(
                        f"bookie {connection.bookie} acknowledged nothing for "
                        f"{now - since:.1f} s, entries from {mark + 1} wait"
                    )
                )

    def send_lac(self) -> None:
        """Tells the bookies the last add confirmed (explicit LAC), if no add has."""
        self.is_lac_queued = False
        confirmed = self.core.last_add_confirmed
        if self.error is not None or confirmed <= self.lac_carried:
            return
        self.lac_carried = confirmed
        body = self.digest.encode_lac(self.ledger_id, confirmed)
        request = WriteLacRequest(self.ledger_id, confirmed, self._key, body)
        for index, bookie in enumerate(self.metadata.last_fragment.bookies):
            if index not in self.core.failed:
                self._loop.pool.post(bookie, request)

    # ---- end

    def fail(self, error: LedgerError) -> None:
        """The writer can never confirm anything again; whoever waits gets the error."""
        if self.error is None:
            self._end(error)
            if self.on_failed is not None:
                self.on_failed(error)

    def _end(self, error: LedgerError) -> None:
        self.error = error
        self._leave()
        waiters, self._waiters = self._waiters, []
        for _, _, slot in waiters:
            if slot[0] is not None:
                trio.lowlevel.reschedule(slot[0])
        while self._room_waiters:
            trio.lowlevel.reschedule(self._room_waiters.popleft())

    def _leave(self) -> None:
        for index in range(len(self.connections)):
            self.detach(index)
        self._loop.remove(self)
        self._sent.clear()
        for buffer in self._buffers:
            buffer.clear()
        self._bytes_pending = 0

    def _failure(self) -> LedgerError:
        """A new exception each time: one instance raised in many tasks mixes tracebacks."""
        assert self.error is not None
        return type(self.error)(*self.error.args)

    async def close(self) -> LedgerMetadata:
        """Waits until all is confirmed, then fixes the end of the ledger for ever.

        Idempotent; after MetadataUnavailable it can be called again. Raises the writer's error
        if it failed; LedgerFenced if another client
        closed or recovers the ledger.
        """
        if self.is_closed:
            return self.metadata
        if not self._is_closing:
            await self.flush()
            if self.error is not None:
                raise self._failure()
            self._is_closing = True
            end = self.core.last_add_confirmed
            self._end(LedgerClosed(f"ledger {self.ledger_id} is closed at entry {end}"))
        last, length = self.core.last_add_confirmed, self.length

        def closed(stored: LedgerMetadata) -> LedgerMetadata | None:
            if stored.is_closed:
                if (stored.last_entry_id, stored.length) == (last, length):
                    return None
                raise LedgerFenced(
                    f"ledger {self.ledger_id} was closed by another client at entry "
                    f"{stored.last_entry_id}; this writer confirmed up to {last}"
                )
            # Not while another client recovers it: where the ledger ends is theirs to find.
            stored.require_open()
            return stored.closed(last, length)

        self.metadata = await self._loop.ledgers.update(self.ledger_id, closed)
        self.is_closed = True
        return self.metadata

    def abandon(self) -> None:
        """Stops writing without closing the ledger: it stays open until somebody recovers it."""
        self.send_lac()
        self.fail(
            LedgerClosed(
                f"the writer of ledger {self.ledger_id} was abandoned; confirmed up to entry "
                f"{self.last_add_confirmed}"
            )
        )

    async def __aenter__(self) -> LedgerWriter:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            if not isinstance(self.error, LedgerClosed):
                await self.close()
        else:
            self.abandon()

    def statistics(self) -> WriterStatistics:
        """Counters since the writer was made."""
        return WriterStatistics(
            entries=self.core.last_add_confirmed + 1,
            bytes=self.length,
            entries_pending=self.core.last_add_pushed - self.core.last_add_confirmed,
            bytes_pending=self._bytes_pending,
            ensemble_changes=self._change.count,
        )


_ADD_HEADER = (v2.ADD_HEADER | v2.RANGE_ACKS).to_bytes(4, "big")
