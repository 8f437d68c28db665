"""Appends: records that callers in other threads submit, and a trio writer takes in order.

All records submitted between two turns of the trio loop cross in one hop; confirmations cross back
in groups. Must never reorder records, nor end a record before the writer has confirmed or refused
it.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TypeVar

import trio

from ledger.errors import LedgerClosed, LedgerError
from ledger.runtime.bridge import Completion, Job, Post, Wake
from stream.core.arguments import Time, header_pairs, to_ms
from stream.core.entry.encoder import Headers
from stream.core.entry.format import RECORD_BYTES_MAX
from stream.core.entry.sizes import RECORD_OVERHEAD_BYTES, record_bytes
from stream.core.position import Position
from stream.writing.batch import Ticket as TrioTicket

T = TypeVar("T")


class PendingRecord(Completion):
    """A record in flight; set when it is durable, refused, or its outcome will stay unknown.

    One object per record, without further ones behind it: garbage collection costs by the number of
    objects. `nbytes` is the size it counts while it is in flight.
    """

    __slots__ = (
        "error", "event_time_ms", "headers", "is_withdrawn", "key", "nbytes", "ticket", "value",
    )  # fmt: skip

    def __repr__(self) -> str:
        state = self.error or (self.outcome() if self.is_set else "in flight")
        return f"<{type(self).__name__} {state}>"

    def __init__(
        self,
        value: bytes,
        key: bytes | None,
        event_time_ms: Time | None,
        headers: Headers | None,
    ) -> None:
        """Raises InvalidArgument or TypeError for a value that can never be a record."""
        # Inlined from `Completion`: one call less per record.
        self.is_set = False
        self.waiters = None
        if (
            value.__class__ is bytes
            and key is None
            and event_time_ms is None
            and headers is None
            and len(value) <= RECORD_BYTES_MAX
        ):
            self.nbytes = len(value) + RECORD_OVERHEAD_BYTES
        else:
            if headers is not None:
                headers = header_pairs(headers)
            if isinstance(event_time_ms, datetime):
                event_time_ms = to_ms(event_time_ms)
            size = record_bytes(value, key, event_time_ms, headers)
            self.nbytes = size + RECORD_OVERHEAD_BYTES
        self.value = value
        self.key = key
        self.event_time_ms = event_time_ms
        self.headers = headers
        self.is_withdrawn = False
        """Its caller was cancelled: it is dropped if no writer has taken it yet."""
        self.ticket: TrioTicket | None = None
        self.error: Exception | None = None

    def take(self) -> TrioTicket | None:
        """In the trio thread: hands the record to its writer. Returns its ticket; None if the
        record is in the stream already. May raise trio.WouldBlock."""
        raise NotImplementedError

    @property
    def position(self) -> Position | None:
        """The record's position; None until it is confirmed."""
        ticket = self.ticket
        return None if ticket is None else ticket.position

    def outcome(self) -> Position | None:
        """Returns its position, None if the stream had it before; raises its error. Must be set."""
        if self.error is not None:
            # A new exception each time: one instance raised in many tasks mixes tracebacks.
            raise copy.copy(self.error)
        return self.position


class Lane:
    """Records whose order is kept, in the trio thread: first offered, then taken, then ended.

    Args:
        wait_room: returns when a refused record may be offered again.
        end: called with records that have ended.
    """

    def __init__(
        self,
        wait_room: Callable[[], Awaitable[None]],
        end: Callable[[Sequence[PendingRecord]], None],
    ) -> None:
        self.offered: deque[PendingRecord] = deque()
        self.taken: deque[PendingRecord] = deque()
        self._wait_room = wait_room
        self._end = end
        self._refused = trio.Event()
        self._has_taken = trio.Event()
        self._has_pushed = trio.Event()
        self._pushed = 0  # records that have left `offered`

    def offer(self, record: PendingRecord) -> None:
        """Adds a record to those that the next `push` hands to the writer."""
        self.offered.append(record)

    def push(self) -> None:
        """Hands records to the writer while it has room."""
        offered, taken = self.offered, self.taken
        offered_before = len(offered)
        ended: list[PendingRecord] = []
        while offered:
            record = offered[0]
            try:
                if record.is_withdrawn:
                    raise LedgerClosed("withdrawn before it was appended")
                ticket = record.ticket = record.take()
            except trio.WouldBlock:
                self._refused.set()
                break
            except Exception as error:  # noqa: BLE001 (the caller gets it)
                record.error = error
                ended.append(offered.popleft())
            else:
                (ended if ticket is None else taken).append(offered.popleft())
        if ended:
            self._end(ended)
        if taken:
            self._has_taken.set()
        self._pushed += offered_before - len(offered)
        self._has_pushed.set()

    async def wait_taken(self) -> None:
        """Waits until the writer has taken or refused all records offered so far."""
        goal = self._pushed + len(self.offered)
        while self._pushed < goal:
            self._has_pushed = trio.Event()
            await self._has_pushed.wait()

    async def run_pushing(self) -> None:
        """Offers records again that the writer had no room for."""
        while True:
            if not self.offered:
                self._refused = trio.Event()
                await self._refused.wait()
            try:
                await self._wait_room()
            except LedgerError:
                pass  # each record gets the error when it is offered
            self.push()

    async def run_confirming(self) -> None:
        """Ends records as the writer confirms them: in order, and all of an entry at once."""
        taken = self.taken
        while True:
            if not taken:
                self._has_taken = trio.Event()
                await self._has_taken.wait()
            first = taken[0].ticket
            assert first is not None, "taken without a ticket"
            ended: list[PendingRecord] = []
            try:
                await first.wait()
            except LedgerError as error:
                taken[0].error = error
                ended.append(taken.popleft())
            while taken:
                ticket = taken[0].ticket
                assert ticket is not None, "taken without a ticket"
                if not ticket.is_confirmed:
                    break
                ended.append(taken.popleft())
            self._end(ended)

    def drain(self, error: Exception) -> list[PendingRecord]:
        """Returns the records that have not ended, with this error, or a position if confirmed.

        Records of another lane get an error of their own.
        """
        left = [*self.taken, *self.offered]
        for record in left:
            record.error = None if record.position is not None else error
        self._pushed += len(self.offered)
        self._has_pushed.set()
        self.taken.clear()
        self.offered.clear()
        return left


