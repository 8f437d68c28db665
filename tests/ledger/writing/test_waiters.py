"""Waiting tasks: woken in time, forgotten when cancelled."""

from __future__ import annotations

import trio
import trio.testing

from ledger.writing.waiters import EntryWaiters


async def test_only_what_is_reached_is_woken() -> None:
    waiters = EntryWaiters()
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
    waiters = EntryWaiters()
    for _ in range(5000):
        with trio.CancelScope() as scope:
            scope.cancel()
            await waiters.wait(7)
    assert len(waiters._heap) <= 1001
