"""MissedCopies: records which ledgers lack entries at which bookies. One per client.

A task runs only while there is something to record. It must never delay an append, a close or a
takeover; while the metadata store is out of reach the marks are kept, up to a bound. What is not
recorded because the process dies, or the bound is reached, is left to the periodic checks.

A *doubt* is a ledger whose copies will be known soon: acks trail, or bookies are asked. A client
that closes waits for them shortly, and then records what is not known to be there.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Collection
from itertools import islice
from typing import Protocol

import trio

from ledger.errors import LedgerError, RetryableError

_log = logging.getLogger(__name__)

MARKS_MAX = 100_000
"""Ledgers whose marks wait to be recorded; more are left to the periodic checks."""
DOUBTS_MAX = 10_000
"""Doubts of one client; the oldest of more are ended by giving up."""
_AT_ONCE = 16
_PAUSE_S = 0.25
_PAUSE_S_MAX = 10.0
FINISH_S = 1.0
"""How long a client that closes waits: half of it for doubts, the rest for marks."""


class Marks(Protocol):
    """Where marks are recorded: `ledger.metastore.underreplication`."""

    async def mark(self, ledger_id: int, replicas: Collection[str]) -> object: ...


class Doubt(Protocol):
    """Copies of one ledger that will be known soon."""

    def give_up(self) -> None:
        """Ends the doubt: what is not known to be there is recorded as missed. Idempotent."""
        ...


class MissedCopies:
    """The marks and doubts of one client.

    Args:
        marks: where they are recorded.
        rng: jitter of the pauses while the metadata store is out of reach.
    """

    def __init__(self, marks: Marks, rng: random.Random) -> None:
        self._marks = marks
        self._rng = rng
        self._pending: dict[int, dict[str, None]] = {}
        self._doubts: dict[Doubt, None] = {}
        self._nursery: trio.Nursery | None = None
        self._is_running = False
        self._changed = trio.Event()
        self.recorded = 0
        """Marks that were recorded, one per ledger and call of `record`."""
        self.dropped = 0
        """Ledgers that were left to the periodic checks."""

    def start(self, nursery: trio.Nursery) -> None:
        """Tasks run in `nursery` from now on."""
        self._nursery = nursery

    def start_soon(self, function: Callable[..., Awaitable[object]], *args: object) -> bool:
        """Starts a task that ends with the client; returns False if the client is closed."""
        if self._nursery is None or self._nursery.cancel_scope.cancel_called:
            return False
        try:
            self._nursery.start_soon(function, *args)
        except RuntimeError:
            return False
        return True

    # Marks.

    @property
    def pending(self) -> int:
        """Ledgers whose marks are not recorded yet."""
        return len(self._pending)

    def record(self, ledger_id: int, bookies: Collection[str]) -> None:
        """Records in the background that these bookies lack entries of the ledger."""
        if not bookies:
            return
        if ledger_id not in self._pending and len(self._pending) >= MARKS_MAX:
            self.dropped += 1
            return
        self._pending.setdefault(ledger_id, {}).update(dict.fromkeys(bookies))
        if not self._is_running:
            self._is_running = self.start_soon(self._run)

    async def _run(self) -> None:
        pause_s = _PAUSE_S
        try:
            while self._pending:
                error = await self._record_some()
                if error is None:
                    pause_s = _PAUSE_S
                    continue
                if pause_s == _PAUSE_S:
                    _log.info("marks of %d ledgers are recorded later: %s", self.pending, error)
                await trio.sleep(pause_s * (0.5 + self._rng.random() / 2))
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)
        finally:
            self._is_running = False

    async def _record_some(self) -> LedgerError | None:
        """Records the first of the marks that wait; returns an error after which it pays to wait.
        What was not recorded still waits, also after a cancellation."""
        failed: list[LedgerError] = []

        async def record(ledger_id: int, bookies: tuple[str, ...]) -> None:
            try:
                await self._marks.mark(ledger_id, bookies)
                self.recorded += 1
            except RetryableError as error:
                failed.append(error)
                return
            except LedgerError as error:
                self.dropped += 1
                _log.warning(
                    "ledger=%d: that %s lack entries is not recorded: %s",
                    ledger_id, ", ".join(bookies), error,
                )  # fmt: skip
            self._recorded(ledger_id, bookies)

        async with trio.open_nursery() as nursery:
            for ledger_id, bookies in islice(self._pending.items(), _AT_ONCE):
                nursery.start_soon(record, ledger_id, tuple(bookies))
        return failed[0] if failed else None

    def _recorded(self, ledger_id: int, bookies: tuple[str, ...]) -> None:
        waiting = self._pending.get(ledger_id, {})
        for bookie in bookies:
            waiting.pop(bookie, None)
        if not waiting:
            self._pending.pop(ledger_id, None)
        self._notify()

    # Doubts.

    @property
    def doubts(self) -> int:
        """Ledgers of which it is not known yet whether copies are missing."""
        return len(self._doubts)

    def begin(self, doubt: Doubt) -> None:
        """Notes a doubt; it is ended by `end`, or by `Doubt.give_up` if there are too many."""
        self._doubts[doubt] = None
        if len(self._doubts) > DOUBTS_MAX:
            next(iter(self._doubts)).give_up()

    def end(self, doubt: Doubt) -> None:
        """Notes that a doubt is over."""
        self._doubts.pop(doubt, None)
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    # The end.

    async def finish(self) -> None:
        """Waits shortly for doubts and marks when the client closes, even if it is cancelled."""
        if not self._pending and not self._doubts:
            return
        with trio.move_on_after(FINISH_S) as scope:
            scope.shield = True
            with trio.move_on_after(FINISH_S / 2):
                while self._doubts:
                    await self._changed.wait()
            for doubt in list(self._doubts):
                doubt.give_up()
            while self._pending:
                if await self._record_some() is not None:
                    await trio.sleep(_PAUSE_S)
        if self._pending:
            _log.warning(
                "which bookies lack entries of %d ledgers (the first is %d) was not recorded in "
                "%g s: the periodic checks of auto-recovery find it",
                self.pending, next(iter(self._pending)), FINISH_S,
            )  # fmt: skip
