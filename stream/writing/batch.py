"""Batch: records that gather into one entry; Ticket: what a caller holds for one of its records.

A batch knows the tasks that wait for it and wakes all of them at once. It must never send anything
itself: batch_sender.py does.
"""

from __future__ import annotations

import copy
import enum
from typing import TypeVar

import trio

from ledger.errors import LedgerError
from ledger.runtime.parking import ParkedTasks
from ledger.writing.receipts import EntryAcks
from stream.core.entry.compression import Compression
from stream.core.entry.encoder import encode
from stream.core.entry.format import restamped
from stream.core.entry.record_columns import HeaderPairs, NullablePairs, RecordColumns
from stream.core.position import Position
from stream.errors import SequenceMismatch
from stream.writing.open_segment import OpenSegment

T = TypeVar("T")


class BatchKind(enum.Enum):
    """What the records of a batch have in common; records of different kinds never share one."""

    PLAIN = enum.auto()
    PRODUCED = enum.auto()
    """Numbered records of one idempotent producer."""
    CONDITIONAL = enum.auto()
    """Records that were taken only because of their sequence. If a sink commits a batch before
    them, they are refused, and no other record is."""


class Batch:
    """First it gathers records, then it is sealed (encoded), then sent (it has an entry id), then
    confirmed or failed."""

    __slots__ = (
        "acks", "append_time_ms", "count", "deadline", "entry", "error", "event_times",
        "first_sequence", "has_event_times", "headers", "is_confirmed", "is_watched", "keys",
        "kind", "nbytes", "payload", "producer_id", "producer_sequence", "segment", "values",
        "waiters",
    )  # fmt: skip

    def __init__(self) -> None:
        self.values: list[bytes] = []
        # A column is created by the first record that has a value in it, and filled up on sealing.
        self.keys: list[bytes | None] | None = None
        self.event_times: list[int | None] | None = None
        self.headers: list[NullablePairs | None] | None = None
        self.kind = BatchKind.PLAIN
        self.producer_id = 0
        """The producer of all its records; 0 if it is not of kind PRODUCED."""
        self.producer_sequence = 0
        self.has_event_times = False
        self.nbytes = 0
        self.count = 0
        self.deadline = 0.0
        self.first_sequence = -1
        self.append_time_ms = -1
        self.payload = b""
        self.segment: OpenSegment | None = None
        self.entry = -1
        self.is_confirmed = False
        self.error: LedgerError | None = None
        self.waiters = ParkedTasks()
        """Tasks that wait for its end. True: for a record of it; False: a flush, for its end."""
        self.is_watched = False
        """A receipt was requested: `acks` is set when the batch is sent."""
        self.acks: EntryAcks | None = None

    def add_columns(
        self, key: bytes | None, event_time_ms: int | None, headers: HeaderPairs | None
    ) -> None:
        """Adds the columns of a record whose value is about to be added to `values`."""
        slot = len(self.values)
        if key is not None:
            self.keys = _filled(self.keys, slot)
            self.keys.append(key)
        if event_time_ms is not None:
            self.event_times = _filled(self.event_times, slot)
            self.event_times.append(event_time_ms)
        if headers:
            self.headers = _filled(self.headers, slot)
            self.headers.append(headers)

    def extend(self, columns: RecordColumns) -> None:
        """Adds many records."""
        values, keys, event_times, headers = columns
        slot = len(self.values)
        if keys is not None:
            self.keys = _filled(self.keys, slot)
            self.keys.extend(keys)
        if event_times is not None:
            self.event_times = _filled(self.event_times, slot)
            self.event_times.extend(event_times)
        if headers is not None:
            self.headers = _filled(self.headers, slot)
            self.headers.extend(headers)
        self.values += values

    def seal(
        self,
        first_sequence: int,
        append_time_ms: int,
        compression: Compression,
        *,
        has_producers_before: bool,
    ) -> None:
        """Encodes the payload and releases the lists of records."""
        count = self.count = len(self.values)
        self.first_sequence = first_sequence
        self.append_time_ms = append_time_ms
        self.payload = encode(
            self.values,
            first_sequence=first_sequence,
            append_time_ms=append_time_ms,
            keys=None if self.keys is None else _filled(self.keys, count),
            event_times=None if self.event_times is None else _filled(self.event_times, count),
            headers=None if self.headers is None else _filled(self.headers, count),
            compression=compression,
            producer_id=self.producer_id,
            producer_sequence=self.producer_sequence,
            has_producers_before=has_producers_before,
        )
        self.has_event_times = self.event_times is not None
        self.values = []
        self.keys = self.event_times = self.headers = None

    def restamp(self, first_sequence: int, append_time_ms: int) -> None:
        """Gives a sealed batch a later first sequence: records were committed before it since."""
        self.first_sequence = first_sequence
        self.append_time_ms = max(self.append_time_ms, append_time_ms)
        self.payload = restamped(self.payload, first_sequence, self.append_time_ms)

    def watch_acks(self) -> bool:
        """Records the bookies that acknowledge its entry, from now on or from when it is sent.

        Returns False if the batch is confirmed and was not watched.
        """
        if self.is_confirmed and not self.is_watched:
            return False
        self.is_watched = True
        segment = self.segment
        # After its ledger failed the batch is sent again, or recovery finds the entry.
        if segment is not None and segment.ledger.error is None and segment.confirmed < self.entry:
            self.acks = segment.ledger.watch_acks(self.entry)
        return True

    def confirm(self) -> None:
        """Its entry is durable: wakes all tasks that wait for one of its records."""
        self.is_confirmed = True
        self.payload = b""
        self.waiters.unpark_all()

    def fail(self, error: LedgerError) -> None:
        """This writer will never confirm the batch: wakes its waiters with this error."""
        self.error = error
        self.waiters.unpark_all()

    @property
    def has_record_waiter(self) -> bool:
        """Whether a task waits for one of its records, and so receives its outcome."""
        return self.waiters.has_mark

    async def wait_settled(self) -> None:
        """Returns when the batch is confirmed, or refused on its own. Raises the writer's error."""
        if self.is_confirmed or self.error is not None:
            await trio.lowlevel.checkpoint()
        else:
            await self.waiters.park()
        if self.error is not None and not isinstance(self.error, SequenceMismatch):
            raise copy.copy(self.error)


