"""Records that gather into one entry, and the ticket a caller holds for one of them.

A batch knows who waits for it and wakes all of them at once; it never sends anything itself.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from ledger.errors import LedgerError
from stream.core.entry.compression import Compression
from stream.core.entry.encoder import Headers, encode
from stream.core.entry.format import restamped
from stream.core.position import Position
from stream.errors import SequenceMismatch

if TYPE_CHECKING:
    from ledger.writing.receipts import EntryAcks
    from stream.writing.open_segment import OpenSegment

T = TypeVar("T")

CONDITIONAL: Final = -1
"""In the place of a producer: records that were taken only because of their sequence. They are in
batches of their own: when a sink's batch comes between they are refused, and nothing else is."""


class Batch:
    """Gathering, then sealed (encoded), then sent (has an entry id), then confirmed or failed."""

    __slots__ = (
        "acks", "append_time_ms", "count", "deadline", "entry", "error", "event_times",
        "first_sequence", "has_event_times", "headers", "is_confirmed", "is_watched", "keys",
        "nbytes", "payload", "producer_id", "producer_sequence", "segment", "values", "waiters",
    )  # fmt: skip

    def __init__(self) -> None:
        self.values: list[bytes] = []
        # Columns appear with the first record that has one, and are filled up when sealed.
        self.keys: list[bytes | None] | None = None
        self.event_times: list[int | None] | None = None
        self.headers: list[Headers | None] | None = None
        self.producer_id = 0
        """Whose records these are, all of them; 0 for those of no producer, or `CONDITIONAL`."""
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
        self.waiters: dict[trio.lowlevel.Task, bool] = {}
        """Who waits, and whether for a record: those who flush wait for whatever there is."""
        self.is_watched = False
        """Somebody wants to know who acknowledges its entry: `acks`, once it is sent."""
        self.acks: EntryAcks | None = None

    def add_columns(
        self, key: bytes | None, event_time_ms: int | None, headers: Headers | None
    ) -> None:
        """What the record about to be added to `values` has beside its value."""
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

    def extend_columns(
        self, keys: Sequence[bytes | None] | None, event_times: Sequence[int | None] | None
    ) -> None:
        """The same for many records about to be added."""
        slot = len(self.values)
        if keys is not None:
            self.keys = _filled(self.keys, slot)
            self.keys.extend(keys)
        if event_times is not None:
            self.event_times = _filled(self.event_times, slot)
            self.event_times.extend(event_times)

    def seal(
        self,
        first_sequence: int,
        append_time_ms: int,
        compression: Compression,
        *,
        has_producers_before: bool,
    ) -> None:
        """Encodes the payload; the lists of records are let go."""
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
            producer_id=max(0, self.producer_id),
            producer_sequence=self.producer_sequence,
            has_producers_before=has_producers_before,
        )
        self.has_event_times = self.event_times is not None
        self.values = []
        self.keys = self.event_times = self.headers = None

    def restamp(self, first_sequence: int, append_time_ms: int) -> None:
        """It was sealed, and comes to lie behind records that were committed since."""
        self.first_sequence = first_sequence
        self.append_time_ms = max(self.append_time_ms, append_time_ms)
        self.payload = restamped(self.payload, first_sequence, self.append_time_ms)

    def watch_acks(self) -> bool:
        """Who acknowledges its entry is kept, from now on or from when it is sent. False if it is
        confirmed, and was not watched."""
        if self.is_confirmed and not self.is_watched:
            return False
        self.is_watched = True
        segment = self.segment
        # On a ledger that failed it is sent again, or found by recovery.
        if segment is not None and segment.ledger.error is None and segment.confirmed < self.entry:
            self.acks = segment.ledger.watch_acks(self.entry)
        return True

    def confirm(self) -> None:
        """Its entry is durable: wakes everybody who waits for one of its records."""
        self.is_confirmed = True
        self.payload = b""
        self._wake()

    def fail(self, error: LedgerError) -> None:
        """It will never be confirmed by this writer."""
        self.error = error
        self._wake()

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody will hear what becomes of one of its records."""
        return any(self.waiters.values())

    async def ended(self, *, is_for_a_record: bool) -> None:
        """Returns when it is confirmed or failed. Cancelling the wait takes nothing back."""
        if self.is_confirmed or self.error is not None:
            await trio.lowlevel.checkpoint()
            return
        task = trio.lowlevel.current_task()
        self.waiters[task] = is_for_a_record

        def forget(_raise_cancel: object) -> trio.lowlevel.Abort:
            del self.waiters[task]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(forget)

    async def settled(self) -> None:
        """Returns when it is confirmed, or refused alone; raises the writer's error."""
        await self.ended(is_for_a_record=False)
        if self.error is not None and not isinstance(self.error, SequenceMismatch):
            raise copy.copy(self.error)

    def _wake(self) -> None:
        reschedule = trio.lowlevel.reschedule
        for task in self.waiters:
            reschedule(task)
        self.waiters.clear()


def _filled(column: list[T | None] | None, length: int) -> list[T | None]:
    """The column with None for the records up to `length` that had nothing in it."""
    column = [] if column is None else column
    column.extend([None] * (length - len(column)))
    return column


class Ticket:
    """A record on its way. `await ticket.wait()` gives its position once it is durable."""

    __slots__ = ("_batch", "_slot")

    def __init__(self, batch: Batch, slot: int) -> None:
        self._batch = batch
        self._slot = slot

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
        """Sequence number of the record; -1 while its batch is still gathering. Until it is
        confirmed it may still grow: a sink may commit a batch before it."""
        first = self._batch.first_sequence
        return -1 if first < 0 else first + self._slot

    async def wait(self) -> Position:
        """Returns the record's position when it is durable on its ack quorum.

        Raises the writer's error if it failed: the record may or may not be in the stream then.
        Cancelling the wait does not take the record back.
        """
        batch = self._batch
        await batch.ended(is_for_a_record=True)
        if batch.error is not None:
            # A new exception each time: one instance raised in many tasks mixes tracebacks.
            raise copy.copy(batch.error)
        segment = batch.segment
        assert segment is not None, "confirmed, but never sent"
        return Position(segment.number, batch.entry, self._slot)
