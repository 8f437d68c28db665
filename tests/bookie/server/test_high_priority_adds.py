"""Adds that are accepted where ordinary ones are not, and the memory that adds over v3 take."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
import trio

from ledger.errors import Status
from ledger.wire import v2, v3
from ledger.wire.messages import AddResponse, ReadRequest, Request
from tests.bookie.server.simulated_server import (
    KIB,
    SimulatedServer,
    call,
    run_server,
    send_all,
)
from tests.bookie.server.test_deferred_replies import block_journal, released
from tests.bookie.server.test_server import KEY, add
from tests.effort import scaled

QUEUE_BYTES = 1024 * KIB
ADDS = scaled(ci=2000, night=4001)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("takes_recovery", [True, False])
def test_a_read_only_bookie_accepts_recovery_adds_and_those_with_priority(
    version: int, takes_recovery: bool
) -> None:
    """It does so while its disks have space for it. Apache's bookie accepts adds with priority."""

    async def scenario(bookie: SimulatedServer) -> None:
        async with bookie.peer("writer", version) as writer:
            await call(writer, add(7, 0))
            gate = bookie.simulated.storage.gate
            gate.set(is_read_only=True, takes_recovery=takes_recovery)
            urgent = Status.OK if takes_recovery else Status.READ_ONLY
            for request, status in (
                (add(7, 1), Status.READ_ONLY),
                (add(7, 2, is_recovery=True), urgent),
                (add(7, 3, is_high_priority=True), urgent),
                (add(8, 0, is_high_priority=True), urgent),
                (add(9, 0), Status.READ_ONLY),
            ):
                answer = await call(writer, request)
                assert isinstance(answer, AddResponse)
                assert answer.status is status, request

    run_server(scenario)


@pytest.mark.parametrize("version", [2, 3])
def test_a_bookie_that_is_emptied_takes_recovery_adds_of_ledgers_that_it_knows(
    version: int,
) -> None:
    """A recovery has fenced the ledger here; a worker that makes a copy chooses another bookie."""

    async def scenario(bookie: SimulatedServer) -> None:
        async with bookie.peer("writer", version) as writer:
            await call(writer, add(7, 0))
            gate = bookie.simulated.storage.gate
            gate.set(is_read_only=True, takes_recovery=True, is_emptying=True)
            fence = ReadRequest(9, -1, KEY, is_fencing=True)
            assert (await call(writer, fence)).status in (Status.OK, Status.NO_SUCH_ENTRY)
            for request, status in (
                (add(7, 1), Status.READ_ONLY),
                (add(7, 2, is_high_priority=True), Status.READ_ONLY),
                (add(7, 3, is_recovery=True), Status.OK),
                (add(8, 0, is_recovery=True), Status.READ_ONLY),
                (add(9, 0, is_recovery=True), Status.OK),
                (add(9, 1), Status.READ_ONLY),
            ):
                answer = await call(writer, request)
                assert isinstance(answer, AddResponse)
                assert answer.status is status, request
            assert bookie.simulated.storage.state(8) is None
            gate.set(is_read_only=False, takes_recovery=True)
            assert (await call(writer, add(8, 0))).status is Status.OK

    run_server(scenario)


def _memory_taken(version: int) -> int:
    """Returns the memory that adds of one byte take, sent by ten peers while the journal hangs."""
    codec = v3 if version == 3 else v2
    floods = [
        b"".join(codec.encode_request(Request(version, n, add(8 + i, n))) for n in range(1, ADDS))
        for i in range(10)
    ]
    taken = 0

    async def scenario(bookie: SimulatedServer) -> None:
        nonlocal taken
        async with bookie.peer("seeder") as peer:
            for i in range(10):
                await call(peer, add(8 + i, 0))
        unblocked = await block_journal(bookie)
        gc.collect()
        tracemalloc.start()
        async with trio.open_nursery() as nursery, released(bookie):
            for i in range(10):
                transport = await bookie.network.of(f"writer-{i}").connect("bookie", 3181)
                nursery.start_soon(send_all, transport, floods[i])
            await trio.sleep(10)
            gc.collect()
            taken = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
            assert bookie.simulated.storage.journals[0].queued_bytes > QUEUE_BYTES
            unblocked.set()
            nursery.cancel_scope.cancel()

    run_server(scenario, queued_bytes_max=QUEUE_BYTES)
    return taken


def test_adds_over_v3_take_no_more_memory_than_those_over_v2() -> None:
    """Over v3 each has a reply of its own, whose kilobyte is counted while it waits. Both numbers
    include the bytes in the simulated network and the throttled adds."""
    over_v2, over_v3 = _memory_taken(2), _memory_taken(3)
    assert over_v3 < 1.2 * over_v2, f"{over_v3} bytes, {over_v2} over v2"