def _filled(column: list[T | None] | None, length: int) -> list[T | None]:
    """Returns the column, extended to `length` with None for records without a value in it."""
    column = [] if column is None else column
    column.extend([None] * (length - len(column)))
    return column


class Ticket:
    """A record in flight. `await ticket.wait()` returns its position once it is durable."""

    __slots__ = ("_batch", "_slot")

    def __init__(self, batch: Batch, slot: int) -> None:
        self._batch = batch
        self._slot = slot

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.position or self._batch.error or 'in flight'}>"

    @property
    def is_confirmed(self) -> bool:
        """Whether `wait` would return at once."""
        return self._batch.is_confirmed

    @property
    def position(self) -> Position | None:
        """The record's position; None until it is confirmed."""
        batch = self._batch
        if not batch.is_confirmed or batch.segment is None:
            return None
        return Position(batch.segment.number, batch.entry, self._slot)

    @property
    def sequence(self) -> int:
        """The record's sequence number; -1 while its batch still gathers records. Until the record
        is confirmed the number may grow: a sink may commit a batch before it."""
        first = self._batch.first_sequence
        return -1 if first < 0 else first + self._slot

    async def wait(self) -> Position:
        """Returns the record's position when it is durable on its ack quorum.

        Raises the writer's error if the writer failed: the record may or may not be in the stream
        then. Cancelling the wait does not withdraw the record.
        """
        batch = self._batch
        if batch.is_confirmed or batch.error is not None:
            await trio.lowlevel.checkpoint()
        else:
            await batch.waiters.park(mark=True)
        if batch.error is not None:
            # A new exception each time: one instance raised in many tasks mixes tracebacks.
            raise copy.copy(batch.error)
        segment = batch.segment
        assert segment is not None, "confirmed, but never sent"
        return Position(segment.number, batch.entry, self._slot)
