"""Sends one request to the replicas of an entry without a task per request. Core: `core.reading`.

The calling task sends the request and parks; a response, the hedge delay or an interruption wakes
it. A response is taken as it arrives, while it is in the receive buffer: a batch is not copied for
it to wait. Nothing runs on after it returns or is cancelled: a late response is dropped. A
connection over which no byte arrives until the timeout is closed, as by an ordinary call.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import trio

from ledger.connection.pool import BookiePool, Outcome
from ledger.core.reading import (
    Failed,
    HedgeDelayElapsed,
    ReadReplica,
    ReplicaAnswered,
    ReplicaRead,
    Wait,
)
from ledger.errors import LedgerError
from ledger.runtime.parking import ParkingSlot
from ledger.wire.messages import RequestBody, ResponseBody

Value = TypeVar("Value")


class ReplicaCall(Generic[Value]):
    """One request to replicas. Used once.

    Args:
        read: decides which bookie is asked, and when a further one.
        request: makes the request to a bookie.
        take: returns the value of a bookie's response, of which it keeps no view; raises
            LedgerError if it has none. It must not wait, or call this object.
        timeout_s: how long each bookie may take.
    """

    def __init__(
        self,
        pool: BookiePool,
        read: ReplicaRead[Value],
        request: Callable[[str], RequestBody],
        take: Callable[[str, ResponseBody], Value],
        *,
        timeout_s: float,
    ) -> None:
        self.is_interrupted = False
        self._pool = pool
        self._read = read
        self._request = request
        self._take = take
        self._timeout_s = timeout_s
        self._waiter = ParkingSlot()
        self._gives_up_at: dict[str, float] = {}
        """By bookie that has not answered."""
        self._give_ups: dict[str, Callable[[], LedgerError]] = {}
        self._outcomes: deque[ReplicaAnswered[Value] | Failed | Exception] = deque()

    async def run(self) -> Value | None:
        """Returns the first good answer; None if interrupted before. Raises what `read.result`
        raises when no replica returns one."""
        try:
            return await self._run(self._read)
        finally:
            self._gives_up_at.clear()  # what comes later is not wanted

    async def _run(self, read: ReplicaRead[Value]) -> Value | None:
        hedge_at = math.inf
        actions = read.start()
        while True:
            for action in actions:
                if isinstance(action, Wait):
                    hedge_at = trio.current_time() + action.seconds
                else:
                    self._ask(action.bookie)
            if read.finished:
                return read.result.value
            if self.is_interrupted:
                return None
            gives_up_at = min(self._gives_up_at.values(), default=0.0)
            if not self._outcomes:
                with trio.move_on_at(min(hedge_at, gives_up_at)):
                    await self._waiter.park()
            actions = self._events()
            if actions or read.finished or self._outcomes:
                continue
            now = trio.current_time()
            if now >= gives_up_at:
                actions = self._give_up(now)
            elif now >= hedge_at:
                hedge_at = math.inf
                actions = read.handle(HedgeDelayElapsed())

    def interrupt(self) -> None:
        """Makes `run` return None soon, unless it has an answer."""
        self.is_interrupted = True
        self._wake()

    def _ask(self, bookie: str) -> None:
        def answered(outcome: Outcome) -> None:
            if self._gives_up_at.pop(bookie, None) is not None:
                self._outcomes.append(self._taken(bookie, outcome))
                self._wake()

        self._gives_up_at[bookie] = trio.current_time() + self._timeout_s
        self._give_ups[bookie] = self._pool.ask(
            bookie, self._request(bookie), answered, keeps_views=False
        )

    def _taken(self, bookie: str, outcome: Outcome) -> ReplicaAnswered[Value] | Failed | Exception:
        if isinstance(outcome, LedgerError):
            return Failed(bookie, outcome)
        try:
            return ReplicaAnswered(bookie, self._take(bookie, outcome))
        except LedgerError as error:
            return Failed(bookie, error)
        except Exception as error:  # noqa: BLE001 - a bug ends this call, not the connection
            return error

    def _events(self) -> list[ReadReplica | Wait]:
        """Passes what was received to the core, and returns the actions it asks for."""
        actions: list[ReadReplica | Wait] = []
        while self._outcomes and not self._read.finished:
            event = self._outcomes.popleft()
            if isinstance(event, Exception):
                raise event
            actions += self._read.handle(event)
        return actions

    def _give_up(self, now: float) -> list[ReadReplica | Wait]:
        actions: list[ReadReplica | Wait] = []
        for bookie in [b for b, at in self._gives_up_at.items() if at <= now]:
            del self._gives_up_at[bookie]
            actions += self._read.handle(Failed(bookie, self._give_ups[bookie]()))
        return actions

    def _wake(self) -> None:
        self._waiter.unpark()
