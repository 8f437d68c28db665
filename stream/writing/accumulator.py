"""RecordAccumulator: gathers records into batches; batch_sender.py sends and confirms them.

Hot: a record costs one list append; a batch becomes one entry; a confirmation wakes all callers of
an entry at once. What is rare (keys, limits, a quota, producers) must cost a plain record nothing.
Its public face is writer.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import trio

from ledger.errors import LedgerError
from stream.core.entry.compression import Compression, require
from stream.core.entry.encoder import Headers
from stream.core.entry.sizes import RECORD_OVERHEAD_BYTES, first_to_fill, record_bytes
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.token_bucket import TokenBucket
from stream.errors import SequenceMismatch
from stream.writing.batch import CONDITIONAL, Batch, Ticket
from stream.writing.batch_sender import BatchSender
from stream.writing.open_segment import WriterOptions

BUSY_ENTRIES = 2
"""With so many entries on their way, records gather until one is confirmed (or a batch is
full): waiting costs less than another small entry would."""


class RecordAccumulator(BatchSender):
    """The open batch, and who waits for room. Guarantees: sent in the order they were taken.

    Args:
        stream: its name, for messages.
        now_ms: wall clock; append times never go back even if it does.
    """

    __slots__ = (
        "_batch_bytes", "_bucket", "_closing", "_compression", "_linger", "_linger_s", "_lingerer",
        "_next_sequence", "_open", "_plain_bytes_max", "_room_waiters", "_throttle", "has_room",
        "last_time_ms", "nursery", "pending_bytes_max", "record_bytes_max",
    )  # fmt: skip
    nursery: trio.Nursery
    """Of the writer's block: waits for a quota here."""

    def __init__(
        self,
        stream: str,
        policy: NamespaceMetadata,
        options: WriterOptions,
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__(stream, now_ms)
        self.last_time_ms = -1
        self.has_room = True
        self.pending_bytes_max = options.pending_bytes_max
        self.record_bytes_max = policy.record_bytes_max
        self._plain_bytes_max = -1
        """A record up to this size, without key and the like, takes the short way."""
        self._next_sequence = 0
        self._open = Batch()
        self._closing: LedgerError | None = None
        """Why new records are refused, before all those taken are durable."""
        self._room_waiters: dict[trio.lowlevel.Task, None] = {}
        self._lingerer: trio.lowlevel.Task | None = None
        self._linger = trio.CancelScope()
        """Around the wait for the deadline of the open batch."""
        self._linger_s = 0.0
        self._bucket: TokenBucket | None = None
        self._throttle: trio.CancelScope | None = None
        """Around the wait for the quota, if it is used up."""
        self.use_policy(policy)

    @property
    def pending_bytes(self) -> int:
        """Bytes taken and not yet confirmed."""
        return self.sealed_bytes + self._open.nbytes

    @property
    def next_sequence(self) -> int:
        """Sequence of the record that will be taken next."""
        return self._next_sequence + len(self._open.values)

    def begin_at(self, sequence: int, last_time_ms: int) -> None:
        """Where the stream goes on. Before the first record is taken."""
        assert not self._open.values, "records were taken before the stream was"
        self._next_sequence = sequence
        self.last_time_ms = last_time_ms

    def go_on_at(self, sequence: int, last_time_ms: int) -> None:
        """What is not in the stream yet begins here: later, if a sink committed meanwhile."""
        expected = self._ready[0].first_sequence if self._ready else self._next_sequence
        assert sequence >= expected, f"stream {self.stream!r}: {sequence} after {expected}"
        self.last_time_ms = max(self.last_time_ms, last_time_ms)
        if sequence == expected:
            return
        gathering, was_next = self._open, self._next_sequence
        self._next_sequence = self.renumber(sequence, last_time_ms)
        if gathering.producer_id == CONDITIONAL and gathering.values:
            self._open, self._plain_bytes_max = Batch(), self.record_bytes_max
            self.refuse(gathering, was_next, self._next_sequence)
        self._look_for_room()

    def use_policy(self, policy: NamespaceMetadata) -> None:
        """Limits, batching and compression from now on. Raises CompressionUnavailable."""
        self.record_bytes_max = policy.record_bytes_max
        self._plain_bytes_max = -1 if self._open.producer_id else policy.record_bytes_max
        self._batch_bytes = policy.batch_bytes
        self._use_linger(policy.linger_ms / 1000)
        self._use_quota(policy.bytes_per_s_max)
        compression = Compression.named(policy.compression)
        require(compression)
        self._compression = compression

    # Taking records

    def take(
        self,
        value: bytes,
        key: bytes | None = None,
        event_time_ms: int | None = None,
        headers: Headers | None = None,
        producer_id: int = 0,
    ) -> Ticket:
        """Hot: `StreamWriter.append_nowait`, which says what it does. A record of a producer
        goes to the batch opened for it by `open_for`."""
        if not self.has_room:
            raise self.refusal()
        batch = self._open
        size = len(value)
        if (
            size > self._plain_bytes_max
            or value.__class__ is not bytes
            or key is not None
            or event_time_ms is not None
            or headers is not None
        ):
            if headers is not None:
                headers = tuple(headers)  # the caller may change his list while the batch gathers
            size = record_bytes(value, key, event_time_ms, headers, self.record_bytes_max)
            if batch.producer_id != producer_id:
                batch = self._begin_batch(producer_id, 0)
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
        producer_id: int = 0,
    ) -> tuple[int, Ticket, Ticket]:
        """Takes the first of these records, as many as the open batch has place for.

        Returns how many, and the tickets of the first and the last. There must be room. `sizes`
        are those of `many_bytes`.
        """
        batch = self._open
        if batch.producer_id != producer_id:
            batch = self._begin_batch(producer_id, 0)
        slot = len(batch.values)
        budget = self._batch_bytes - batch.nbytes
        count, taken = first_to_fill(sizes, budget)
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

    def open_for(self, producer_id: int, sequence: int) -> Batch:
        """The batch for the next record of this producer, which has this sequence there."""
        batch = self._open
        if batch.producer_id != producer_id:
            batch = self._begin_batch(producer_id, sequence)
        expected = batch.producer_sequence + len(batch.values)
        assert sequence == expected, f"producer {producer_id}: {sequence} after {expected - 1}"
        return batch

    def open_conditional(self) -> None:
        """The batch for records that must have their sequence; it may have taken the room."""
        if self._open.producer_id != CONDITIONAL:
            self._begin_batch(CONDITIONAL, 0)

    def check_sequence(self, expected: int) -> None:
        """Raises SequenceMismatch if the next record will not have this sequence."""
        if self.error is not None or self._closing is not None:
            raise self.refusal()
        if expected != self.next_sequence:
            raise SequenceMismatch(self.stream, expected, self.next_sequence)

    async def wait_room(self) -> None:
        """Returns when `append_nowait` may take a record; raises the writer's error."""
        if self.error is None and self._closing is None:
            if self.has_room:
                await trio.lowlevel.checkpoint()
                return
            task = trio.lowlevel.current_task()
            self._room_waiters[task] = None

            def forget(_raise_cancel: object) -> trio.lowlevel.Abort:
                del self._room_waiters[task]
                return trio.lowlevel.Abort.SUCCEEDED

            await trio.lowlevel.wait_task_rescheduled(forget)
        if self.error is not None or self._closing is not None:
            raise self.refusal()

    async def flush(self) -> None:
        """Sends what has gathered; returns when all of it is durable. Raises the error, and
        SequenceMismatch if a conditional record was refused."""
        await self.drain()
        refused, self.refused = self.refused, None
        if refused is not None:
            raise copy.copy(refused)

    async def drain(self) -> None:
        """As `flush`; what was refused is kept in `refused`."""
        if self.error is not None:
            raise copy.copy(self.error)
        if self._open.values:
            self._seal_open()
            self.pump()
        await self.pending_settled()

    async def finish(self, reason: LedgerError) -> None:
        """Refuses new records, for this reason; returns when all those taken are durable."""
        if self._closing is None:
            self._closing = reason
        self.has_room = False
        self._wake_room_waiters()
        await self.drain()

    # Gathering

    def _begin_batch(self, producer_id: int, sequence: int) -> Batch:
        """A batch holds records of one producer: that of another is sent."""
        if self._open.values:
            self._seal_open()
            self.pump()
        batch = self._open
        batch.producer_id, batch.producer_sequence = producer_id, sequence
        # Plain records take the long way while the open batch is not for them.
        self._plain_bytes_max = -1 if producer_id else self.record_bytes_max
        return batch

    def _seal_open(self) -> None:
        batch, self._open = self._open, Batch()
        # Append times never go back, whatever the clocks of writers do: seeking relies on it.
        self.last_time_ms = max(self.last_time_ms, self._now_ms())
        if batch.producer_id:
            self._plain_bytes_max = self.record_bytes_max
        batch.seal(
            self._next_sequence, self.last_time_ms, self._compression,
            has_producers_before=self._mixture.add(max(0, batch.producer_id)),
        )  # fmt: skip
        self._next_sequence += batch.count
        self._ready.append(batch)
        self.sealed_bytes += len(batch.payload)
        if self._bucket is not None:
            self._bucket.take(len(batch.payload), trio.current_time())
            self._begin_throttle()
        if self.sealed_bytes >= self.pending_bytes_max:
            self.has_room = False

    def _use_linger(self, linger_s: float) -> None:
        """What has gathered must not wait for what no longer comes: a deadline of before, or a
        confirmation."""
        is_other, self._linger_s = linger_s != self._linger_s, linger_s
        if is_other and self._open.values:
            self._begin_linger(self._open)
            self._linger.cancel()

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
                with trio.CancelScope() as self._linger:
                    await trio.sleep(remaining_s)
            if self._open.values:
                self._seal_open()
                self.pump()

    # Room

    def settled(self) -> None:
        """Batches were confirmed: there may be room, and reason to send."""
        self.pump()
        is_idle = not self._ready and len(self._sent) < BUSY_ENTRIES
        if is_idle and self._open.values and not self._linger_s:
            self._seal_open()
            self.pump()
        if not self.has_room:
            self._look_for_room()

    def _look_for_room(self) -> None:
        is_over = self._closing is not None or self.error is not None
        if is_over or self._throttle is not None:
            return
        self.has_room = self.sealed_bytes < self.pending_bytes_max
        if self.has_room:
            self._wake_room_waiters()

    def _use_quota(self, bytes_per_s_max: int | None) -> None:
        bucket, now = self._bucket, trio.current_time()
        if bytes_per_s_max is None:
            self._bucket = None
        elif bucket is None:
            self._bucket = TokenBucket(bytes_per_s_max, now)
        elif bucket.rate_per_s != bytes_per_s_max:
            self._bucket = bucket.at_rate(bytes_per_s_max, now)
        if self._throttle is not None and self._bucket is not bucket:
            self._throttle.cancel()  # how long to wait is another now

    def _begin_throttle(self) -> None:
        assert self._bucket is not None, "no quota"
        if self._throttle is None and self._bucket.wait_s(trio.current_time()) > 0:
            self.has_room = False
            self._throttle = trio.CancelScope()
            self.nursery.start_soon(self._wait_quota)

    async def _wait_quota(self) -> None:
        """There is no room until the quota has some: a task only while it has none."""
        while self._bucket is not None and self.error is None:
            wait_s = self._bucket.wait_s(trio.current_time())
            if wait_s <= 0:
                break
            with trio.CancelScope() as self._throttle:
                await trio.sleep(wait_s)
        self._throttle = None
        self._look_for_room()

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

    def refusal(self) -> Exception:
        """Why there is no room: what to raise."""
        if self.error is not None:
            # A new exception each time: one instance raised in many tasks mixes tracebacks.
            return copy.copy(self.error)
        if self._closing is not None:
            return copy.copy(self._closing)
        return trio.WouldBlock()
