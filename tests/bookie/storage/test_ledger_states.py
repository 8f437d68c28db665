"""Ledgers that a bookie never saw before cost memory, which is bounded."""

from __future__ import annotations

import time

import trio.testing

from bookie.core.caches import WriteCache
from bookie.storage.index.index import Index
from bookie.storage.ledger_states import LedgerStates
from bookie.testing.memory_key_value import MemoryKeyValue
from tests.bookie.storage.simulated_storage import SimulatedStorage


async def test_fences_and_lacs_of_ever_new_ledgers_wait_for_a_checkpoint() -> None:
    """They fill no cache, but each is a ledger that memory must hold until it is in the index."""
    simulated = SimulatedStorage()
    most = 0
    async with simulated.running():
        for ledger_id in range(300):
            while simulated.storage.is_full:
                await simulated.storage.wait_capacity()
            if ledger_id % 2:
                simulated.fence(ledger_id)
            else:
                simulated.write_lac(ledger_id, 5)
            await trio.testing.wait_all_tasks_blocked()
            most = max(most, simulated.storage.statistics().states)
        await simulated.settle()
        await simulated.check()
    assert most <= 4 * simulated.options.states_max


def test_a_new_ledger_costs_as_much_however_many_wait_for_a_checkpoint() -> None:
    """It cost a step for each of them: with a hundred thousand the bookie stood still."""
    few, many = (_seconds_per_500(waiting) for waiting in (300, 30_000))
    assert many < 4 * few


def _seconds_per_500(waiting: int) -> float:
    """Of this thread's time; the shortest of five."""
    states = LedgerStates(Index(MemoryKeyValue()), WriteCache(1000), waiting)
    for ledger_id in range(waiting):
        states.create(ledger_id, b"key")
    seconds = []
    for first in range(waiting, waiting + 2500, 500):
        started = time.thread_time()
        for ledger_id in range(first, first + 500):
            states.create(ledger_id, b"key")
        seconds.append(time.thread_time() - started)
    assert len(states.held) == waiting + 2500
    return min(seconds)
