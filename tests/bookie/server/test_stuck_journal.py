"""A journal that hangs and ledgers that are never stored: limits, and requests that still work."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from bookie.server import backpressure
from bookie.server.request_metrics import Wait
from ledger.core.entry import Digest, DigestType
from ledger.errors import Status
from ledger.wire import v2, v3
from ledger.wire.messages import (
    AddRequest,
    AddResponse,
    ForceLedgerRequest,
    GetBookieInfoRequest,
    ListEntriesRequest,
    ReadRequest,
    Request,
    ResponseBody,
    WriteLacRequest,
)
from tests.bookie.server.simulated_server import (
    KIB,
    OPTIONS,
    Flood,
    SimulatedServer,
    call,
    run_server,
)
from tests.bookie.server.test_deferred_replies import block_journal, connect, released
from tests.bookie.server.test_server import KEY, add, entry_of

DIGEST = Digest(DigestType.CRC32C)
QUEUE = 256 * KIB
SOON_S = 0.1


def lac_frame(ledger_id: int, lac: int) -> bytes:
    packet = DIGEST.encode_lac(ledger_id, lac)
    return v3.encode_request(Request(3, 1, WriteLacRequest(ledger_id, lac, KEY, packet)))


def test_a_stuck_journal_accepts_limited_adds_and_a_fence_precedes_the_others() -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        journal = bookie.simulated.storage.journals[0]
        async with bookie.peer("seeder") as peer:
            for ledger_id in (8, 9):
                entry = entry_of(ledger_id, 0, payload=bytes(2000))  # as the floods send it again
                await call(peer, AddRequest(ledger_id, 0, KEY, entry))
        unblocked = await block_journal(bookie)
        floods = [Flood(bookie, f"writer-{n}", 8 + n, payload=2000) for n in range(2)]
        fenced: list[ResponseBody] = []
        async with trio.open_nursery() as nursery, released(bookie):
            for flood in floods:
                nursery.start_soon(flood.run)
            most = 0
            for _ in range(50):
                await trio.sleep(0.1)
                most = max(most, journal.queued_bytes)
            # Each connection checks before each chunk of up to 64 KiB while capacity is short.
            assert QUEUE / 2 < most < QUEUE + 2 * 512 * KIB
            waiting_bytes = bookie.server.statistics().held_add_bytes
            assert waiting_bytes > 0, "no add is throttled"

            async def fence() -> None:
                async with bookie.peer("recoverer") as peer:
                    request = ReadRequest(8, -1, KEY, is_fencing=True)
                    fenced.append(await call(peer, request))

            nursery.start_soon(fence)
            await trio.sleep(SOON_S)
            state = bookie.simulated.storage.state(8)
            assert state is not None
            assert state.is_fenced, "it waits in the next group, not outside"
            assert not state.is_fence_durable
            assert not fenced
            unblocked.set()
            await trio.sleep(SOON_S)
            assert [answer.status for answer in fenced] == [Status.OK]
            await trio.sleep(0.3)
            nursery.cancel_scope.cancel()
        # Adds that were not received yet follow the fence.
        assert floods[0].statuses[Status.FENCED] > 0
        assert set(floods[0].statuses) <= {Status.OK, Status.FENCED, Status.TOO_MANY_REQUESTS}
        assert set(floods[1].statuses) <= {Status.OK, Status.TOO_MANY_REQUESTS}

    run_server(scenario, queued_bytes_max=QUEUE)


def test_explicit_lacs_and_forced_ledgers_of_a_stuck_journal_block_only_their_sender() -> None:
    """One of two journals hangs. A peer floods it with requests that need its frames or replies."""

    async def scenario(bookie: SimulatedServer) -> None:
        storage = bookie.simulated.storage
        async with bookie.peer("seeder") as peer:
            for ledger_id in (8, 9):
                await call(peer, add(ledger_id, 0))
                await call(peer, add(ledger_id, 1))
        stuck_journal, other = storage.journals
        write, unblocked = stuck_journal._write, trio.Event()

        async def hanging(group: object) -> None:
            await unblocked.wait()
            await write(group)  # type: ignore[arg-type]

        stuck_journal._write = hanging  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            lacs = b"".join(lac_frame(8, lac) for lac in range(20_000))
            nursery.start_soon(connect, bookie, "lacs", lacs)
            await trio.sleep(5)
            assert QUEUE / 2 < storage.queued_bytes < 2 * QUEUE
            async with bookie.peer("peer") as peer:
                assert (await call(peer, add(9, 2), SOON_S)).status is Status.OK
                assert (await call(peer, ReadRequest(8, 0), SOON_S)).status is Status.OK
                waiting: list[ResponseBody] = []

                async def fence() -> None:
                    request = ReadRequest(8, -1, KEY, is_fencing=True)
                    async with bookie.peer("recoverer") as recoverer:
                        waiting.append(await call(recoverer, request))

                nursery.start_soon(fence)
                await trio.sleep(SOON_S)
                state = storage.state(8)
                assert state is not None
                assert state.is_fenced
                unblocked.set()
                await trio.sleep(1)
                assert [answer.status for answer in waiting] == [Status.OK]
            assert other.is_idle
            nursery.cancel_scope.cancel()
        assert bookie.server.statistics().requests.waits[Wait.JOURNAL] > 0

    run_server(scenario, journals=2, directories=2, queued_bytes_max=QUEUE)


def test_lists_of_entries_that_wait_for_a_stuck_journal_block_nobody() -> None:
    """One of two journals hangs, and peers ask what is in its ledgers."""

    async def scenario(bookie: SimulatedServer) -> None:
        stuck_journal = bookie.simulated.storage.journals[0]
        async with bookie.peer("seeder") as peer:
            for ledger_id in (8, 9):
                await call(peer, add(ledger_id, 0))
        write, unblocked = stuck_journal._write, trio.Event()

        async def hanging(group: object) -> None:
            await unblocked.wait()
            await write(group)  # type: ignore[arg-type]

        stuck_journal._write = hanging  # type: ignore[method-assign]
        listed: list[ResponseBody] = []
        async with trio.open_nursery() as nursery:

            async def ask(name: str) -> None:
                async with bookie.peer(name, 3) as auditor:
                    listed.append(await call(auditor, ListEntriesRequest(8)))

            async with bookie.peer("writer") as writer, bookie.peer("peer", 3) as peer:
                nursery.start_soon(call, writer, add(8, 1))
                await trio.sleep(SOON_S)
                for number in range(10):
                    nursery.start_soon(ask, f"auditor{number}")
                await trio.sleep(SOON_S)
                assert (await call(peer, GetBookieInfoRequest(3), SOON_S)).status is Status.OK
                assert (await call(peer, ListEntriesRequest(9), SOON_S)).status is Status.OK
                assert not listed, "it has an entry that is not durable"
                unblocked.set()
                await trio.sleep(SOON_S)
                assert [one.status for one in listed] == [Status.OK] * 10
        assert not bookie.server.statistics().reads_waiting

    run_server(scenario, journals=2, directories=2)


def test_lists_of_entries_that_wait_for_a_stuck_journal_are_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backpressure, "QUEUED_CALLBACKS_MAX", 1000)

    async def scenario(bookie: SimulatedServer) -> None:
        storage = bookie.simulated.storage
        async with bookie.peer("writer") as writer, released(bookie):
            await call(writer, add(7, 0))
            unblocked = await block_journal(bookie)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, writer, add(7, 1))
                await trio.sleep(SOON_S)
                lists = v3.encode_request(Request(3, 1, ListEntriesRequest(7))) * 1000
                for number in range(5):
                    nursery.start_soon(connect, bookie, f"auditor{number}", lists)
                await trio.sleep(5)
                assert 1000 < storage.queued_callbacks < 2600
                unblocked.set()
                await trio.sleep(1)
                assert storage.queued_callbacks == 0
                nursery.cancel_scope.cancel()

    run_server(scenario)


def test_new_ledgers_are_limited_and_block_only_their_creator() -> None:
    """Fences and explicit LACs of random ledgers, while the disk takes no checkpoint."""

    async def scenario(bookie: SimulatedServer) -> None:
        storage = bookie.simulated.storage
        directory = storage.directories[0]
        async with bookie.peer("seeder") as peer:
            await call(peer, add(7, 0))
            await call(peer, add(7, 1))
        sync, unblocked = directory._logs.sync, trio.Event()

        async def hanging() -> None:
            await unblocked.wait()
            await sync()

        directory._logs.sync = hanging  # type: ignore[method-assign]
        fences = b"".join(
            v2.encode_request(Request(2, 0, ReadRequest(ledger_id, -1, KEY, is_fencing=True)))
            for ledger_id in range(1000, 21_000)
        )
        lacs = b"".join(lac_frame(ledger_id, 1) for ledger_id in range(30_000, 50_000))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connect, bookie, "fences", fences)
            nursery.start_soon(connect, bookie, "lacs", lacs)
            await trio.sleep(5)
            # Those in the current checkpoint, and up to twice as many more.
            assert 1000 < len(directory.states) < 6 * 1000
            known = len(directory.states)
            await trio.sleep(5)
            assert len(directory.states) == known, "they wait"
            async with bookie.peer("peer") as peer, bookie.peer("adder") as adder:
                assert (await call(peer, ReadRequest(7, 0), SOON_S)).status is Status.OK
                added: list[ResponseBody] = []

                async def add_later() -> None:
                    added.append(await call(adder, add(60_000, 0)))

                nursery.start_soon(add_later)
                await trio.sleep(SOON_S)
                assert not added, "it would make one more"
                unblocked.set()
                await trio.sleep(3)
                assert [type(one) for one in added] == [AddResponse]
                assert added[0].status is Status.OK
            nursery.cancel_scope.cancel()

    run_server(scenario, options=replace(OPTIONS, states_max=1000))


def test_replies_that_wait_for_a_stuck_journal_are_limited_and_fences_less_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backpressure, "QUEUED_CALLBACKS_MAX", 1000)

    async def scenario(bookie: SimulatedServer) -> None:
        storage = bookie.simulated.storage
        async with bookie.peer("writer") as writer, released(bookie):
            await call(writer, add(7, 0))
            await call(writer, add(7, 1))
            unblocked = await block_journal(bookie)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, writer, add(8, 0))
                await trio.sleep(SOON_S)
                force = v3.encode_request(Request(3, 1, ForceLedgerRequest(7)))
                nursery.start_soon(connect, bookie, "forces", force * 3000)
                await trio.sleep(5)
                assert 1000 < storage.queued_callbacks < 1600
                fence = ReadRequest(7, -1, KEY, is_fencing=True)
                nursery.start_soon(call, writer, fence)
                await trio.sleep(SOON_S)
                state = storage.state(7)
                assert state is not None
                assert state.is_fenced
                assert (await call(writer, ReadRequest(7, 0), SOON_S)).status is Status.OK
                unblocked.set()
                await trio.sleep(1)
                nursery.cancel_scope.cancel()

    run_server(scenario)
