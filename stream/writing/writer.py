"""StreamWriter: appends records to a stream, as the only writer at its epoch.

The public interface of two others: accumulator.py gathers records, batch_sender.py sends and
confirms them; segment_lifecycle.py takes over, rolls, repairs and seals. It decides nothing.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Literal, overload

import trio

from ledger.errors import InvalidArgument, LedgerClosed, LedgerError
from ledger.runtime.background import open_background
from ledger.runtime.opening import Opened
from stream.core.arguments import Time, columns_of
from stream.core.entry.encoder import Headers
from stream.core.entry.sizes import many_bytes
from stream.core.names import check_name
from stream.core.position import Position
from stream.core.receipt import Receipt
from stream.errors import HandedOver
from stream.takeover import StreamLedgers
from stream.writing.accumulator import RecordAccumulator
from stream.writing.batch import BatchKind, Ticket
from stream.writing.conditional import open_conditional
from stream.writing.handover import handover
from stream.writing.open_segment import StreamWriterStatistics, WriterOptions
from stream.writing.policy_watch import PolicyWatch
from stream.writing.producer import Producer
from stream.writing.receipt import ReceiptTicket
from stream.writing.segment_lifecycle import SegmentLifecycle

_STEP_RECORDS = 8192
"""Records of one `append_many` that are taken in one step."""


class StreamWriter(Opened):
    """Made by `Namespace.writer`; an `async with` block closes it.

    Guarantees: records are confirmed in the order they were appended; a confirmed record is
    durable on its ack quorum and never changes its position. After an error the writer stays
    failed; records not confirmed by then are *unknown*.
    """

    def __init__(
        self, ledgers: StreamLedgers, accumulator: RecordAccumulator, lifecycle: SegmentLifecycle
    ) -> None:
        self.stream = ledgers.stream
        self._ledgers = ledgers
        self._accumulator = accumulator
        self._lifecycle = lifecycle
        self._producers: dict[str, Producer] = {}

    @property
    def epoch(self) -> int:
        """The number of writers that the stream has had, including this one."""
        return self._lifecycle.epoch

    @property
    def error(self) -> LedgerError | None:
        """Why the writer failed, if it did; LedgerClosed after it was closed, HandedOver after it
        handed the stream over to another writer that asked for it."""
        return self._accumulator.error

    @property
    def next_sequence(self) -> int:
        """Sequence of the record that is taken next: the value `expected_sequence` must have."""
        return self._accumulator.next_sequence

    @property
    def has_room(self) -> bool:
        """Whether `append_nowait` would accept a record now."""
        return self._accumulator.has_room

    def append_nowait(
        self,
        value: bytes,
        key: bytes | None = None,
        event_time_ms: Time | None = None,
        headers: Headers | None = None,
        *,
        expected_sequence: int | None = None,
    ) -> Ticket:
        """Takes a record and returns at once; `await ticket.wait()` returns its position.

        `headers` are pairs of a name and bytes. With `expected_sequence` the record is taken only
        if it gets this sequence number (the record that has it instead may not be durable yet).
        Raises trio.WouldBlock when too much is unconfirmed or the quota is used up (then
        `await wait_room()`), SequenceMismatch, InvalidArgument if the record is too large (1 MiB,
        or `record_bytes_max` of the namespace), and the writer's error if it failed.
        """
        if expected_sequence is None:
            return self._accumulator.take(value, key, event_time_ms, headers)
        self._accumulator.check_sequence(expected_sequence)
        self._accumulator.open_conditional()
        return self._accumulator.take(value, key, event_time_ms, headers, BatchKind.CONDITIONAL)

    def receipt_of(self, ticket: Ticket) -> ReceiptTicket:
        """Requests a receipt of a record that was just taken; `await .receipt()` returns it.

        The entries of other records pay nothing for it. Raises InvalidArgument if the record is
        confirmed already and no receipt was requested before that.
        """
        return ReceiptTicket(ticket, self._ledgers, self._lifecycle.options.receipt_wait_s)

    @overload
    async def append(
        self,
        value: bytes,
        key: bytes | None = None,
        event_time_ms: Time | None = None,
        headers: Headers | None = None,
        *,
        expected_sequence: int | None = None,
        receipt: Literal[False] = False,
    ) -> Position: ...
    @overload
    async def append(
        self,
        value: bytes,
        key: bytes | None = None,
        event_time_ms: Time | None = None,
        headers: Headers | None = None,
        *,
        expected_sequence: int | None = None,
        receipt: Literal[True],
    ) -> Receipt: ...
    async def append(
        self,
        value: bytes,
        key: bytes | None = None,
        event_time_ms: Time | None = None,
        headers: Headers | None = None,
        *,
        expected_sequence: int | None = None,
        receipt: bool = False,
    ) -> Position | Receipt:
        """Appends a record; returns its position once it is durable, or a receipt that says which
        bookies fsynced it.

        Waits while too much is unconfirmed, or the quota is used up. If cancelled, the record may
        still be in the stream; a retry with the same `expected_sequence` raises SequenceMismatch
        if it is. Raises TakenOver (another writer; also a LedgerFenced), SequenceMismatch (nothing
        was appended), NotEnoughBookies, InvalidArgument, LedgerClosed.
        """
        accumulator = self._accumulator
        while not accumulator.has_room:
            await accumulator.wait_room()
        if expected_sequence is None:
            ticket = accumulator.take(value, key, event_time_ms, headers)
        else:
            await open_conditional(accumulator, expected_sequence)
            ticket = accumulator.take(value, key, event_time_ms, headers, BatchKind.CONDITIONAL)
        if receipt:
            return await self.receipt_of(ticket).receipt()
        return await ticket.wait()

    async def append_many(
        self,
        values: Iterable[bytes],
        keys: Iterable[bytes | None] | None = None,
        event_times: Iterable[Time | None] | None = None,
        *,
        headers: Iterable[Headers | None] | None = None,
        expected_sequence: int | None = None,
    ) -> tuple[Position, Position]:
        """Appends records in order; returns the first and the last position when all are durable.

        Records of other callers may come between, unless `expected_sequence` gives the sequence
        number of the first one: then they follow each other, and together must fit
        `WriterOptions.pending_bytes_max`. `keys`, `event_times` (ms) and `headers`, when given,
        have one item per value. Raises as `append`; InvalidArgument before any record is taken.
        """
        accumulator = self._accumulator
        columns = columns_of(values, keys, event_times, headers)
        sizes = many_bytes(columns, accumulator.record_bytes_max)
        if not sizes:
            raise InvalidArgument("append_many needs at least one record")
        kind = BatchKind.PLAIN
        if expected_sequence is not None:
            await open_conditional(accumulator, expected_sequence, sum(sizes))
            kind = BatchKind.CONDITIONAL
        first: Ticket | None = None
        begin = 0
        while begin < len(sizes):
            # Conditional ones are taken together: nothing is awaited from the check to here.
            while expected_sequence is None and not accumulator.has_room:
                await accumulator.wait_room()
            stop = begin + _STEP_RECORDS
            count, ticket, last = accumulator.take_many(
                columns.part(begin, stop), sizes[begin:stop], kind
            )
            first = first or ticket
            begin += count
        assert first is not None, "at least one record was taken"
        end = await last.wait()
        return await first.wait(), end

    async def producer(self, name: str) -> Producer:
        """Returns the idempotent producer of this name, which the stream stores from now on.

        Continue after its `last_sequence`. Each call returns the same object. Raises
        TooManyProducers, TakenOver, MetadataUnavailable, and the writer's error if it failed.
        """
        known = self._producers.get(check_name(name, "producer"))
        if known is not None:
            await trio.lowlevel.checkpoint()
            return known
        if self.error is not None:
            raise copy.copy(self.error)
        state = await self._lifecycle.producer_state(name)
        # Two tasks that call it at once both get the producer of the first.
        fresh = Producer(self.stream, name, state, self._accumulator)
        return self._producers.setdefault(name, fresh)

    async def wait_room(self) -> None:
        """Returns when `append_nowait` may take a record; raises the writer's error."""
        await self._accumulator.wait_room()

    async def flush(self) -> None:
        """Sends the records gathered so far; returns when all records taken are durable.

        Raises the writer's error if it failed; SequenceMismatch if a sink committed a batch before
        a conditional record that no caller waits for.
        """
        await self._accumulator.flush()

    async def close(self) -> None:
        """Waits until all records taken are durable, then seals the segment; the end of the block
        calls it. Idempotent. Does nothing if the stream was handed over. Raises the writer's error
        if it failed, and SequenceMismatch like `flush`."""
        try:
            if self.error is None:
                await self._lifecycle.close()
            elif not isinstance(self.error, (LedgerClosed, HandedOver)):
                raise copy.copy(self.error)
        finally:
            await self._leave()

    def _description(self) -> str:
        state = self.error or f"at sequence {self.next_sequence}"
        return f"of {self.stream!r}, epoch {self.epoch}, {state}"

    def statistics(self) -> StreamWriterStatistics:
        """Counters since the writer was opened."""
        sender = self._accumulator.sender
        return StreamWriterStatistics(
            epoch=self.epoch,
            segment=-1 if sender.segment is None else sender.segment.number,
            records=sender.records_confirmed,
            entries=sender.entries_confirmed,
            bytes_pending=self._accumulator.pending_bytes,
            rolls=self._lifecycle.rolls,
            repairs=self._lifecycle.repairs,
        )


