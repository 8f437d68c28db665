"""Ledgers that a bookie never saw before cost memory, which is bounded."""

from __future__ import annotations

import trio.testing

from tests.bookie.storage_bottle import Bottle


async def test_fences_and_lacs_of_ever_new_ledgers_wait_for_a_checkpoint() -> None:
    """They fill no cache, but each is a ledger that memory must hold until it is in the index."""
    bottle = Bottle()
    most = 0
    async with bottle.running():
        for ledger_id in range(300):
            while bottle.storage.is_full:
                await bottle.storage.wait_room()
            if ledger_id % 2:
                bottle.fence(ledger_id)
            else:
                bottle.write_lac(ledger_id, 5)
            await trio.testing.wait_all_tasks_blocked()
            most = max(most, bottle.storage.statistics().states)
        await bottle.settle()
        await bottle.check()
    assert most <= 4 * bottle.options.states_max
