"""Parked tasks are woken in time, and removed when they are cancelled."""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import trio
import trio.testing
from outcome import Value

from ledger.runtime import parking
from ledger.runtime.parking import ParkedTasks, ParkingSlot, ThresholdWaiters


async def test_only_waiters_whose_number_is_reached_are_woken() -> None:
    waiters = ThresholdWaiters()
    woken: list[int] = []

    async def wait(number: int) -> None:
        await waiters.wait(number)
        woken.append(number)

    async with trio.open_nursery() as nursery:
        for number in (5, 1, 3):
            nursery.start_soon(wait, number)
        await trio.testing.wait_all_tasks_blocked()
        waiters.wake(3)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(woken) == [1, 3]
        waiters.wake_all()
    assert sorted(woken) == [1, 3, 5]


async def test_cancelled_waiters_do_not_pile_up() -> None:
    waiters = ThresholdWaiters()
    for _ in range(5000):
        with trio.CancelScope() as scope:
            scope.cancel()
            await waiters.wait(7)
    assert len(waiters._heap) <= 1001


async def test_a_slot_holds_one_task_and_hands_it_a_result() -> None:
    slot = ParkingSlot()
    got: list[object] = []

    async def park() -> None:
        got.append(await slot.park())

    for result in (None, Value(7)):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(park)
            await trio.testing.wait_all_tasks_blocked()
            slot.unpark(result)
            slot.unpark(result)  # no task waits any more
    assert got == [None, 7]


async def test_a_cancelled_wait_leaves_an_empty_slot() -> None:
    slot = ParkingSlot()
    with trio.move_on_after(0):
        await slot.park()
    assert slot.is_empty
    slot.unpark()


async def test_parked_tasks_are_woken_together_or_one_by_one() -> None:
    parked = ParkedTasks()
    woken: list[str] = []
    tasks: dict[str, trio.lowlevel.Task] = {}

    async def wait(name: str, mark: bool) -> None:
        tasks[name] = trio.lowlevel.current_task()
        await parked.park(mark)
        woken.append(name)

    async with trio.open_nursery() as nursery:
        assert len(parked) == 0
        for name, mark in (("a", False), ("b", True), ("c", False)):
            nursery.start_soon(wait, name, mark)
        await trio.testing.wait_all_tasks_blocked()
        assert len(parked) == 3
        assert parked.has_mark
        parked.unpark(tasks["b"])
        parked.unpark(tasks["b"])  # it no longer waits
        parked.unpark(None)
        await trio.testing.wait_all_tasks_blocked()
        assert woken == ["b"]
        assert len(parked) == 2
        parked.unpark_all()
        assert len(parked) == 0
    assert sorted(woken) == ["a", "b", "c"]


async def test_a_cancelled_task_is_no_longer_parked() -> None:
    parked = ParkedTasks()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parked.park)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert len(parked) == 0
    parked.unpark_all()


class _InterruptedAt:
    """Sends this process Ctrl-C before the n-th line that it executes of the module."""

    def __init__(self, number: int) -> None:
        self.left = number

    def trace(self, frame: FrameType, event: str, _argument: object) -> Callable[..., Any] | None:
        if frame.f_code.co_filename != parking.__file__:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGINT)
        return self.trace


@pytest.mark.parametrize("parked", [ParkingSlot, ParkedTasks])
def test_ctrl_c_leaves_no_task_that_is_woken_later(
    parked: type[ParkingSlot] | type[ParkedTasks],
) -> None:
    async def wait(interrupted: _InterruptedAt) -> None:
        place = parked()
        try:
            with trio.CancelScope() as scope, _traced(interrupted):
                scope.cancel()
                await place.park()
        finally:
            place.unpark() if isinstance(place, ParkingSlot) else place.unpark_all()
            # A thread's result would be mistaken for what that has woken the task with.
            await trio.to_thread.run_sync(lambda: None)

    _interrupt_at_each_line(wait)


def test_ctrl_c_wakes_no_task_twice() -> None:
    async def wake(interrupted: _InterruptedAt) -> None:
        place = ParkedTasks()
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(place.park)
            await trio.testing.wait_all_tasks_blocked()
            try:
                with _traced(interrupted):
                    place.unpark_all()
            finally:
                place.unpark_all()

    _interrupt_at_each_line(wake)


@contextmanager
def _traced(interrupted: _InterruptedAt) -> Iterator[None]:
    before = sys.gettrace()
    sys.settrace(interrupted.trace)
    try:
        yield
    finally:
        sys.settrace(before)


def _interrupt_at_each_line(run: Callable[[_InterruptedAt], Awaitable[None]]) -> None:
    """Each run ends without another error than KeyboardInterrupt."""
    for number in range(1, 100):
        interrupted = _InterruptedAt(number)
        try:
            trio.run(run, interrupted)
        except* KeyboardInterrupt:
            pass
        if interrupted.left > 0:  # there is no such line
            break
    assert number > 3
