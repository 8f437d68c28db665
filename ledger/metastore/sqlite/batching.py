"""Joins the calls of many tasks to one visit of a thread.

Calls that arrive during a visit wait for the next one. So a busy event loop starts few visits per
second, and one commit syncs the disk for all of their changes. It must never report a change as
done before it is on disk, nor let a refused call affect the others. The blocking half is
`SqliteTree.commit_together` and `read_together`.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar, cast

import trio

from ledger.errors import LedgerError, MetadataUnavailable

T = TypeVar("T")

TOGETHER_MAX = 256
"""Calls in one visit. A commit of this many locks the file for other processes for some ms."""

Work = Callable[[], object]
Visit = Callable[[Sequence[Work]], Awaitable[list[object]]]


class _Waiting(Generic[T]):
    """A call that waits for the next visit, then for its end."""

    __slots__ = ("done", "has_begun", "outcome", "work")

    def __init__(self, work: Callable[[], T]) -> None:
        self.work = work
        self.has_begun = False
        self.done = trio.Event()
        self.outcome: T | Exception | None = None


class CallBatcher:
    """`do` makes a call from any task; `run` is the task that visits the thread repeatedly.

    Args:
        visit: does all works, and returns the result of each or the exception it raised. If it
            raises a LedgerError itself, all calls fail with that.
    """

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._queue: deque[_Waiting[object]] = deque()
        self._arrival = trio.Event()
        self._is_over = False

    async def do(self, work: Callable[[], T]) -> T:
        """Returns what `work` returns; raises what it raises.

        If it is cancelled before its visit has begun, nothing is done; later it waits for the end.
        """
        if self._is_over:
            raise MetadataUnavailable("this metadata store is closed")
        waiting = _Waiting(work)
        self._queue.append(cast("_Waiting[object]", waiting))
        self._arrival.set()
        try:
            await waiting.done.wait()
        except trio.Cancelled:
            if not waiting.has_begun:
                if waiting in self._queue:
                    self._queue.remove(cast("_Waiting[object]", waiting))
                raise
            with trio.CancelScope(shield=True):
                await waiting.done.wait()
        outcome = waiting.outcome
        if isinstance(outcome, Exception):
            raise outcome
        return cast("T", outcome)

    async def run(self) -> None:
        """Does the calls until it is cancelled; later calls are refused."""
        try:
            while True:
                if not self._queue:
                    self._arrival = trio.Event()
                    await self._arrival.wait()
                count = min(len(self._queue), TOGETHER_MAX)
                await self._visit_with([self._queue.popleft() for _ in range(count)])
        finally:
            self._is_over = True
            closed = MetadataUnavailable("this metadata store is closed")
            _finish(list(self._queue), closed)
            self._queue.clear()

    async def _visit_with(self, group: list[_Waiting[object]]) -> None:
        for waiting in group:
            waiting.has_begun = True
        outcomes: Sequence[object] | LedgerError
        outcomes = MetadataUnavailable("the metadata store was closed before it answered")
        try:
            outcomes = await self._visit([waiting.work for waiting in group])
        except LedgerError as error:
            outcomes = error
        finally:
            _finish(group, outcomes)


def _finish(group: Sequence[_Waiting[object]], outcomes: Sequence[object] | LedgerError) -> None:
    for index, waiting in enumerate(group):
        if isinstance(outcomes, LedgerError):
            waiting.outcome = copy.copy(outcomes)  # one instance in many tasks mixes tracebacks
        else:
            waiting.outcome = outcomes[index]
        waiting.done.set()
