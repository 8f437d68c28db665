"""Appends: records handed over by callers in other threads, taken in order by a trio writer.

What gathered between two turns of the trio loop crosses in one hop; confirmations cross back a
group at a time. Must never reorder records, nor end a record before the writer has confirmed or
refused it.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

import trio

from ledger.errors import LedgerClosed, LedgerError
from ledger.metastore.tasks import open_background
from ledger.runtime.bridge import Latch, Wake
from stream.batch import Ticket as TrioTicket
from stream.core.entry_encoder import Headers
from stream.core.position import Position
from stream.core.record_sizes import RECORD_OVERHEAD_BYTES, record_bytes
from stream.writer import StreamWriter

T = TypeVar("T")


class PendingRecord(Latch):
    """A record on its way; set when it is durable or its outcome is known to be unknown."""

    __slots__ = (
        "error", "event_time_ms", "expected_sequence", "headers", "is_withdrawn", "key", "nbytes",
        "position", "ticket", "value",
    )  # fmt: skip

    def __init__(
        self,
        value: bytes,
        key: bytes | None,
        event_time_ms: int | None,
        headers: Headers | None,
        expected_sequence: int | None = None,
    ) -> None:
        """Raises InvalidArgument, TypeError for what can never be a record."""
        super().__init__()
        self.nbytes = record_bytes(value, key, event_time_ms, headers) + RECORD_OVERHEAD_BYTES
        self.value = value
        self.key = key
        self.event_time_ms = event_time_ms
        self.headers = headers
        self.expected_sequence = expected_sequence
        self.is_withdrawn = False
        """Its caller gave up: it is dropped if no writer has it yet."""
        self.ticket: TrioTicket | None = None
        self.position: Position | None = None
        self.error: Exception | None = None

    def result(self) -> Position:
        """Its position; raises why it has none. It must be set."""
        if self.position is not None:
            return self.position
        assert self.error is not None, "ended without an outcome"
        # A new exception each time: one instance raised in many tasks mixes tracebacks.
        raise copy.copy(self.error)


class Appends:
    """The bridge of one stream writer. Methods of callers are safe in any thread.

    Args:
        writer: in the trio thread.
        post: has a job run there.
        wake: how callers learn of ends.
        bytes_max: bytes handed over and not yet ended; then there is no room.
    """

    def __init__(
        self,
        writer: StreamWriter,
        post: Callable[[Callable[[], object]], None],
        wake: Wake,
        bytes_max: int,
    ) -> None:
        self.writer = writer
        self._post = post
        self._wake = wake
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._given_bytes = 0  # under the lock
        self._ended_bytes = 0  # written by the trio thread only
        self._room: deque[Latch] = deque()
        self._gathered: deque[PendingRecord] = deque()
        self._is_asked = False
        self._is_closed = False
        # Of the trio thread:
        self._inbox: deque[PendingRecord] = deque()
        self._taken: deque[PendingRecord] = deque()
        self._stirred = trio.Event()
        self._taken_some = trio.Event()
        self._emptied = trio.Event()

    # Callers' threads

    @property
    def has_room(self) -> bool:
        """Whether less than the bound is under way. A closed writer has room for errors."""
        return self._given_bytes - self._ended_bytes < self._bytes_max or self._is_closed

    def want_room(self) -> Latch:
        """What to wait for while there is no room; then look again."""
        latch = Latch()
        self._room.append(latch)
        if self.has_room:
            latch.is_set = True
        return latch

    def give(self, record: PendingRecord) -> None:
        """Hands a record over. Raises the writer's error if it has failed or is closed."""
        error = self.writer.error
        if error is not None or self._is_closed:
            raise copy.copy(error) if error is not None else self._closed()
        with self._lock:
            self._given_bytes += record.nbytes
            self._gathered.append(record)
        if not self._is_asked:
            # Reset by the job as its first act: who sees it set is sure that a job will follow.
            self._is_asked = True
            try:
                self._post(self._arrive)
            except BaseException:
                self._is_asked = False
                raise

    def _closed(self) -> LedgerClosed:
        return LedgerClosed(f"the writer of stream {self.writer.stream!r} is closed")

    # The trio thread

    def _arrive(self) -> None:
        self._is_asked = False
        gathered, inbox = self._gathered, self._inbox
        if self._is_closed:
            self._end_all(self._closed())
            return
        while gathered:
            inbox.append(gathered.popleft())
        self._take()

    def _take(self) -> None:
        """Hands records to the writer as far as it has room."""
        inbox, taken, writer = self._inbox, self._taken, self.writer
        refused: list[PendingRecord] = []
        while inbox:
            record = inbox[0]
            if record.is_withdrawn:
                record.error = LedgerClosed("withdrawn before it was appended")
                refused.append(inbox.popleft())
                continue
            try:
                record.ticket = writer.append_nowait(
                    record.value,
                    record.key,
                    record.event_time_ms,
                    record.headers,
                    expected_sequence=record.expected_sequence,
                )
            except trio.WouldBlock:
                self._stirred.set()
                break
            except Exception as error:  # noqa: BLE001 (the caller gets it)
                record.error = error
                refused.append(inbox.popleft())
                continue
            taken.append(inbox.popleft())
        if refused:
            self._end(refused)
        if taken:
            self._taken_some.set()
        if not inbox:
            self._emptied.set()

    def _end(self, records: Sequence[PendingRecord]) -> None:
        for record in records:
            self._ended_bytes += record.nbytes
        self._wake(records)
        if self._room and self.has_room:
            waiting = []
            while self._room:
                waiting.append(self._room.popleft())
            self._wake(waiting)

    def _end_all(self, error: Exception) -> None:
        """Whatever has not ended yet ends with this error, or as it really did."""
        ended = [*self._taken, *self._inbox]
        while self._gathered:
            ended.append(self._gathered.popleft())
        self._taken.clear()
        self._inbox.clear()
        for record in ended:
            ticket = record.ticket
            record.position = None if ticket is None else ticket.position
            record.error = error
        self._end(ended)

    async def in_turn(self, act: Callable[[], Awaitable[T]]) -> T:
        """Does `act` when the writer has taken all records handed over before."""
        while self._inbox:
            self._emptied = trio.Event()
            await self._emptied.wait()
        return await act()

    async def _run_taking(self) -> None:
        """Goes on with what found no room."""
        while True:
            if not self._inbox:
                self._stirred = trio.Event()
                await self._stirred.wait()
            try:
                await self.writer.wait_room()
            except LedgerError:
                pass  # each record is told when it is offered
            self._take()

    async def _run_confirming(self) -> None:
        """Ends records as the writer confirms them: in order, and all of an entry at once."""
        taken = self._taken
        while True:
            if not taken:
                self._taken_some = trio.Event()
                await self._taken_some.wait()
            first = taken[0].ticket
            assert first is not None, "taken without a ticket"
            try:
                await first.wait()
            except LedgerError as error:
                taken[0].error = error
                self._end([taken.popleft()])
                continue
            ended: list[PendingRecord] = []
            while taken:
                ticket = taken[0].ticket
                assert ticket is not None, "taken without a ticket"
                position = ticket.position
                if position is None:
                    break
                taken[0].position = position
                ended.append(taken.popleft())
            self._end(ended)

    async def finish(self) -> None:
        """Returns when the writer has taken everything and all of it has ended."""
        await self.in_turn(self.writer.flush)
        while self._taken:
            await trio.lowlevel.checkpoint()


@asynccontextmanager
async def bridged_writer(
    opening: AbstractAsyncContextManager[StreamWriter],
    post: Callable[[Callable[[], object]], None],
    wake: Wake,
    bytes_max: int,
) -> AsyncIterator[Appends]:
    """In the trio thread: a writer for callers elsewhere, closed at the end of the block."""
    async with opening as writer:
        appends = Appends(writer, post, wake, bytes_max)
        try:
            async with open_background() as nursery:
                nursery.start_soon(appends._run_taking)
                nursery.start_soon(appends._run_confirming)
                yield appends
                appends._is_closed = True
                if writer.error is None:
                    await appends.finish()
        finally:
            appends._is_closed = True
            appends._end_all(writer.error or appends._closed())
