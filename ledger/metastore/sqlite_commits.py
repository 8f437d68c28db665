"""Changes of many tasks in one commit: the disk is synced once for all that came meanwhile.

While a commit is under way the next one gathers. Must never answer a change before it is on disk,
nor let one that is refused spoil the others. The blocking half is `SqliteFile.commit_together`.
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
"""Changes in one commit. It locks the file for other processes for so long: some ms."""

Work = Callable[[], object]
Commit = Callable[[Sequence[Work]], Awaitable[list[object]]]


class _Waiting(Generic[T]):
    """A change that waits for its commit, then for the disk."""

    __slots__ = ("done", "has_begun", "outcome", "work")

    def __init__(self, work: Callable[[], T]) -> None:
        self.work = work
        self.has_begun = False
        self.done = trio.Event()
        self.outcome: T | LedgerError | None = None


class GroupCommits:
    """`do` from any task; `run` is the task that commits.

    Args:
        commit: does all works in one transaction; gives what each returned, or the LedgerError it
            raised. What it raises itself is the fate of them all.
    """

    def __init__(self, commit: Commit) -> None:
        self._commit = commit
        self._queue: deque[_Waiting[object]] = deque()
        self._arrival = trio.Event()
        self._is_over = False

    async def do(self, work: Callable[[], T]) -> T:
        """What `work` returns, after it is on disk; raises what it raises.

        Cancelled before its commit has begun it does nothing; after that it waits for the end.
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
        if isinstance(outcome, LedgerError):
            raise outcome
        return cast("T", outcome)

    async def run(self) -> None:
        """Commits what comes, until it is cancelled; then nothing more is taken."""
        try:
            while True:
                if not self._queue:
                    self._arrival = trio.Event()
                    await self._arrival.wait()
                count = min(len(self._queue), TOGETHER_MAX)
                await self._commit_all([self._queue.popleft() for _ in range(count)])
        finally:
            self._is_over = True
            closed = MetadataUnavailable("this metadata store is closed")
            _finish(list(self._queue), closed)
            self._queue.clear()

    async def _commit_all(self, group: list[_Waiting[object]]) -> None:
        for waiting in group:
            waiting.has_begun = True
        outcomes: Sequence[object] | LedgerError
        outcomes = MetadataUnavailable("the metadata store was closed before it answered")
        try:
            outcomes = await self._commit([waiting.work for waiting in group])
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
