"""Background work leaves both the loop and the interpreter to others."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio
import trio.testing

from bookie.storage.yielding import waiting_for_thread, yield_to_tasks, yield_to_threads


async def test_other_tasks_run_between_steps(autojump_clock: trio.testing.MockClock) -> None:
    seen: list[str] = []

    async def work(name: str) -> None:
        for _ in range(3):
            seen.append(name)
            await yield_to_tasks()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work, "a")
        nursery.start_soon(work, "b")
    assert sorted(seen[:2]) == sorted(seen[2:4]) == sorted(seen[4:]) == ["a", "b"]


class _Other:
    """A thread that wants a short turn every half a millisecond."""

    def __init__(self) -> None:
        self.turns = 0
        self._is_over = False

    def _want_turns(self) -> None:
        while not self._is_over:
            time.sleep(0.0005)
            self.turns += 1

    @classmethod
    @contextmanager
    def beside(cls, switch_interval_s: float) -> Iterator[_Other]:
        """`switch_interval_s`: time after which the interpreter switches threads on request."""
        other, before = cls(), sys.getswitchinterval()
        thread = threading.Thread(target=other._want_turns)
        sys.setswitchinterval(switch_interval_s)
        try:
            thread.start()
            yield other
        finally:
            other._is_over = True
            sys.setswitchinterval(before)
            thread.join()


class _Rests(trio.abc.Instrument):
    """How often the loop waited for real."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += timeout > 0


async def test_another_thread_is_not_locked_out() -> None:
    """With `trio.lowlevel.checkpoint` in its place the loop never waits, and how many turns the
    thread gets is luck: from a few to half as many as here."""
    rests = _Rests()
    ends_at = time.perf_counter() + 10
    trio.lowlevel.add_instrument(rests)
    try:
        with _Other.beside(1000) as other:
            while other.turns < 200 and time.perf_counter() < ends_at:
                sum(range(5000))
                await yield_to_tasks()
    finally:
        trio.lowlevel.remove_instrument(rests)
    assert other.turns >= 200
    assert rests.count >= 5


async def test_a_thread_that_a_task_waits_for_gets_a_turn() -> None:
    """The loop is never idle, and lets go of the interpreter only for calls of the system that are
    over at once: without yielding the thread got a turn in some milliseconds, by luck."""

    def busy_for(seconds: float) -> None:
        ends_at = time.perf_counter() + seconds
        while time.perf_counter() < ends_at:
            sum(range(1000))
            os.getppid()
            yield_to_threads()

    with _Other.beside(1000) as other:
        for _ in range(200):
            with waiting_for_thread:
                busy_for(0.005)
        while_waited_for = other.turns
        busy_for(0.2)
        by_itself = other.turns - while_waited_for
    assert while_waited_for > 100
    assert by_itself <= 2, "no task waits for a thread: none gets a turn"


async def test_no_thread_gets_a_turn_for_a_disk_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would cost everybody else a fifth of the loop, for as long as it hangs."""
    let_in = 0

    def counted(_: float) -> None:
        nonlocal let_in
        let_in += 1

    monkeypatch.setattr(time, "sleep", counted)
    with waiting_for_thread:
        ends_at = time.perf_counter() + 0.2
        while time.perf_counter() < ends_at:
            yield_to_threads()
        assert 0 < let_in < 0.03 / 0.0003
        while_hanging = let_in
        with waiting_for_thread:
            yield_to_threads()
        assert let_in == while_hanging + 1
