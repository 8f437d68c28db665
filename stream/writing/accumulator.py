"""RecordAccumulator: gathers records into batches, and throttles callers while too much is pending.

Hot: a record costs one list append; a batch becomes one entry. What is rare (keys, limits, a quota,
producers) must cost a plain record nothing. batch_sender.py sends and confirms the batches;
writer.py is the public interface of both.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from datetime import datetime

import trio

from ledger.errors import LedgerError
from ledger.runtime.parking import ParkedTasks, ParkingSlot
from stream.core.arguments import Time, header_pairs, to_ms
from stream.core.entry.compression import Compression, require
from stream.core.entry.encoder import Headers
from stream.core.entry.record_columns import RecordColumns
from stream.core.entry.sizes import RECORD_OVERHEAD_BYTES, first_to_fill, record_bytes
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.errors import SequenceMismatch
from stream.writing.batch import Batch, BatchKind, Ticket
from stream.writing.batch_sender import BatchSender
from stream.writing.open_segment import WriterOptions
from stream.writing.throttle import Throttle

BUSY_ENTRIES = 2
"""While this many entries are in flight, records gather until one is confirmed (or a batch is
full): waiting costs less than another small entry would."""


class RecordAccumulator:
    """The open batch, and the tasks that wait for room. Guarantees: records are sent in the order
    in which they were taken.

    Args:
        stream: its name, for messages.
        now_ms: wall clock; append times never decrease even if it does.
    """

    # Slots: with more than 29 attributes in a dict each access to one costs more.
    __slots__ = (
        "_batch_bytes", "_closing", "_compression", "_linger", "_linger_s",
        "_linger_slot", "_next_sequence", "_now_ms", "_open", "_plain_bytes_max", "_room_waiters",
        "_sent", "_throttle", "error", "has_room", "last_time_ms", "nursery", "pending_bytes_max",
        "record_bytes_max", "sender", "stream",
    )  # fmt: skip
    nursery: trio.Nursery
    """Nursery of the writer's block; the wait for a quota runs in it."""

    def __init__(
        self,
        stream: str,
        policy: NamespaceMetadata,
        options: WriterOptions,
        now_ms: Callable[[], int],
    ) -> None:
        self.stream = stream
        self.sender = BatchSender(stream, now_ms, self._settled)
        self._sent = self.sender.sent
        self.error: LedgerError | None = None
        """Why the writer failed or ended."""
        self.last_time_ms = -1
        self.has_room = True
        self.pending_bytes_max = options.pending_bytes_max
        self.record_bytes_max = policy.record_bytes_max
        self._now_ms = now_ms
        self._plain_bytes_max = -1
        """A record of at most this size, without key, event time or headers, takes the fast path:
        no further check. -1 while the open batch is not for plain records."""
        self._next_sequence = 0
        self._open = Batch()
        self._closing: LedgerError | None = None
        """Why new records are refused while those taken before are not all durable yet."""
        self._room_waiters = ParkedTasks()
        self._linger_slot = ParkingSlot()
        """The task of `run_linger`, while it waits for a batch to begin."""
        self._linger = trio.CancelScope()
        """Around the wait for the deadline of the open batch."""
        self._linger_s = 0.0
        self._throttle = Throttle(self._update_room)
        self.use_policy(policy)

    @property
    def pending_bytes(self) -> int:
        """Bytes taken and not yet confirmed."""
        return self.sender.unconfirmed_bytes + self._open.nbytes

    @property
    def next_sequence(self) -> int:
        """Sequence of the record that will be taken next."""
        return self._next_sequence + len(self._open.values)

    def begin_at(self, sequence: int, last_time_ms: int) -> None:
        """Sets where the stream continues. To be called before the first record is taken."""
        assert not self._open.values, "records were taken before the stream was"
        self._next_sequence = sequence
        self.last_time_ms = last_time_ms

    def resume_at(self, sequence: int, last_time_ms: int) -> None:
        """Sets the sequence of the first record that is not in the stream yet: later than before,
        if a sink committed a batch meanwhile."""
        ready = self.sender.ready
        expected = ready[0].first_sequence if ready else self._next_sequence
        assert sequence >= expected, f"stream {self.stream!r}: {sequence} after {expected}"
        self.last_time_ms = max(self.last_time_ms, last_time_ms)
        if sequence == expected:
            return
        gathering, was_next = self._open, self._next_sequence
        self._next_sequence = self.sender.renumber(sequence, last_time_ms)
        if gathering.kind is BatchKind.CONDITIONAL and gathering.values:
            self._open, self._plain_bytes_max = Batch(), self.record_bytes_max
            self.sender.refuse(gathering, was_next, self._next_sequence)
        self._update_room()

    def use_policy(self, policy: NamespaceMetadata) -> None:
        """Follows these limits, batching and compression from now on. Raises
        CompressionUnavailable."""
        self.record_bytes_max = policy.record_bytes_max
        is_plain = self._open.kind is BatchKind.PLAIN
        self._plain_bytes_max = policy.record_bytes_max if is_plain else -1
        self._batch_bytes = policy.batch_bytes
        self._use_linger(policy.linger_ms / 1000)
        self._throttle.use_quota(policy.bytes_per_s_max)
        compression = Compression.named(policy.compression)
        require(compression)
        self._compression = compression

    # Taking records

    def take(
        self,
        value: bytes,
        key: bytes | None = None,
        event_time_ms: Time | None = None,
        headers: Headers | None = None,
        kind: BatchKind = BatchKind.PLAIN,
    ) -> Ticket:
        """Takes a record, as `StreamWriter.append_nowait` documents. Hot.

        A producer's record joins the batch that `open_for` has opened.
        """
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
            pairs = None if headers is None else header_pairs(headers)
            if isinstance(event_time_ms, datetime):
                event_time_ms = to_ms(event_time_ms)
            size = record_bytes(value, key, event_time_ms, pairs, self.record_bytes_max)
            batch = self._batch_of(kind)
            batch.add_columns(key, event_time_ms, pairs)
        values = batch.values
        slot = len(values)
        values.append(value)
        batch.nbytes += size + RECORD_OVERHEAD_BYTES
        if batch.nbytes >= self._batch_bytes:
            self._send_open()
        elif not slot:
            self._begin_linger(batch)
        return Ticket(batch, slot)

    def take_many(
        self, columns: RecordColumns, sizes: Sequence[int], kind: BatchKind = BatchKind.PLAIN
    ) -> tuple[int, Ticket, Ticket]:
        """Takes as many of these records, from the first on, as fit the open batch.

        Returns their number, and the tickets of the first and the last. There must be room. `sizes`
        are those of `many_bytes`; for `kind` see `take`.
        """
        batch = self._batch_of(kind)
        slot = len(batch.values)
        budget = self._batch_bytes - batch.nbytes
        count, taken = first_to_fill(sizes, budget)
        batch.extend(columns.part(0, count))
        batch.nbytes += taken
        if taken >= budget:
            self._send_open()
        elif not slot:
            self._begin_linger(batch)
        return count, Ticket(batch, slot), Ticket(batch, slot + count - 1)

    def open_for(self, producer_id: int, sequence: int) -> Batch:
        """Returns the batch for the producer's next record, which has this producer sequence."""
        batch = self._open
        if batch.producer_id != producer_id:
            batch = self._begin_batch(BatchKind.PRODUCED, producer_id, sequence)
        expected = batch.producer_sequence + len(batch.values)
        assert sequence == expected, f"producer {producer_id}: {sequence} after {expected - 1}"
        return batch

    def open_conditional(self) -> None:
        """Opens a batch for records that must get the sequence they were taken for. There may be
        no room afterwards: the batch before it is sent."""
        if self._open.kind is not BatchKind.CONDITIONAL:
            self._begin_batch(BatchKind.CONDITIONAL)

    def check_sequence(self, expected: int) -> None:
        """Raises SequenceMismatch if the next record will not get this sequence."""
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
            await self._room_waiters.park()
        if self.error is not None or self._closing is not None:
            raise self.refusal()

    async def flush(self) -> None:
        """Sends the open batch; returns when all records taken so far are durable.

        Raises the writer's error, and SequenceMismatch if a conditional record was refused.
        """
        await self.drain()
        sender = self.sender
        refused, sender.refused = sender.refused, None
        if refused is not None:
            raise copy.copy(refused)

    async def drain(self) -> None:
        """Does as `flush`, but leaves a refusal in `sender.refused`."""
        if self.error is not None:
            raise copy.copy(self.error)
        if self._open.values:
            self._send_open()
        await self.sender.wait_pending()

    async def finish(self, reason: LedgerError) -> None:
        """Refuses new records with `reason`; returns when all those taken before are durable."""
        if self._closing is None:
            self._closing = reason
        self.has_room = False
        self._room_waiters.unpark_all()
        await self.drain()

    # Batches

    def _batch_of(self, kind: BatchKind) -> Batch:
        """Returns the open batch if it is of this kind, and begins another one otherwise."""
        batch = self._open
        if batch.kind is kind:
            return batch
        assert kind is not BatchKind.PRODUCED, "no batch was opened for the producer"
        return self._begin_batch(kind)

    def _begin_batch(self, kind: BatchKind, producer_id: int = 0, sequence: int = 0) -> Batch:
        """Sends the open batch if it has records, and returns the next one, for these records."""
        if self._open.values:
            self._send_open()
        batch = self._open
        batch.kind, batch.producer_id, batch.producer_sequence = kind, producer_id, sequence
        # Plain records take the slow path, which begins a batch of their own.
        self._plain_bytes_max = self.record_bytes_max if kind is BatchKind.PLAIN else -1
        return batch

    def _send_open(self) -> None:
        """Seals the open batch and sends it, or leaves it ready to be sent."""
        batch, self._open = self._open, Batch()
        # Append times never decrease, whatever the clocks of writers do: seeking relies on it.
        self.last_time_ms = max(self.last_time_ms, self._now_ms())
        if batch.kind is not BatchKind.PLAIN:
            self._plain_bytes_max = self.record_bytes_max
        sender = self.sender
        batch.seal(
            self._next_sequence, self.last_time_ms, self._compression,
            has_producers_before=sender.producers.add(batch.producer_id),
        )  # fmt: skip
        self._next_sequence += batch.count
        nbytes = len(batch.payload)
        sender.send(batch)
        is_throttled = self._throttle.has_quota and self._throttle.take(nbytes, self.nursery)
        if is_throttled or sender.unconfirmed_bytes >= self.pending_bytes_max:
            self.has_room = False

    def _use_linger(self, linger_s: float) -> None:
        """Applies another linger time to the open batch, too: it must not wait for a deadline that
        no longer holds, nor for a confirmation that does not come."""
        is_other, self._linger_s = linger_s != self._linger_s, linger_s
        if is_other and self._open.values:
            self._begin_linger(self._open)
            self._linger.cancel()

    def _begin_linger(self, batch: Batch) -> None:
        if self._linger_s:
            batch.deadline = trio.current_time() + self._linger_s
        elif len(self._sent) >= BUSY_ENTRIES:
            return  # the next confirmation sends it
        self._linger_slot.unpark()

    async def run_linger(self) -> None:
        """Sends the open batch at its deadline; one task for the life of the writer."""
        while True:
            is_busy = not self._linger_s and len(self._sent) >= BUSY_ENTRIES
            if is_busy or not self._open.values:
                await self._linger_slot.park()
            while self._linger_s and self._open.values:
                remaining_s = self._open.deadline - trio.current_time()
                if remaining_s <= 0:
                    break
                with trio.CancelScope() as self._linger:
                    await trio.sleep(remaining_s)
            if self._open.values:
                self.sender.send_after(self._send_open)

    # Room

    def _settled(self) -> None:
        """Sends the open batch if little is in flight, and admits callers if there is room."""
        if (
            self._open.values
            and not self._linger_s
            and not self.sender.ready
            and len(self._sent) < BUSY_ENTRIES
        ):
            self._send_open()
        if not self.has_room:
            self._update_room()

    def _update_room(self) -> None:
        is_over = self._closing is not None or self.error is not None
        if is_over or self._throttle.is_active:
            return
        self.has_room = self.sender.unconfirmed_bytes < self.pending_bytes_max
        if self.has_room:
            self._room_waiters.unpark_all()

    def fail(self, error: LedgerError) -> None:
        """Ends the writer: every record that is not confirmed gets this error, and so does every
        waiting task."""
        if self.error is not None:
            return
        self.error = error
        self.has_room = False
        self._throttle.use_quota(None)
        self.sender.fail(error)
        self._open.fail(error)
        self._open = Batch()
        self._room_waiters.unpark_all()

    def refusal(self) -> Exception:
        """Returns the error to raise while there is no room."""
        if self.error is not None:
            # A new exception each time: one instance raised in many tasks mixes tracebacks.
            return copy.copy(self.error)
        if self._closing is not None:
            return copy.copy(self._closing)
        return trio.WouldBlock()
