"""Producer: appends numbered records so that a retry is never a duplicate, and never dropped.

The stream itself stores how far each producer came, whichever writer wrote it; a retry of a record
that is still in flight waits for the first try. core/producers.py decides which records are new;
accumulator.py puts them into batches of their own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from datetime import datetime

import trio

from stream.core.arguments import Time, columns_of, header_pairs, to_ms
from stream.core.entry.encoder import Headers
from stream.core.entry.sizes import many_bytes, record_bytes
from stream.core.metadata.streams import ProducerState
from stream.core.position import Position
from stream.core.producers import ProducerLog
from stream.writing.accumulator import RecordAccumulator
from stream.writing.batch import Batch, BatchKind, Ticket

_STEP_RECORDS = 8192


class Producer:
    """Made by `StreamWriter.producer`; ends with its writer.

    A producer numbers its records from 0 without gaps. Guarantees: a record is in the stream once,
    however often it is appended, by whatever writers; records of a producer are in the order of
    their numbers. After an error whose outcome is unknown, open a writer, get the producer again
    and append from `last_sequence + 1` on, or from any record before it: known ones are skipped.
    """

    def __init__(
        self, stream: str, name: str, state: ProducerState, accumulator: RecordAccumulator
    ) -> None:
        self.name = name
        self._log = ProducerLog(stream, name, state.producer_id, state.last_sequence)
        self._durable = state.last_sequence
        self._accumulator = accumulator
        self._batches: deque[Batch] = deque()
        """Batches with records of ours that were not durable when we last looked."""

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record that is durable in the stream; -1 for none."""
        self._settle()
        return self._durable

    @property
    def next_sequence(self) -> int:
        """Sequence of the next record; all before it were taken."""
        return self._log.next_sequence

    def append_nowait(
        self,
        value: bytes,
        sequence: int,
        *,
        key: bytes | None = None,
        event_time_ms: Time | None = None,
        headers: Headers | None = None,
    ) -> Ticket | None:
        """Takes a record and returns at once; `await ticket.wait()` returns its position.

        Returns the ticket of the first try if that is still in flight, and None if the record was
        durable before. Raises ProducerGap, and the errors of `StreamWriter.append_nowait`.
        """
        if self._log.known(sequence):
            return self._earlier_ticket(sequence)
        accumulator, producer_id = self._accumulator, self._log.producer_id
        if not accumulator.has_room:
            raise accumulator.refusal()
        pairs = None if headers is None else header_pairs(headers)
        time_ms = to_ms(event_time_ms) if isinstance(event_time_ms, datetime) else event_time_ms
        # An invalid record is refused before another batch is sent to begin one for it.
        record_bytes(value, key, time_ms, pairs, accumulator.record_bytes_max)
        batch = accumulator.open_for(producer_id, sequence)
        # May still raise WouldBlock: the batch that was sent to begin this one took the room.
        ticket = accumulator.take(value, key, time_ms, pairs, BatchKind.PRODUCED)
        self._taken(batch, sequence, 1)
        return ticket

    def __repr__(self) -> str:
        return f"<Producer {self.name!r}, next sequence {self.next_sequence}>"

    async def append(
        self,
        value: bytes,
        sequence: int,
        *,
        key: bytes | None = None,
        event_time_ms: Time | None = None,
        headers: Headers | None = None,
    ) -> Position | None:
        """Appends the record with this number; returns when it is durable.

        Returns its position, or None if it was there before and its position is no longer known.
        Waits for an earlier try of the same record that is still in flight. Raises ProducerGap if
        a record before it is missing (concurrent calls must be made in order), and the errors of
        `StreamWriter.append`.
        """
        while True:
            try:
                ticket = self.append_nowait(
                    value, sequence, key=key, event_time_ms=event_time_ms, headers=headers
                )
                break
            except trio.WouldBlock:
                await self._accumulator.wait_room()
        if ticket is None:
            await trio.lowlevel.checkpoint()
            return None
        return await ticket.wait()

    async def append_many(
        self,
        values: Iterable[bytes],
        first_sequence: int,
        *,
        keys: Iterable[bytes | None] | None = None,
        event_times: Iterable[Time | None] | None = None,
        headers: Iterable[Headers | None] | None = None,
    ) -> tuple[Position, Position] | None:
        """Appends records numbered from `first_sequence` on; returns when all are durable.

        Records at the front that were appended before are skipped. Returns the positions of the
        first and the last of the others, None if there are none. Raises the same as `append`.
        """
        accumulator, log = self._accumulator, self._log
        columns = columns_of(values, keys, event_times, headers)
        sizes = many_bytes(columns, accumulator.record_bytes_max)
        first: Ticket | None = None
        last: Ticket | None = None
        begin = 0
        while begin < len(sizes):
            # Checked again each time: another task may have appended the same records meanwhile.
            if known := log.known(first_sequence + begin, len(sizes) - begin):
                begin += known
                last = self._earlier_ticket(first_sequence + begin - 1)
                continue
            if not accumulator.has_room:
                await accumulator.wait_room()
                continue
            stop = begin + _STEP_RECORDS
            batch = accumulator.open_for(log.producer_id, first_sequence + begin)
            count, ticket, last = accumulator.take_many(
                columns.part(begin, stop), sizes[begin:stop], BatchKind.PRODUCED
            )
            self._taken(batch, first_sequence + begin, count)
            first = first or ticket
            begin += count
        if last is None:
            await trio.lowlevel.checkpoint()
            return None
        end = await last.wait()
        return None if first is None else (await first.wait(), end)

    def _taken(self, batch: Batch, sequence: int, count: int) -> None:
        self._log.taken(sequence, count)
        if not self._batches or self._batches[-1] is not batch:
            self._settle()
            self._batches.append(batch)

    def _settle(self) -> None:
        """Forgets batches that are durable. They become so in order."""
        batches = self._batches
        while batches and batches[0].is_confirmed:
            batch = batches.popleft()
            self._durable = batch.producer_sequence + batch.count - 1

    def _earlier_ticket(self, sequence: int) -> Ticket | None:
        """Returns the ticket of a record that was taken before, None if it is durable."""
        self._settle()
        for batch in reversed(self._batches):
            if batch.producer_sequence <= sequence:
                return Ticket(batch, sequence - batch.producer_sequence)
        return None
