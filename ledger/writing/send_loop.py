"""The loops that serve all writers of one client.

One task sends what all writers gathered in a scheduler tick, one sends the last add confirmed of
idle ledgers, and one checks for bookies that stopped acknowledging. None of them costs anything per
entry.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Protocol

import trio

from ledger.connection.pool import BookiePool
from ledger.errors import LedgerError
from ledger.metastore.bookies import BookieRegistry
from ledger.metastore.ledgers import LedgerStore
from ledger.missed.copies import MissedCopies
from ledger.options import ClientOptions
from ledger.runtime.parking import ParkingSlot
from ledger.writing.idle_replacement import IdleReplacement

_RESEND_LAC_S = 0.5
IDLE_S = 0.05
"""Bookies that said that nobody waits there hear of the last add confirmed after once to twice this
time without an add, in seconds: for readers that come later."""
_CHECKS_PER_TIMEOUT = 4
_LATENESS_MAX = 1.5
"""A check later than this many intervals is late because this process did not run."""
_TICKS_UNTIL_IDLE = 2
"""Scheduler ticks that a caller, woken by the ack of its entry, has to append another one, which
then carries the last add confirmed, so that no request is sent for it alone. The caller of a stream
needs two: one to append, one to seal the batch."""


class Watched(Protocol):
    """What waits for acks: a writer, or what waits for the last acks of one that is closed."""

    def check_progress(self, now_s: float) -> None: ...

    def fail(self, error: LedgerError) -> None: ...


class LoopWriter(Watched, Protocol):
    """A writer, as seen by the loops."""

    is_dirty: bool

    def send_gathered(self) -> None: ...


class UnsentLac(Protocol):
    """The last add confirmed of a writer, which no add has carried."""

    def send_due(self) -> None: ...

    def send_again(self) -> None: ...

    def send_if_idle(self) -> None: ...


class SendLoop:
    """Lives as long as the client, with four tasks for all of its writers."""

    def __init__(
        self,
        pool: BookiePool,
        ledgers: LedgerStore,
        bookies: BookieRegistry,
        missed: MissedCopies,
        options: ClientOptions,
        rng: random.Random,
    ) -> None:
        self.pool = pool
        self.ledgers = ledgers
        self.bookies = bookies
        self.missed = missed
        self.idle = IdleReplacement(pool, bookies, options, rng)
        self.options = options
        self.rng = rng
        self.nursery: trio.Nursery | None = None
        self._writers: dict[Watched, None] = {}
        self._dirty: list[LoopWriter] = []
        self._is_filling = False
        self._sender = ParkingSlot()
        self._lac_due: deque[tuple[float, UnsentLac]] = deque()
        self._lac_sender = ParkingSlot()
        self._maybe_idle: deque[tuple[float, UnsentLac]] = deque()
        self._idle_watcher = ParkingSlot()
        self._idle_s = max(IDLE_S, options.lac_linger_ms / 1000)
        self._watcher = ParkingSlot()
        self.watched_s = 0.0
        """A clock that stops while this process does not run: responses are not read then, and the
        bookies that sent them must not be replaced for it."""

    def start(self, nursery: trio.Nursery) -> None:
        """Starts the tasks; they end with `nursery`."""
        self.nursery = nursery
        self.idle.start(nursery)
        nursery.start_soon(self._send)
        nursery.start_soon(self._send_lacs)
        nursery.start_soon(self._send_lacs_of_idle)
        nursery.start_soon(self._watch_progress)

    def add(self, writer: Watched) -> None:
        """Checks the progress of `writer` from now on, until `remove`."""
        self._writers[writer] = None
        self._watcher.unpark()

    def remove(self, writer: Watched) -> None:
        self._writers.pop(writer, None)

    def fail_all(self, error: LedgerError) -> None:
        """Fails all writers when the client ends, so that none waits forever."""
        for writer in list(self._writers):
            writer.fail(error)

    def schedule(self, writer: LoopWriter) -> None:
        """Schedules `writer` to send what it gathered at the end of this tick."""
        writer.is_dirty = True
        self._dirty.append(writer)
        if not self._is_filling:
            self._sender.unpark()

    def send_after(self, fill: Callable[[], None]) -> None:
        """Calls `fill`, which appends, and sends what was gathered right after it: for a task that
        has given others a tick for their entries already."""
        self._is_filling = True
        try:
            fill()
        finally:
            self._is_filling = False
            self._send_dirty()

    def _send_dirty(self) -> None:
        dirty, self._dirty = self._dirty, []
        for writer in dirty:
            writer.send_gathered()

    async def _send(self) -> None:
        while True:
            if not self._dirty:
                await self._sender.park()
            self._send_dirty()

    def schedule_explicit_lac(self, lac: UnsentLac) -> None:
        """Calls `send_due` after the linger."""
        self._lac_due.append((trio.current_time() + self.options.lac_linger_ms / 1000, lac))
        self._lac_sender.unpark()

    def schedule_explicit_lac_again(self, lac: UnsentLac) -> None:
        """Calls `send_again` after a pause, as a bookie did not receive the last one."""
        if self.nursery is not None:
            try:
                self.nursery.start_soon(self._send_lac_later, lac)
            except RuntimeError:
                return  # the client is closing

    def watch_idle(self, lac: UnsentLac) -> None:
        """Calls `send_if_idle` after `IDLE_S`."""
        self._maybe_idle.append((trio.current_time() + self._idle_s, lac))
        self._idle_watcher.unpark()

    async def _send_lac_later(self, lac: UnsentLac) -> None:
        await trio.sleep(_RESEND_LAC_S)
        lac.send_again()

    async def _send_lacs_of_idle(self) -> None:
        waiting = self._maybe_idle
        while True:
            if not waiting:
                await self._idle_watcher.park()
                continue
            await trio.sleep_until(waiting[0][0])
            now = trio.current_time()
            while waiting and waiting[0][0] <= now:
                waiting.popleft()[1].send_if_idle()

    async def _send_lacs(self) -> None:
        due = self._lac_due
        while True:
            if not due:
                await self._lac_sender.park()
                continue
            if self.options.lac_linger_ms:
                await trio.sleep_until(due[0][0])
            else:
                for _ in range(_TICKS_UNTIL_IDLE):
                    await trio.lowlevel.checkpoint()
            now = trio.current_time()
            while due and due[0][0] <= now:
                due.popleft()[1].send_due()

    async def _watch_progress(self) -> None:
        while True:
            if not self._writers:
                await self._watcher.park()
                continue
            begun_s, interval_s = (
                trio.current_time(),
                self.options.add_timeout_s / _CHECKS_PER_TIMEOUT,
            )
            await trio.sleep(interval_s)
            self.watched_s += min(trio.current_time() - begun_s, _LATENESS_MAX * interval_s)
            for writer in list(self._writers):
                writer.check_progress(self.watched_s)
