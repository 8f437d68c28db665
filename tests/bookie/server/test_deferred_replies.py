"""Replies that wait for a journal: the memory they take, and the entries they may contain."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from bookie.testing.transport import SimTransport
from ledger.errors import Status
from ledger.wire import v2, v3
from ledger.wire.messages import (
    AddRequest,
    BatchReadRequest,
    ReadRequest,
    ReadResponse,
    Request,
    RequestBody,
)
from tests.bookie.server.simulated_server import SimulatedServer, call, run_server, send_all
from tests.bookie.server.test_server import KEY, add, entry_of

LARGE = 60_000
REQUESTS = 2000


@asynccontextmanager
async def released(bookie: SimulatedServer) -> AsyncIterator[None]:
    """Sets the event at the end, since a write that hangs cannot be cancelled when a test fails."""
    try:
        yield
    finally:
        if bookie.disk.gate is not None:
            bookie.disk.gate.set()


async def block_journal(bookie: SimulatedServer) -> trio.Event:
    """Blocks writes to the journals' disk until the returned event is set."""
    bookie.disk.gate = trio.Event()
    return bookie.disk.gate


async def connect(bookie: SimulatedServer, name: str, data: bytes) -> SimTransport:
    """Connects a peer that sends `data` and reads nothing."""
    transport = await bookie.network.of(name).connect("bookie", 3181)
    await send_all(transport, data)
    return transport


def large(ledger_id: int, entry_id: int) -> AddRequest:
    return AddRequest(ledger_id, entry_id, KEY, entry_of(ledger_id, entry_id, payload=bytes(LARGE)))


async def check_bounded(bookie: SimulatedServer, request: bytes, wakes: RequestBody) -> None:
    """Lets one peer request a large entry often; each reply waits until `wakes` was answered."""
    async with (
        bookie.peer("seeder") as peer,
        trio.open_nursery() as nursery,
        released(bookie),
    ):
        await call(peer, large(7, 0))
        unblocked = await block_journal(bookie)
        nursery.start_soon(call, peer, wakes)
        await trio.sleep(0.1)
        greedy = await connect(bookie, "greedy", request * REQUESTS)
        await trio.sleep(1)
        unblocked.set()
        most = 0
        for _ in range(100):
            await trio.sleep(0.01)
            most = max(most, bookie.server.statistics().reply_bytes)
        assert most > LARGE, "nothing was answered"
        assert most < 20 * LARGE, f"{most} bytes are kept for a peer that reads nothing"
        greedy.close()


def test_reads_beyond_the_lac_fill_no_memory_when_the_journal_continues() -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        read = v2.encode_request(Request(2, 0, ReadRequest(7, 0)))
        await check_bounded(bookie, read, add(8, 0))

    run_server(scenario, replies_bytes_max=2 * LARGE)


def test_batches_beyond_the_lac_fill_no_memory_when_the_journal_continues() -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        read = v2.encode_request(Request(2, 1, BatchReadRequest(7, 0, 5, 1 << 20)))
        await check_bounded(bookie, read, add(8, 0))

    run_server(scenario, replies_bytes_max=2 * LARGE)


def test_fencing_reads_fill_no_memory_when_the_journal_continues() -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        fence = ReadRequest(7, -1, KEY, is_fencing=True)
        await check_bounded(bookie, v2.encode_request(Request(2, 0, fence)), add(8, 0))

    run_server(scenario, replies_bytes_max=2 * LARGE)


def test_parked_polls_fill_no_memory_when_the_lac_advances() -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        poll = ReadRequest(7, -1, is_piggyback=True, previous_lac=-1, timeout_ms=60_000)
        request = v3.encode_request(Request(3, 1, poll))
        async with bookie.peer("writer") as peer:
            await call(peer, large(7, 0))
            greedy = await connect(bookie, "greedy", request * 90)
            await trio.sleep(1)
            await call(peer, add(7, 1))
            await trio.sleep(1)
            assert LARGE < bookie.server.statistics().reply_bytes < 20 * LARGE
            greedy.close()

    run_server(scenario, replies_bytes_max=2 * LARGE)


async def check_waits(bookie: SimulatedServer, request: ReadRequest, version: int) -> None:
    """Checks that a reply with entry 1, which is in memory only, waits until it is on disk."""
    async with (
        bookie.peer("peer") as peer,
        bookie.peer("reader", version) as reader,
        released(bookie),
    ):
        unblocked = await block_journal(bookie)
        answers: list[ReadResponse] = []

        async def read() -> None:
            answer = await call(reader, request)
            assert isinstance(answer, ReadResponse)
            answers.append(answer)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.sleep(0.1)
            nursery.start_soon(call, peer, add(7, 1, is_recovery=True))
            await trio.sleep(1)
            if request.previous_lac is None:
                nursery.start_soon(read)
                await trio.sleep(1)
            assert not [a for a in answers if a.body == entry_of(7, 1)], "answered too early"
            unblocked.set()
        assert answers[-1].status is Status.OK
        assert answers[-1].body == entry_of(7, 1)


def test_the_last_entry_is_reported_when_it_is_on_disk() -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        async with bookie.peer("seeder") as peer:
            await call(peer, add(7, 0))
        await check_waits(bookie, ReadRequest(7, -1), 2)

    run_server(scenario)


def test_a_second_fence_reports_no_entry_that_is_not_on_disk() -> None:
    """Two clients recover one ledger: the fence does not make durable what the first writes
    again."""

    async def scenario(bookie: SimulatedServer) -> None:
        fence = ReadRequest(7, -1, KEY, is_fencing=True)
        async with bookie.peer("seeder") as peer:
            await call(peer, add(7, 0))
            await call(peer, fence)
        await check_waits(bookie, fence, 2)

    run_server(scenario)


def test_a_poll_without_piggyback_reports_no_entry_that_is_not_on_disk() -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        async with bookie.peer("seeder") as peer:
            await call(peer, add(7, 0))
        await check_waits(bookie, ReadRequest(7, 1, previous_lac=-1, timeout_ms=60_000), 3)

    run_server(scenario)


def test_a_fence_waits_for_one_group_only() -> None:
    """The reported entry precedes the request, so it is durable with it."""

    async def scenario(bookie: SimulatedServer) -> None:
        async with (
            bookie.peer("writer") as writer,
            bookie.peer("recoverer") as recoverer,
            released(bookie),
        ):
            await call(writer, add(7, 0))
            first, answers = await block_journal(bookie), list[ReadResponse]()

            async def fence() -> None:
                answer = await call(recoverer, ReadRequest(7, -1, KEY, is_fencing=True))
                assert isinstance(answer, ReadResponse)
                answers.append(answer)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, writer, add(8, 0))
                await trio.sleep(0.1)
                nursery.start_soon(fence)
                await trio.sleep(0.1)
                second = await block_journal(bookie)  # for the group with the fence
                first.set()
                await trio.sleep(0.1)
                assert not answers
                nursery.start_soon(call, writer, add(8, 1))
                await trio.sleep(0.1)
                third = await block_journal(bookie)
                second.set()
                await trio.sleep(0.1)
                assert [answer.status for answer in answers] == [Status.OK]
                third.set()

    run_server(scenario)
