"""stream.writing.writer for asyncio.

Generated from stream/writing/writer.py by `make faces`. Not to be edited.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, overload

from trio import WouldBlock

from ledger.errors import LedgerError
from ledger.runtime.opening import Opened
from stream.aio.bridge import Bridge
from stream.aio.producer import Producer
from stream.aio.tickets import Appending, Ticket
from stream.bridge.writing import StreamAppends
from stream.core.arguments import Time, columns_of
from stream.core.entry.encoder import Headers
from stream.core.position import Position
from stream.core.receipt import Receipt
from stream.writing.open_segment import StreamWriterStatistics
from stream.writing.writer import StreamWriter as TrioStreamWriter


class StreamWriter(Appending, Opened):
    """Made by `Namespace.writer`; an `async with` block closes it.

    Guarantees: records are confirmed in the order they were appended; a confirmed record is
    durable on its ack quorum and never changes its position. After an error the writer stays
    failed; records not confirmed by then are *unknown*.
    """

    _bridge: Bridge
    _inner: TrioStreamWriter

    _appends: StreamAppends

    @classmethod
    def _of(cls, bridge: Bridge, holder: StreamAppends) -> StreamWriter:
        made = cls.__new__(cls)
        made._bridge, made._inner = bridge, holder.writer
        made._appends = holder
        return made

    @property
    def stream(self) -> str:
        return self._inner.stream

    @property
    def epoch(self) -> int:
        """The number of writers that the stream has had, including this one."""
        return self._inner.epoch

    @property
    def error(self) -> LedgerError | None:
        """Why the writer failed, if it did; LedgerClosed after it was closed, HandedOver after it
        handed the stream over to another writer that asked for it."""
        return self._inner.error

    @property
    def next_sequence(self) -> int:
        """Sequence of the record that is taken next: the value `expected_sequence` must have."""
        return self._inner.next_sequence

    @property
    def has_room(self) -> bool:
        """Whether `append_nowait` would accept a record now."""
        return self._appends.has_room and self._inner.error is None

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
        Raises WouldBlock when too much is unconfirmed or the quota is used up (then
        `await wait_room()`), SequenceMismatch, InvalidArgument if the record is too large (1 MiB,
        or `record_bytes_max` of the namespace), and the writer's error if it failed.
        """
        if not self._appends.has_room:
            raise WouldBlock
        ticket = Ticket(
            self._bridge, self._appends, value, key, event_time_ms, headers, expected_sequence
        )
        self._appends.submit(ticket)
        return ticket

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
        if receipt:
            return await self._bridge.call(
                lambda: self._appends.in_turn(
                    lambda: self._inner.append(
                        value,
                        key,
                        event_time_ms,
                        headers,
                        expected_sequence=expected_sequence,
                        receipt=True,
                    )
                )
            )
        if expected_sequence is not None:
            return await self._bridge.call(
                lambda: self._appends.in_turn(
                    lambda: self._inner.append(
                        value, key, event_time_ms, headers, expected_sequence=expected_sequence
                    )
                )
            )
        ticket = Ticket(
            self._bridge, self._appends, value, key, event_time_ms, headers, expected_sequence
        )
        await self._append(ticket)
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
        values, keys, event_times, headers = columns_of(values, keys, event_times, headers)
        return await self._bridge.call(
            lambda: self._appends.in_turn(
                lambda: self._inner.append_many(
                    values, keys, event_times, headers=headers, expected_sequence=expected_sequence
                )
            )
        )

    async def producer(self, name: str) -> Producer:
        """Returns the idempotent producer of this name, which the stream stores from now on.

        Continue after its `last_sequence`. Each call returns the same object. Raises
        TooManyProducers, TakenOver, MetadataUnavailable, and the writer's error if it failed.
        """
        inner = await self._bridge.call(
            lambda: self._appends.in_turn(lambda: self._inner.producer(name))
        )
        return Producer._of(self._bridge, inner, self._appends)

    async def wait_room(self) -> None:
        """Returns when `append_nowait` may take a record; raises the writer's error."""
        await self._wait_room()

    async def flush(self) -> None:
        """Sends the records gathered so far; returns when all records taken are durable.

        Raises the writer's error if it failed; SequenceMismatch if a sink committed a batch before
        a conditional record that no caller waits for.
        """
        await self._bridge.call(lambda: self._appends.settle(lambda: self._inner.flush()))

    async def close(self) -> None:
        """Waits until all records taken are durable, then seals the segment; the end of the block
        calls it. Idempotent. Does nothing if the stream was handed over. Raises the writer's error
        if it failed, and SequenceMismatch like `flush`."""
        try:
            await self._bridge.call(lambda: self._appends.settle(lambda: self._inner.close()))
        finally:
            await self._leave()

    def statistics(self) -> StreamWriterStatistics:
        """Counters since the writer was opened."""
        return self._inner.statistics()
