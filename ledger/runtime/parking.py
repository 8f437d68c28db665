"""Parking: how a task waits until another task or a callback wakes it.

`ParkingSlot` holds one task; a task that serves others (a sender, a journal) sleeps in one.
`ParkedTasks` holds any number that are woken together. `ThresholdWaiters` holds any number, each
until a counter reaches a number of its own. A wait is one of trio's checkpoints, may be cancelled,
and leaves no task behind that could be woken twice. Nor does Ctrl-C: trio delivers it after the
calls here, or cancels the wait.
"""

from __future__ import annotations

import heapq
from collections.abc import Coroutine
from typing import Any

import trio
from outcome import Outcome
from trio.lowlevel import enable_ki_protection

_CANCELLED_MAX = 1000
"""Empty slots kept before the heap is swept: waits on a stalled counter may often time out."""


class ParkingSlot:
    """One waiting task. Empty when nothing waits, and after a wait was cancelled."""

    __slots__ = ("_task",)

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None

    @property
    def is_empty(self) -> bool:
        return self._task is None

    @enable_ki_protection
    async def park(self) -> Any:
        """Waits for `unpark`; returns the value it was given, or raises its error."""
        assert self._task is None, "two tasks in one parking slot"
        self._task = trio.lowlevel.current_task()
        return await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    @enable_ki_protection
    def unpark(self, result: Outcome[Any] | None = None) -> None:
        """Wakes the task, if there is one. It must be called in trio's thread."""
        task = self._task
        if task is not None:
            self._task = None
            if result is None:
                trio.lowlevel.reschedule(task)
            else:
                trio.lowlevel.reschedule(task, result)


class ParkedTasks:
    """Any number of waiting tasks, each with a mark that others can read."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks: dict[trio.lowlevel.Task, bool] = {}

    def __len__(self) -> int:
        return len(self._marks)

    @property
    def has_mark(self) -> bool:
        """Whether one of the waiting tasks has a mark."""
        return any(self._marks.values())

    @enable_ki_protection
    async def park(self, mark: bool = False) -> None:
        """Waits until it is woken."""
        task, marks = trio.lowlevel.current_task(), self._marks
        marks[task] = mark

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            del marks[task]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    @enable_ki_protection
    def unpark(self, task: trio.lowlevel.Task | None) -> None:
        """Wakes this task, if it waits."""
        if task in self._marks:
            del self._marks[task]
            trio.lowlevel.reschedule(task)

    @enable_ki_protection
    def unpark_all(self) -> None:
        """Wakes all that wait now."""
        reschedule = trio.lowlevel.reschedule
        for task in self._marks:
            reschedule(task)
        self._marks.clear()


class ThresholdWaiters:
    """Tasks that wait until a counter reaches a number, each for its own.

    A wait costs a slot in a heap. A cancelled wait leaves its empty slot there until the counter
    passes its number, or until the heap is swept.
    """

    __slots__ = ("_count", "_heap", "_sweep_at")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, ParkingSlot]] = []
        self._count = 0
        self._sweep_at = _CANCELLED_MAX

    def wait(self, number: int) -> Coroutine[Any, Any, None]:
        """To be awaited at once: returns after `wake` with this number or a higher one, or after
        `wake_all`."""
        if len(self._heap) >= self._sweep_at:
            self._sweep()
        slot = ParkingSlot()
        self._count += 1
        heapq.heappush(self._heap, (number, self._count, slot))
        return slot.park()

    def _sweep(self) -> None:
        self._heap = [item for item in self._heap if not item[2].is_empty]
        heapq.heapify(self._heap)
        self._sweep_at = 2 * len(self._heap) + _CANCELLED_MAX

    def wake(self, reached: int) -> None:
        heap = self._heap
        while heap and heap[0][0] <= reached:
            heapq.heappop(heap)[2].unpark()

    def wake_all(self) -> None:
        heap, self._heap = self._heap, []
        for _, _, slot in heap:
            slot.unpark()
