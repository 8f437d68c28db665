"""What a bookie answers to each kind of read of an entry whose stored bytes are damaged: Apache's
code for it, never "no such entry"; to a plain read with the stored bytes, for verifications."""

from __future__ import annotations

import logging

import pytest
import trio

from ledger.errors import Status
from ledger.wire.messages import (
    BatchReadRequest,
    BatchReadResponse,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
)
from tests.bookie.server.simulated_server import SimulatedServer, call, run_server
from tests.bookie.server.test_server import KEY, add, entry_of

LEDGER, ENTRIES, VICTIM = 1, 20, 12


async def damaged(bookie: SimulatedServer, *victims: int) -> dict[int, bytes]:
    """Stores entries, flips a bit in some, and returns the bytes of these as they are now."""
    async with bookie.peer("writer") as writer:
        for entry_id in range(ENTRIES):
            assert (await call(writer, add(LEDGER, entry_id))).status is Status.OK
    await bookie.flush()
    [data] = [inode.data for name, inode in bookie.disk.names.items() if name.endswith(".log")]
    stored = {}
    for victim in victims:
        entry = entry_of(LEDGER, victim)
        at = bytes(data).index(entry)
        data[at + len(entry) - 1] ^= 4
        stored[victim] = bytes(data[at : at + len(entry)])
    return stored


@pytest.mark.parametrize("version", [2, 3])
def test_reads(version: int, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        stored = await damaged(bookie, VICTIM)
        async with bookie.peer("reader", version) as reader:
            for _ in range(3):
                for entry_id in range(ENTRIES):
                    answer = await call(reader, ReadRequest(LEDGER, entry_id))
                    assert isinstance(answer, ReadResponse)
                    is_damaged = entry_id == VICTIM
                    assert answer.status is (Status.IO_ERROR if is_damaged else Status.OK)
                    assert answer.body is not None
                    expected = stored[VICTIM] if is_damaged else entry_of(LEDGER, entry_id)
                    assert bytes(answer.body) == expected

    run_server(scenario)
    errors = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert len(errors) == 1, "one line for a file, not for a read"


def test_batches_end_before_it() -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        await damaged(bookie, VICTIM)
        async with bookie.peer("reader") as reader:
            answer = await call(reader, BatchReadRequest(LEDGER, 3, 100, 1 << 20))
            assert isinstance(answer, BatchReadResponse)
            assert [bytes(one) for one in answer.bodies] == [
                entry_of(LEDGER, entry_id) for entry_id in range(3, VICTIM)
            ]
            answer = await call(reader, BatchReadRequest(LEDGER, VICTIM, 100, 1 << 20))
            assert isinstance(answer, BatchReadResponse)
            assert (answer.status, answer.bodies) == (Status.IO_ERROR, ())
            answer = await call(reader, BatchReadRequest(LEDGER, VICTIM + 1, 100, 1 << 20))
            assert isinstance(answer, BatchReadResponse)
            assert len(answer.bodies) == ENTRIES - VICTIM - 1

    run_server(scenario)


def test_a_long_poll_that_would_bring_it_is_an_io_error() -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        await damaged(bookie, VICTIM, ENTRIES - 1)
        async with bookie.peer("reader", 3) as reader:
            poll = ReadRequest(LEDGER, -1, is_piggyback=True, previous_lac=VICTIM - 1)
            for _ in range(2):
                answer = await call(reader, poll)
                assert isinstance(answer, ReadResponse)
                assert answer.status is Status.IO_ERROR
            # One that is parked, and whose entry is there when the LAC advances.
            answers = []

            async def wait() -> None:
                parked = ReadRequest(
                    LEDGER, -1, is_piggyback=True, previous_lac=ENTRIES - 2, timeout_ms=60_000
                )
                answers.append(await call(reader, parked))

            async with trio.open_nursery() as nursery, bookie.peer("writer") as writer:
                nursery.start_soon(wait)
                await trio.sleep(1)
                assert answers == []
                assert (await call(writer, add(LEDGER, ENTRIES))).status is Status.OK
            [answer] = answers
            assert isinstance(answer, ReadResponse)
            assert answer.status is Status.IO_ERROR

    run_server(scenario)


def test_recovery_never_takes_it_for_absent() -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        await damaged(bookie, ENTRIES - 1)
        async with bookie.peer("reader", 3) as reader:
            lac = await call(reader, ReadLacRequest(LEDGER))
            assert isinstance(lac, ReadLacResponse)
            assert lac.status is Status.IO_ERROR
            for entry_id in (-1, ENTRIES - 1):
                fencing = ReadRequest(LEDGER, entry_id, KEY, is_fencing=True)
                answer = await call(reader, fencing)
                assert answer.status is Status.IO_ERROR
            urgent = ReadRequest(LEDGER, ENTRIES - 1, is_high_priority=True)
            assert (await call(reader, urgent)).status is Status.IO_ERROR
            absent = await call(reader, ReadRequest(LEDGER, ENTRIES))
            assert absent.status is Status.NO_SUCH_ENTRY

    run_server(scenario)
