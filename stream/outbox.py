"""Outbox: gathers records into entries, sends them, and confirms them in order.

Hot: a record costs one list append; a batch becomes one entry; a confirmation wakes all callers of
an entry at once. Must never confirm a record before the metadata says that its segment exists, nor
out of order. Its public face is writer.py; who changes the segment under it, segment_changes.py.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate

import trio

from ledger.errors import LedgerClosed, LedgerError
from stream.batch import Batch, Ticket
from stream.core.compression import Compression, require
from stream.core.entry_encoder import Headers
from stream.core.entry_format import RECORD_BYTES_MAX
from stream.core.policy import NamespaceMetadata
from stream.core.record_sizes import RECORD_OVERHEAD_BYTES, record_bytes
from stream.open_segment import OpenSegment, WriterOptions

BUSY_ENTRIES = 2
"""With so many entries on their way, records gather until one is confirmed (or a batch is
full): waiting costs less than another small entry would."""


class Outbox:
    """Batches gathering, ready, sent. Guarantees: confirmed in the order they were taken.

    Args:
        stream: its name, for messages.
        now_ms: wall clock; append times never go back even if it does.
    """

    def __init__(
        self,
        stream: str,
        policy: NamespaceMetadata,
        options: WriterOptions,
        now_ms: Callable[[], int],
    ) -> None:
        self.stream = stream
        self.error: LedgerError | None = None
        self.is_paused = True
        """Nothing is sent while a segment is being opened or repaired."""
        self.segment: OpenSegment | None = None
        self.on_segment_event: Callable[[LedgerError | None], None] | None = None
        """Called when the segment should be looked after: its ledger failed, or it has grown."""
        self.segment_bytes_watch = 1 << 62
        self.next_sequence = 0
        self.last_time_ms = -1
        self._options = options
        self._now_ms = now_ms
        self._open = Batch()
        self._ready: deque[Batch] = deque()
        self._sent: deque[Batch] = deque()
        self.sealed_bytes = 0
        self.has_room = True
        self._is_closing = False
        self._room_waiters: dict[trio.lowlevel.Task, None] = {}
        self._lingerer: trio.lowlevel.Task | None = None
        self.confirmed_sequence = -1
        self.records_confirmed = 0
        self.entries_confirmed = 0
        self.use_policy(policy)

    @property
    def pending_bytes(self) -> int:
        """Bytes taken and not yet confirmed."""
        return self.sealed_bytes + self._open.nbytes

    def use_policy(self, policy: NamespaceMetadata) -> None:
        """Batching and compression from now on. Raises CompressionUnavailable."""
        compression = Compression.named(policy.compression)
        require(compression)
        self._compression = compression
        self._batch_bytes = policy.batch_bytes
        self._linger_s = policy.linger_ms / 1000

    # Taking records

    def take(
        self,
        value: bytes,
        key: bytes | None = None,
        event_time_ms: int | None = None,
        headers: Headers | None = None,
    ) -> Ticket:
        """Hot: `StreamWriter.append_nowait`, which says what it does."""
        if not self.has_room:
            raise self._refusal()
        batch = self._open
        size = len(value)
        if (
            size > RECORD_BYTES_MAX
            or value.__class__ is not bytes
            or key is not None
            or event_time_ms is not None
            or headers is not None
        ):
            size = record_bytes(value, key, event_time_ms, headers)
            batch.add_columns(key, event_time_ms, headers)
        values = batch.values
        slot = len(values)
        values.append(value)
        batch.nbytes += size + RECORD_OVERHEAD_BYTES
        if batch.nbytes >= self._batch_bytes:
            self._seal_open()
            self.pump()
        elif not slot:
            self._begin_linger(batch)
        return Ticket(batch, slot)

    def take_many(
        self,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        event_times: Sequence[int | None] | None,
        sizes: Sequence[int],
    ) -> tuple[int, Ticket, Ticket]:
        """Takes the first of these records, as many as the open batch has place for.

        Returns how many, and the tickets of the first and the last. There must be room. `sizes`
        are those of `many_bytes`.
        """
        batch = self._open
        slot = len(batch.values)
        budget = self._batch_bytes - batch.nbytes
        count, taken = 0, 0
        for taken in accumulate(sizes):
            count += 1
            if taken >= budget:
                break
        batch.extend_columns(
            None if keys is None else keys[:count],
            None if event_times is None else event_times[:count],
        )
        batch.values += values[:count]
        batch.nbytes += taken
        if taken >= budget:
            self._seal_open()
            self.pump()
        elif not slot:
            self._begin_linger(batch)
        return count, Ticket(batch, slot), Ticket(batch, slot + count - 1)

    async def wait_room(self) -> None:
        """Returns when `append_nowait` may take a record; raises the writer's error."""
        if self.error is None and not self._is_closing:
            if self.has_room:
                await trio.lowlevel.checkpoint()
                return
            task = trio.lowlevel.current_task()
            self._room_waiters[task] = None

            def forget(_raise_cancel: object) -> trio.lowlevel.Abort:
                del self._room_waiters[task]
                return trio.lowlevel.Abort.SUCCEEDED

            await trio.lowlevel.wait_task_rescheduled(forget)
        if self.error is not None or self._is_closing:
            raise self._refusal()

    async def flush(self) -> None:
        """Sends what has gathered; returns when all of it is durable. Raises the error."""
        if self.error is not None:
            raise copy.copy(self.error)
        if self._open.values:
            self._seal_open()
            self.pump()
        pending = self._ready or self._sent
        if not pending:
            await trio.lowlevel.checkpoint()
            return
        await Ticket(pending[-1], 0).wait()

    async def finish(self) -> None:
        """Refuses new records; returns when all those taken are durable."""
        self._is_closing = True
        self.has_room = False
        self._wake_room_waiters()
        await self.flush()

    # Sending

    def _seal_open(self) -> None:
        batch, self._open = self._open, Batch()
        # Append times never go back, whatever the clocks of writers do: seeking relies on it.
        self.last_time_ms = max(self.last_time_ms, self._now_ms())
        batch.seal(self.next_sequence, self.last_time_ms, self._compression)
        self.next_sequence += batch.count
        self._ready.append(batch)
        self.sealed_bytes += len(batch.payload)
        if self.sealed_bytes >= self._options.pending_bytes_max:
            self.has_room = False

    def pump(self) -> None:
        """Hands ready batches to the ledger as far as it takes them."""
        ready, sent = self._ready, self._sent
        segment = self.segment
        while ready and not self.is_paused and segment is not None:
            batch = ready[0]
            try:
                entry = segment.ledger.append_nowait(batch.payload)
            except trio.WouldBlock:
                return
            except LedgerError as error:
                self.ledger_failed(segment, error)
                return
            ready.popleft()
            batch.segment, batch.entry = segment, entry
            sent.append(batch)
            if not segment.entries:
                segment.first_time_ms = batch.append_time_ms
                segment.since_ms = self._now_ms()
            segment.last_time_ms = batch.append_time_ms
            segment.entries += 1
            segment.records += batch.count
            segment.nbytes += len(batch.payload)
            if segment.nbytes >= self.segment_bytes_watch and self.on_segment_event is not None:
                self.segment_bytes_watch = 1 << 62
                self.on_segment_event(None)

    def _begin_linger(self, batch: Batch) -> None:
        if self._linger_s:
            batch.deadline = trio.current_time() + self._linger_s
        elif len(self._sent) >= BUSY_ENTRIES:
            return  # the next confirmation sends it
        if self._lingerer is not None:
            task, self._lingerer = self._lingerer, None
            trio.lowlevel.reschedule(task)

    async def run_linger(self) -> None:
        """Sends the open batch when its time has come: one task for the life of the writer."""

        def forget(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._lingerer = None
            return trio.lowlevel.Abort.SUCCEEDED

        while True:
            is_busy = not self._linger_s and len(self._sent) >= BUSY_ENTRIES
            if is_busy or not self._open.values:
                self._lingerer = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(forget)
            while self._linger_s and self._open.values:
                remaining_s = self._open.deadline - trio.current_time()
                if remaining_s <= 0:
                    break
                await trio.sleep(remaining_s)
            if self._open.values:
                self._seal_open()
                self.pump()

    # Answers

    def use_segment(self, segment: OpenSegment) -> None:
        """Sends to this segment from now on."""
        self.segment = segment
        ledger = segment.ledger

        def confirmed(entry: int) -> None:
            segment.confirmed = entry
            self.settle()

        def failed(error: LedgerError) -> None:
            self.ledger_failed(segment, error)

        ledger.on_confirmed = confirmed
        ledger.on_failed = failed

    def ledger_failed(self, segment: OpenSegment, error: LedgerError) -> None:
        """Stops sending; whoever looks after segments repairs."""
        self.is_paused = True
        segment.ledger.on_confirmed = segment.ledger.on_failed = None
        if self.on_segment_event is not None:
            self.on_segment_event(error)

    def settle(self) -> None:
        """Confirms batches, in order, as far as ledgers and metadata allow."""
        sent = self._sent
        while sent:
            batch = sent[0]
            segment = batch.segment
            assert segment is not None, "sent to no segment"
            if batch.entry > segment.confirmed or not segment.is_published:
                break
            sent.popleft()
            self.sealed_bytes -= len(batch.payload)
            self.records_confirmed += batch.count
            self.confirmed_sequence = batch.first_sequence + batch.count
            self.entries_confirmed += 1
            batch.confirm()
        self.pump()
        is_idle = not self._ready and len(sent) < BUSY_ENTRIES
        if is_idle and self._open.values and not self._linger_s:
            self._seal_open()
            self.pump()
        if not (self.has_room or self._is_closing or self.error):
            self.has_room = self.sealed_bytes < self._options.pending_bytes_max
            if self.has_room:
                self._wake_room_waiters()

    def take_back(self, segments: Sequence[OpenSegment], next_sequence: int) -> None:
        """These segments were ended by recovery, the last one before `next_sequence`: what they
        hold is confirmed, everything behind it will be sent again, in order."""
        again: list[Batch] = []
        for batch in self._sent:
            segment = batch.segment
            is_held = segment in segments and batch.first_sequence < next_sequence
            if segment is not None and is_held:
                assert batch.first_sequence + batch.count <= next_sequence, "half a batch is there"
                segment.confirmed = batch.entry
            else:
                batch.segment, batch.entry = None, -1
                again.append(batch)
        for _ in again:
            self._sent.pop()
        self._ready.extendleft(reversed(again))

    def fail(self, error: LedgerError) -> None:
        """The writer can never confirm anything again; whoever waits gets the error."""
        if self.error is not None:
            return
        self.error = error
        self.is_paused = True
        self.has_room = False
        if self.segment is not None:
            self.segment.ledger.on_confirmed = self.segment.ledger.on_failed = None
            self.segment.ledger.abandon()
        for batch in (*self._sent, *self._ready, self._open):
            batch.fail(error)
        self._sent.clear()
        self._ready.clear()
        self._open = Batch()
        self._wake_room_waiters()

    def _wake_room_waiters(self) -> None:
        for task in self._room_waiters:
            trio.lowlevel.reschedule(task)
        self._room_waiters.clear()

    def _refusal(self) -> Exception:
        if self.error is not None:
            # A new exception each time: one instance raised in many tasks mixes tracebacks.
            return copy.copy(self.error)
        if self._is_closing:
            return LedgerClosed(f"the writer of stream {self.stream!r} is closed")
        return trio.WouldBlock()