@asynccontextmanager
async def open_writer(
    ledgers: StreamLedgers,
    options: WriterOptions,
    watch: PolicyWatch,
    *,
    if_epoch: int | None = None,
    hand_over_s: float | None = None,
) -> AsyncIterator[StreamWriter]:
    """Takes the stream over and yields its writer, which is closed at the end of the block; after
    an exception in it the segment is left open for the next writer to recover."""
    policy, _ = await ledgers.store.read_namespace(ledgers.namespace)
    accumulator = RecordAccumulator(ledgers.stream, policy, options, ledgers.client.now_ms)
    lifecycle = SegmentLifecycle(accumulator, ledgers, policy, options)
    writer = StreamWriter(ledgers, accumulator, lifecycle)
    async with open_background() as nursery:
        accumulator.nursery = nursery
        # Before the takeover: from then on no request to the writer may be missed.
        watch.join(lifecycle)
        try:
            if hand_over_s is None:
                await lifecycle.take_over(if_epoch)
            else:
                async with handover(ledgers, hand_over_s):
                    await lifecycle.take_over(if_epoch)
            nursery.start_soon(accumulator.run_linger)
            nursery.start_soon(lifecycle.run)
            try:
                yield writer
                await writer.close()
            except BaseException:
                # Also if closing was cancelled: no waiting task may wait forever.
                accumulator.fail(
                    LedgerClosed(f"the writer of stream {ledgers.stream!r} was abandoned")
                )
                raise
        finally:
            watch.leave(lifecycle)
