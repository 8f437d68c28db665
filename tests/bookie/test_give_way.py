"""Background work leaves both the loop and the interpreter to others."""

from __future__ import annotations

import sys
import threading
import time

import trio
import trio.testing

from bookie.storage.turns import give_way


async def test_other_tasks_run_between_steps(autojump_clock: trio.testing.MockClock) -> None:
    seen: list[str] = []

    async def work(name: str) -> None:
        for _ in range(3):
            seen.append(name)
            await give_way()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work, "a")
        nursery.start_soon(work, "b")
    assert sorted(seen[:2]) == sorted(seen[2:4]) == sorted(seen[4:]) == ["a", "b"]


async def test_another_thread_is_not_locked_out() -> None:
    """With `trio.lowlevel.checkpoint` in its place the thread gets a few turns, if any."""
    before, ends_at = sys.getswitchinterval(), time.perf_counter() + 10
    turns = 0
    is_over = False

    def wait_for_turns() -> None:
        nonlocal turns
        while not is_over:
            time.sleep(0.0005)
            turns += 1

    thread = threading.Thread(target=wait_for_turns)
    sys.setswitchinterval(0.001)
    try:
        thread.start()
        while turns < 200 and time.perf_counter() < ends_at:
            sum(range(5000))
            await give_way()
    finally:
        is_over = True
        thread.join()
        sys.setswitchinterval(before)
    assert turns >= 200
