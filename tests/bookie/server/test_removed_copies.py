"""The replies of a bookie about a ledger whose copy it removes: none can be taken for one."""

from __future__ import annotations

import pytest

from ledger.connection.connection import BookieConnection
from ledger.core.availability import decode_entries_held
from ledger.errors import Status
from ledger.wire.messages import ListEntriesRequest, ListEntriesResponse, ReadRequest
from tests.bookie.server.simulated_server import SimulatedServer, call, run_server
from tests.bookie.server.test_server import KEY, add


@pytest.mark.parametrize("version", [2, 3])
def test_a_ledger_that_leaves_takes_nothing_and_lists_nothing(version: int) -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        storage = bookie.simulated.storage
        async with bookie.peer("writer", version) as writer, bookie.peer("worker", 3) as worker:
            for i in range(3):
                assert (await call(writer, add(7, i))).status is Status.OK
            await bookie.flush()
            state = storage.state(7)
            assert state is not None
            storage.fence(state, lambda: None)
            copies = storage.directory_of(7).garbage.copies
            with copies.refusing(state):
                assert (await call(writer, add(7, 3))).status is Status.FENCED
                copied = add(7, 1, is_recovery=True)
                assert (await call(writer, copied)).status is Status.READ_ONLY
                listed = await call(worker, ListEntriesRequest(7))
                assert listed.status is Status.UNKNOWN_LEDGER_STATE
                assert (await call(writer, ReadRequest(7, 1))).status is Status.OK
                await copies.remove(state)
                unknown = (await call(worker, ReadRequest(7, 1))).status
                assert unknown is Status.UNKNOWN_LEDGER_STATE
            # An empty list is the truth now, and a copy that arrives is one again.
            assert await _held(worker) == []
            for entry_id in (-1, 0):
                fence = ReadRequest(7, entry_id, KEY, is_fencing=True)
                assert (await call(worker, fence)).status is Status.UNKNOWN_LEDGER_STATE
            assert (await call(writer, add(7, 3))).status is Status.FENCED
            assert (await call(writer, copied)).status is Status.OK
            assert await _held(worker) == [(1, 1)]
            assert (await call(worker, ReadRequest(7, 0))).status is Status.NO_SUCH_ENTRY

    run_server(scenario)


async def _held(worker: BookieConnection) -> list[tuple[int, int]]:
    listed = await call(worker, ListEntriesRequest(7))
    assert isinstance(listed, ListEntriesResponse)
    assert listed.availability is not None
    return list(decode_entries_held(listed.availability))
