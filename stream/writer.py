"""StreamWriter: appends records to a stream; its only writer at its epoch.

The public face of two others: outbox.py gathers, sends and confirms; segment_changes.py takes
over, rolls, repairs and seals. Nothing is decided here.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from ledger.errors import InvalidArgument, LedgerClosed, LedgerError
from ledger.metastore.tasks import open_background
from stream.batch import Ticket
from stream.core.entry_encoder import Headers
from stream.core.position import Position
from stream.core.record_sizes import many_bytes
from stream.open_segment import StreamWriterStatistics, WriterOptions
from stream.outbox import Outbox
from stream.segment_changes import SegmentChanges
from stream.succession import StreamLedgers

_STEP_RECORDS = 8192
"""Records of one `append_many` looked at together."""


class StreamWriter:
    """Made by `Namespace.writer`; an `async with` block closes it.

    Guarantees: records are confirmed in the order they were appended; a confirmed record is
    durable on its ack quorum and never changes its position. After an error the writer stays
    failed; records not confirmed by then are *unknown*.
    """

    def __init__(self, stream: str, outbox: Outbox, changes: SegmentChanges) -> None:
        self.stream = stream
        self._outbox = outbox
        self._changes = changes

    @property
    def epoch(self) -> int:
        """How many writers the stream has had, this one included."""
        return self._changes.epoch

    @property
    def error(self) -> LedgerError | None:
        """Why the writer failed, if it did; LedgerClosed after it was closed."""
        return self._outbox.error

    @property
    def has_room(self) -> bool:
        """Whether `append_nowait` would take a record now."""
        return self._outbox.has_room

    def append_nowait(
        self,
        value: bytes,
        key: bytes | None = None,
        event_time_ms: int | None = None,
        headers: Headers | None = None,
    ) -> Ticket:
        """Takes a record and returns at once; `await ticket.wait()` gives its position.

        `headers` are pairs of a name and bytes. Raises trio.WouldBlock when too much is
        unconfirmed (then `await wait_room()`), InvalidArgument if the record is over 1 MiB, and
        the writer's error if it failed.
        """
        return self._outbox.take(value, key, event_time_ms, headers)

    async def append(
        self,
        value: bytes,
        key: bytes | None = None,
        event_time_ms: int | None = None,
        headers: Headers | None = None,
    ) -> Position:
        """Appends a record; returns its position once it is durable.

        Waits while too much is unconfirmed. If cancelled, the record may be in the stream all
        the same. Raises TakenOver (another writer; also a LedgerFenced), NotEnoughBookies,
        InvalidArgument, LedgerClosed.
        """
        outbox = self._outbox
        while not outbox.has_room:
            await outbox.wait_room()
        return await outbox.take(value, key, event_time_ms, headers).wait()

    async def append_many(
        self,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None = None,
        event_times: Sequence[int | None] | None = None,
    ) -> tuple[Position, Position]:
        """Appends records in order; returns the first and the last position when all are durable.

        Records of other callers may come between. `keys` and `event_times` (ms), when given, have
        one item per value. Raises as `append`; InvalidArgument before anything is taken.
        """
        sizes = many_bytes(values, keys, event_times)
        if not sizes:
            raise InvalidArgument("append_many needs at least one record")
        outbox = self._outbox
        first: Ticket | None = None
        begin = 0
        while begin < len(sizes):
            while not outbox.has_room:
                await outbox.wait_room()
            stop = begin + _STEP_RECORDS
            count, ticket, last = outbox.take_many(
                values[begin:stop],
                None if keys is None else keys[begin:stop],
                None if event_times is None else event_times[begin:stop],
                sizes[begin:stop],
            )
            first = first or ticket
            begin += count
        assert first is not None, "at least one record was taken"
        end = await last.wait()
        return await first.wait(), end

    async def wait_room(self) -> None:
        """Returns when `append_nowait` may take a record; raises the writer's error."""
        await self._outbox.wait_room()

    async def flush(self) -> None:
        """Sends what has gathered; returns when all records taken so far are durable.

        Raises the writer's error if it failed.
        """
        await self._outbox.flush()

    async def close(self) -> None:
        """Waits until all records taken are durable, then seals the segment. Idempotent.

        Raises the writer's error if it failed. Called by the end of the `async with` block.
        """
        if isinstance(self.error, LedgerClosed):
            return
        if self.error is not None:
            raise copy.copy(self.error)
        await self._changes.close()

    def statistics(self) -> StreamWriterStatistics:
        """Counters since the writer was opened."""
        outbox = self._outbox
        return StreamWriterStatistics(
            epoch=self.epoch,
            segment=-1 if outbox.segment is None else outbox.segment.number,
            records=outbox.records_confirmed,
            entries=outbox.entries_confirmed,
            bytes_pending=outbox.pending_bytes,
            rolls=self._changes.rolls,
            repairs=self._changes.repairs,
        )


@asynccontextmanager
async def open_writer(
    ledgers: StreamLedgers, options: WriterOptions
) -> AsyncIterator[StreamWriter]:
    """Takes the stream over and gives its writer, which is closed at the end of the block.

    After an exception in the block the segment is left open for the next writer to recover.
    """
    policy, _ = await ledgers.store.read_namespace(ledgers.namespace)
    outbox = Outbox(ledgers.stream, policy, options, ledgers.client.now_ms)
    changes = SegmentChanges(outbox, ledgers, policy, options)
    writer = StreamWriter(ledgers.stream, outbox, changes)
    async with open_background() as nursery:
        await changes.take_over()
        nursery.start_soon(outbox.run_linger)
        nursery.start_soon(changes.run)
        try:
            yield writer
        except BaseException:
            outbox.fail(LedgerClosed(f"the writer of stream {ledgers.stream!r} was abandoned"))
            raise
        await writer.close()
