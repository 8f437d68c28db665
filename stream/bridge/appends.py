"""Appends: records handed over by callers in other threads, taken in order by a trio writer.

What gathered between two turns of the trio loop crosses in one hop; confirmations cross back a
group at a time. Must never reorder records, nor end a record before the writer has confirmed or
refused it.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio

from ledger.errors import LedgerClosed, LedgerError
from ledger.runtime.bridge import Completion, Wake
from stream.core.entry.encoder import Headers
from stream.core.entry.format import RECORD_BYTES_MAX
from stream.core.entry.sizes import RECORD_OVERHEAD_BYTES, record_bytes
from stream.core.position import Position
from stream.writing.batch import Ticket as TrioTicket

T = TypeVar("T")
Post = Callable[[Callable[[], object]], None]


class PendingRecord(Completion):
    """A record on its way; set when it is durable, or refused, or its outcome will stay unknown.

    One object per record, without others behind it: how many there are is what garbage collection
    costs. `nbytes` is what it counts on its way.
    """

    __slots__ = (
        "error", "event_time_ms", "headers", "is_withdrawn", "key", "nbytes", "ticket", "value",
    )  # fmt: skip

    def __init__(
        self,
        value: bytes,
        key: bytes | None,
        event_time_ms: int | None,
        headers: Headers | None,
    ) -> None:
        """Raises InvalidArgument, TypeError for what can never be a record."""
        # As `Completion` does it, which would be one more call per record.
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
                headers = tuple(headers)  # the caller may change his list meanwhile
            size = record_bytes(value, key, event_time_ms, headers)
            self.nbytes = size + RECORD_OVERHEAD_BYTES
        self.value = value
        self.key = key
        self.event_time_ms = event_time_ms
        self.headers = headers
        self.is_withdrawn = False
        """Its caller gave up: it is dropped if no writer has it yet."""
        self.ticket: TrioTicket | None = None
        self.error: Exception | None = None

    def take(self) -> TrioTicket | None:
        """In the trio thread: hands the record to its writer. Its ticket; None if the record is
        in the stream already. May raise trio.WouldBlock."""
        raise NotImplementedError

    @property
    def position(self) -> Position | None:
        """The record's position; None until it is confirmed."""
        ticket = self.ticket
        return None if ticket is None else ticket.position

    def outcome(self) -> Position | None:
        """Its position, None if it was there before; raises what went wrong. It must be set."""
        if self.error is not None:
            # A new exception each time: one instance raised in many tasks mixes tracebacks.
            raise copy.copy(self.error)
        return self.position


class Lane:
    """Records whose order is kept, in the trio thread: first offered, then taken, then ended.

    Args:
        wait_room: until what was refused may be offered again.
        end: what happens to records that have ended.
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
        """To be followed by `push`."""
        self.offered.append(record)

    def push(self) -> None:
        """Hands records to the writer as far as it has room."""
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
        """Until the writer has taken or refused all that is offered now."""
        goal = self._pushed + len(self.offered)
        while self._pushed < goal:
            self._has_pushed = trio.Event()
            await self._has_pushed.wait()

    async def run_pushing(self) -> None:
        """Offers again what found no room."""
        while True:
            if not self.offered:
                self._refused = trio.Event()
                await self._refused.wait()
            try:
                await self._wait_room()
            except LedgerError:
                pass  # each record is told when it is offered
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
        """All that has not ended, with this error, or with a position if it was confirmed.

        Who waits in line behind it gets his own error.
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
    """Records on their way to one writer. Methods of callers are safe in any thread.

    Args:
        stream: for messages.
        post: has a job run in the trio thread.
        wake: how callers learn of ends.
        bytes_max: bytes handed over and not yet ended; then there is no room.
    """

    def __init__(self, stream: str, post: Post, wake: Wake, bytes_max: int) -> None:
        self.stream = stream
        self._post = post
        self._wake = wake
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._given_bytes = 0  # under the lock
        self._ended_bytes = 0  # written by the trio thread only
        self._room: Completion | None = None  # of all who wait for it
        self._gathered: deque[PendingRecord] = deque()
        self._is_asked = False
        self._is_closed = False

    # Of the trio writer

    @property
    def error(self) -> LedgerError | None:
        """Why nothing more can be appended."""
        raise NotImplementedError

    def lane_of(self, record: PendingRecord) -> Lane:
        """In the trio thread: whose order it has to keep."""
        raise NotImplementedError

    def lanes(self) -> list[Lane]:
        """In the trio thread: all of them."""
        raise NotImplementedError

    # Callers' threads

    @property
    def has_room(self) -> bool:
        """Whether less than the bound is under way. A closed writer has room for errors."""
        return self._given_bytes - self._ended_bytes < self._bytes_max or self._is_closed

    def want_room(self) -> Completion:
        """What to wait for while there is no room; then look again."""
        with self._lock:
            completion = self._room
            if completion is None:
                completion = self._room = Completion()
        if self.has_room:
            completion = Completion()
            completion.is_set = True
        return completion

    def give(self, record: PendingRecord) -> None:
        """Hands a record over. Raises the writer's error if it has failed or is closed."""
        error = self.error
        if error is not None or self._is_closed:
            raise copy.copy(error) if error is not None else self._closed()
        with self._lock:
            self._given_bytes += record.nbytes
            self._gathered.append(record)
        if not self._is_asked:
            # Reset by the job as its first act: who sees it set is sure that a job will follow.
            self._is_asked = True
            try:
                self._post(self.arrive)
            except BaseException:
                self._is_asked = False
                raise

    def _closed(self) -> LedgerClosed:
        return LedgerClosed(f"the writer of stream {self.stream!r} is closed")

    # The trio thread

    def arrive(self) -> None:
        """Offers what was handed over. Before what has to come after it, too: the hop for it may
        be that of another thread, which has not made it yet."""
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

    def end(self, records: Sequence[PendingRecord]) -> None:
        """These have ended, well or not."""
        for record in records:
            self._ended_bytes += record.nbytes
        self._wake(records)
        if self._room is not None and self.has_room:
            with self._lock:
                completion, self._room = self._room, None
            if completion is not None:
                self._wake([completion])

    def close(self) -> None:
        """Nothing more is taken."""
        self._is_closed = True

    def end_all(self) -> None:
        """What has not ended by now never will: after `close`."""
        error = self.error or self._closed()
        self.end([record for lane in self.lanes() for record in lane.drain(error)])
        self._refuse_gathered()

    def _refuse_gathered(self) -> None:
        """What came after `close`: it was never offered."""
        refused: list[PendingRecord] = []
        while self._gathered:
            record = self._gathered.popleft()
            record.error = self.error or self._closed()
            refused.append(record)
        self.end(refused)

    async def in_turn(self, act: Callable[[], Awaitable[T]]) -> T:
        """Does `act` when the writer has taken all records handed over before."""
        await self._wait_taken()
        return await act()

    async def _wait_taken(self) -> None:
        self.arrive()
        for lane in self.lanes():
            await lane.wait_taken()

    async def settle(self, act: Callable[[], Awaitable[T]]) -> T:
        """The same for what confirms them (flush, close): their callers know of it first."""
        await self._wait_taken()
        # Not those that are taken meanwhile, which `act` need not confirm.
        confirmed = [lane.taken[-1] for lane in self.lanes() if lane.taken]
        result = await act()
        for last in confirmed:
            while not last.is_set:
                await trio.lowlevel.checkpoint()
        return result