class Appends:
    """Records in flight to one writer. The methods for callers are safe in any thread.

    Args:
        stream: for messages.
        post: posts a job to the trio thread.
        wake: wakes the callers of records that have ended.
        bytes_max: bytes submitted and not yet ended; at this limit there is no room.
    """

    def __init__(self, stream: str, post: Post, wake: Wake, bytes_max: int) -> None:
        self.stream = stream
        self._post = post
        self._wake = wake
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._submitted_bytes = 0  # under the lock
        self._ended_bytes = 0  # written by the trio thread only
        self._room: Completion | None = None  # set for all callers that wait for room
        self._gathered: deque[PendingRecord] = deque()
        self._is_asked = False
        self._is_closed = False
        self._arrival = Job(self.arrive, self._refuse_arrival)

    # Defined by the kind of writer

    @property
    def error(self) -> LedgerError | None:
        """Why no more records can be appended."""
        raise NotImplementedError

    def lane_of(self, record: PendingRecord) -> Lane:
        """In the trio thread: returns the lane whose order the record has to keep."""
        raise NotImplementedError

    def lanes(self) -> list[Lane]:
        """In the trio thread: returns all lanes."""
        raise NotImplementedError

    # Callers' threads

    @property
    def has_room(self) -> bool:
        """Whether fewer bytes than the limit are in flight. A closed writer has room."""
        return self._submitted_bytes - self._ended_bytes < self._bytes_max or self._is_closed

    def want_room(self) -> Completion:
        """Returns what to wait for while there is no room; check again afterwards."""
        with self._lock:
            completion = self._room
            if completion is None:
                completion = self._room = Completion()
        if self.has_room:
            completion = Completion()
            completion.is_set = True
        return completion

    def submit(self, record: PendingRecord) -> None:
        """Submits a record. Raises the writer's error if it has failed or is closed."""
        error = self.error
        if error is not None or self._is_closed:
            raise copy.copy(error) if error is not None else self._closed()
        with self._lock:
            self._submitted_bytes += record.nbytes
            self._gathered.append(record)
        if not self._is_asked:
            # The job resets it first: while it is set, a job is certain to follow.
            self._is_asked = True
            try:
                self._post(self._arrival)
            except BaseException:
                self._is_asked = False
                raise

    def _closed(self) -> LedgerClosed:
        return LedgerClosed(f"the writer of stream {self.stream!r} is closed")

    # The trio thread

    def arrive(self) -> None:
        """Offers the records submitted so far. Also called before any step that must come after
        them: the hop for them may be due in another thread, which has not made it yet."""
        self._is_asked = False
        if self._is_closed:
            self._refuse_gathered()
            return
        gathered = self._gathered
        lanes: dict[Lane, None] = {}
        while gathered:
            record = gathered.popleft()
            lane = self.lane_of(record)
            lane.offer(record)
            lanes[lane] = None
        for lane in lanes:
            lane.push()

    def _refuse_arrival(self, _error: LedgerError) -> None:
        """In a caller's thread, when the loop has ended: ends the records without offering them."""
        self.close()
        self.arrive()

    def end(self, records: Sequence[PendingRecord]) -> None:
        """Ends records, confirmed or with an error, and wakes their callers."""
        for record in records:
            self._ended_bytes += record.nbytes
        self._wake(records)
        if self._room is not None and self.has_room:
            with self._lock:
                completion, self._room = self._room, None
            if completion is not None:
                self._wake([completion])

    def close(self) -> None:
        """Refuses further records."""
        self._is_closed = True

    def end_all(self) -> None:
        """Ends, after `close`, the records that have not ended: no writer will end them."""
        error = self.error or self._closed()
        self.end([record for lane in self.lanes() for record in lane.drain(error)])
        self._refuse_gathered()

    def _refuse_gathered(self) -> None:
        """Ends records that were submitted after `close` and never offered."""
        refused: list[PendingRecord] = []
        while self._gathered:
            record = self._gathered.popleft()
            record.error = self.error or self._closed()
            refused.append(record)
        self.end(refused)

    async def in_turn(self, act: Callable[[], Awaitable[T]]) -> T:
        """Runs `act` once the writer has taken all records submitted before."""
        await self._wait_taken()
        return await act()

    async def _wait_taken(self) -> None:
        self.arrive()
        for lane in self.lanes():
            await lane.wait_taken()

    async def settle(self, act: Callable[[], Awaitable[T]]) -> T:
        """Does the same for an `act` that confirms records: their callers are woken first."""
        await self._wait_taken()
        # Without records taken meanwhile, which `act` need not confirm.
        confirmed = [lane.taken[-1] for lane in self.lanes() if lane.taken]
        result = await act()
        for last in confirmed:
            while not last.is_set:
                await trio.lowlevel.checkpoint()
        return result
