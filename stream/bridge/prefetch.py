"""Prefetch: items fetched in the trio thread ahead of a consumer in another, bounded in bytes.

The consumer takes items from the buffer without a hop; it wakes the trio thread only if the buffer
was full, or to change the goal (another end). Must never lose or repeat an item, even if the
consumer's wait is cancelled: fetched items stay in the buffer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

import trio

from ledger.errors import LedgerClosed
from ledger.runtime.bridge import Completion, Job, Post, Wake

T = TypeVar("T")
Goal = TypeVar("Goal")

PREFETCH_BYTES: Final = 4 << 20
"""Bytes that may wait for a consumer; one more item at most exceeds it."""

_STEPS: Final = 8
"""Items fetched in a row without waiting before the fetching task yields to others."""


class Fetched(Generic[T, Goal]):
    """An item, or the reason why there is none: an error, or (neither) a goal that was reached."""

    __slots__ = ("error", "goal", "item", "nbytes")

    def __init__(
        self, goal: Goal | None, item: T | None, error: Exception | None, nbytes: int = 0
    ) -> None:
        self.goal = goal
        self.item = item
        self.error = error
        self.nbytes = nbytes


class Prefetch(Generic[T, Goal]):
    """A buffer with one consumer at a time; the methods are grouped by the thread they run in.

    Args:
        pull: returns the next item up to a goal, None when the goal is reached. A pull that was
            cancelled or failed must lose no item.
        size_of: returns the bytes that an item counts.
        post: posts a job to the trio thread.
    """

    def __init__(
        self,
        pull: Callable[[Goal], Awaitable[T | None]],
        size_of: Callable[[T], int],
        post: Post,
        wake: Wake,
        *,
        bytes_max: int = PREFETCH_BYTES,
    ) -> None:
        self._pull = pull
        self._size_of = size_of
        self._post = post
        self._wake = wake
        self._bytes_max = bytes_max
        self._items: deque[Fetched[T, Goal]] = deque()
        self._pulled_bytes = 0  # written by the trio thread only
        self._taken_bytes = 0  # written by the consumer only
        self._is_full = False
        self._is_closed = False
        self._completion: Completion | None = None
        self._asked: list[Goal] = []  # the goal last posted, until it was reached or failed
        self._goal: list[Goal] = []  # the same, as known in the trio thread
        self._scope: trio.CancelScope | None = None
        self._wakeup = trio.Event()

    # The consumer's thread

    def head(self) -> Fetched[T, Goal] | None:
        """Returns the item that `pop` would take; None if there is none yet."""
        items = self._items
        return items[0] if items else None

    def pop(self) -> None:
        """Takes the head."""
        fetched = self._items.popleft()
        self._taken_bytes += fetched.nbytes
        if fetched.item is None:
            self._asked.clear()
        if self._is_full and self._buffered_bytes <= self._bytes_max // 2:
            self._is_full = False
            self._post(Job(self._wake_puller))

    def want(self, goal: Goal) -> Completion:
        """Returns what to wait for while there is no head; check again afterwards."""
        completion = Completion()
        self._completion = completion
        if self._is_closed:
            raise LedgerClosed("the reader is closed")
        if self._items:
            completion.is_set = True
        elif self._asked != [goal]:
            self._asked[:] = [goal]
            self._post(Job(lambda: self._set_goal(goal)))
        return completion

    @property
    def _buffered_bytes(self) -> int:
        return self._pulled_bytes - self._taken_bytes

    # The trio thread

    def _set_goal(self, goal: Goal) -> None:
        if self._goal != [goal]:
            self._goal[:] = [goal]
            if self._scope is not None:
                self._scope.cancel()
        self._wake_puller()

    def _wake_puller(self) -> None:
        self._wakeup.set()

    def _put(self, fetched: Fetched[T, Goal]) -> None:
        self._pulled_bytes += fetched.nbytes
        self._items.append(fetched)
        if fetched.item is None:
            self._goal.clear()
        self._notify()

    def _notify(self) -> None:
        completion = self._completion
        if completion is not None and not completion.is_set:
            self._wake([completion])

    def close(self) -> None:
        """Stops fetching; the consumer gets LedgerClosed after the fetched items."""
        self._is_closed = True
        if self._scope is not None:
            self._scope.cancel()
        self._wake_puller()

    async def run(self) -> None:
        """Fetches until `close` is called or it is cancelled."""
        try:
            while not self._is_closed:
                self._wakeup = trio.Event()
                if self._goal and not self._is_room_awaited():
                    with trio.CancelScope() as self._scope:
                        await self._pull_towards(self._goal[0])
                else:
                    await self._wakeup.wait()
        finally:
            self._is_closed = True
            self._put(Fetched(None, None, LedgerClosed("the reader is closed")))

    def _is_room_awaited(self) -> bool:
        # The flag is set first: the consumer checks it after it has taken an item.
        self._is_full = True
        if self._buffered_bytes >= self._bytes_max:
            return True
        self._is_full = False
        return False

    async def _pull_towards(self, goal: Goal) -> None:
        steps = 0
        while self._buffered_bytes < self._bytes_max:
            try:
                item = await self._pull(goal)
            except Exception as error:  # noqa: BLE001 (the caller gets it)
                self._put(Fetched(goal, None, error))
                return
            if item is None:
                self._put(Fetched(goal, None, None))
                return
            self._put(Fetched(goal, item, None, self._size_of(item)))
            steps += 1
            if steps % _STEPS == 0:
                await trio.lowlevel.checkpoint()
