"""Tasks parked until an entry is confirmed, or until there is room. Woken in batches.

A waiter costs a place in a heap and no object of trio's; who is cancelled leaves an empty
place behind, which goes with the next wake-up.
"""

from __future__ import annotations

import heapq
from collections import deque

import trio

_CANCELLED_MAX = 1000
"""Empty places kept before the heap is cleaned: a stalled writer may be asked with time-outs."""


class EntryWaiters:
    """Waiting for numbers that are reached in order."""

    __slots__ = ("_cancelled", "_count", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, list[trio.lowlevel.Task | None]]] = []
        self._count = 0
        self._cancelled = 0

    async def wait(self, number: int) -> None:
        """Returns after `wake` with this number or a higher one, or after `wake_all`."""
        slot: list[trio.lowlevel.Task | None] = [trio.lowlevel.current_task()]
        self._count += 1
        heapq.heappush(self._heap, (number, self._count, slot))

        def forget(_raise_cancel: object) -> trio.lowlevel.Abort:
            slot[0] = None
            self._cancelled += 1
            if self._cancelled > _CANCELLED_MAX and 2 * self._cancelled > len(self._heap):
                self._heap = [item for item in self._heap if item[2][0] is not None]
                heapq.heapify(self._heap)
                self._cancelled = 0
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(forget)

    def wake(self, reached: int) -> None:
        heap = self._heap
        reschedule = trio.lowlevel.reschedule
        while heap and heap[0][0] <= reached:
            task = heapq.heappop(heap)[2][0]
            if task is not None:
                reschedule(task)

    def wake_all(self) -> None:
        heap, self._heap = self._heap, []
        for _, _, slot in heap:
            if slot[0] is not None:
                trio.lowlevel.reschedule(slot[0])


class RoomWaiters:
    """Waiting for room; all are woken together and look again."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: deque[trio.lowlevel.Task] = deque()

    def __bool__(self) -> bool:
        return bool(self._tasks)

    async def wait(self) -> None:
        """Returns after `wake_all`."""
        task = trio.lowlevel.current_task()
        self._tasks.append(task)

        def forget(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._tasks.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(forget)

    def wake_all(self) -> None:
        while self._tasks:
            trio.lowlevel.reschedule(self._tasks.popleft())
