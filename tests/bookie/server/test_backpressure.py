"""Overload in virtual time: what is limited, which requests wait, are refused, or go first."""

from __future__ import annotations

from dataclasses import replace

import trio

from bookie.server.read_scheduler import ReadLimits
from bookie.server.request_metrics import Wait
from bookie.server.throttled_adds import THROTTLED_BYTES_MAX
from ledger.core.entry import Digest, DigestType
from ledger.errors import Status
from ledger.wire import v2
from ledger.wire.messages import (
    AddRequest,
    AddResponse,
    BatchReadRequest,
    BatchReadResponse,
    ReadRequest,
    ReadResponse,
    Request,
    WriteLacRequest,
    WriteLacResponse,
)
from tests.bookie.server.simulated_server import (
    KIB,
    OPTIONS,
    Flood,
    SimulatedServer,
    call,
    run_server,
)
from tests.bookie.server.test_server import KEY, add, entry_of

DIGEST = Digest(DigestType.CRC32C)
SMALL_CACHE = replace(OPTIONS, write_cache_bytes=512 * KIB)
SOON_S = 0.1
"""A few round trips of the simulated network."""


async def recover(bookie: SimulatedServer, ledger_id: int, within_s: float = SOON_S) -> None:
    """Recovers a ledger as another client does: fences, reads, and writes the last entries
    again."""
    async with bookie.peer("recoverer") as peer, bookie.peer("recoverer-3", 3) as peer_3:
        fence = ReadRequest(ledger_id, -1, KEY, is_fencing=True, is_high_priority=True)
        last = await call(peer, fence, within_s)
        assert isinstance(last, ReadResponse)
        assert last.status is Status.OK
        read = await call(peer, ReadRequest(ledger_id, 0, is_high_priority=True), within_s)
        assert isinstance(read, ReadResponse)
        assert read.status is Status.OK
        again = await call(peer, add(ledger_id, 0, is_recovery=True), within_s)
        assert isinstance(again, AddResponse)
        assert again.status is Status.OK
        entry = entry_of(ledger_id, 0)
        urgent = AddRequest(ledger_id, 0, KEY, entry, is_recovery=True, is_high_priority=True)
        again = await call(peer_3, urgent, within_s)
        assert isinstance(again, AddResponse)
        assert again.status is Status.OK
        packet = DIGEST.encode_lac(ledger_id, 0)
        reported = await call(peer_3, WriteLacRequest(ledger_id, 0, KEY, packet), within_s)
        assert isinstance(reported, WriteLacResponse)
        assert reported.status is Status.OK


async def seed(bookie: SimulatedServer, *ledger_ids: int, entries: int = 1) -> None:
    async with bookie.peer("seeder") as peer:
        for ledger_id in ledger_ids:
            for entry_id in range(entries):
                answer = await call(peer, add(ledger_id, entry_id))
                assert answer.status is Status.OK


def directories_of(bookie: SimulatedServer) -> int:
    return len(bookie.simulated.storage.directories)


async def fill(bookie: SimulatedServer, flood: Flood, nursery: trio.Nursery) -> trio.Event:
    """Returns when the write cache is full: the flush of its other half hangs until the returned
    event is set."""
    directory = bookie.simulated.storage.directories[flood.ledger_id % directories_of(bookie)]
    sync, unblocked = directory._logs.sync, trio.Event()

    async def hanging() -> None:
        await unblocked.wait()
        await sync()

    directory._logs.sync = hanging  # type: ignore[method-assign]
    nursery.start_soon(flood.run)
    while not directory.is_full:  # noqa: ASYNC110 - virtual time
        await trio.sleep(0.01)
    await trio.sleep(0.5)
    return unblocked


def test_a_full_write_cache_accepts_recovery_adds_and_refuses_others_after_a_wait() -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        storage = bookie.simulated.storage
        await seed(bookie, 7)
        flood = Flood(bookie, "writer", 8, payload=2000)
        async with trio.open_nursery() as nursery:
            unblocked = await fill(bookie, flood, nursery)
            full_at = trio.current_time()
            taken = len(flood.acked)
            assert not flood.refused
            await recover(bookie, 7)
            async with bookie.peer("tail") as peer:
                read = await call(peer, ReadRequest(8, 5), SOON_S)
                assert read.status is Status.OK
            assert len(flood.acked) == taken
            while not flood.refused:  # noqa: ASYNC110 - virtual time
                await trio.sleep(0.01)
            assert 9 < trio.current_time() - full_at < 10.1  # the cache was full a little earlier
            await trio.sleep(3)
            assert set(flood.statuses) == {Status.OK, Status.TOO_MANY_REQUESTS}
            assert len(flood.refused) > 100, "what comes later need not wait as long again"
            cache = storage.directories[0].cache
            assert cache.nbytes < 1.25 * cache.bytes_max
            unblocked.set()
            while len(flood.acked) == taken:  # noqa: ASYNC110 - virtual time
                await trio.sleep(0.01)
            await trio.sleep(0.2)
            nursery.cancel_scope.cancel()
        statistics = bookie.server.statistics()
        assert statistics.requests.waits[Wait.WRITE_CACHE] > 0
        assert statistics.requests.refused["add", "too_many_requests"] == len(flood.refused)
        # No add is stored in part: refused entries are missing, acknowledged ones are present.
        async with bookie.peer("reader") as peer:
            for entry_id in list(flood.refused)[::97]:
                answer = await call(peer, ReadRequest(8, entry_id))
                assert answer.status is Status.NO_SUCH_ENTRY
            for entry_id in list(flood.acked)[::97]:
                answer = await call(peer, ReadRequest(8, entry_id))
                assert answer.status is Status.OK

    run_server(scenario, options=SMALL_CACHE)


def test_adds_that_wait_longer_take_no_more_memory() -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        floods = [Flood(bookie, f"writer-{n}", 8 + n, payload=2000) for n in range(10)]
        waiting_bytes: list[int] = []
        async with trio.open_nursery() as nursery:
            await fill(bookie, floods[0], nursery)
            for flood in floods[1:]:
                nursery.start_soon(flood.run)
            for _ in range(100):
                await trio.sleep(0.2)
                waiting_bytes.append(bookie.server.statistics().held_add_bytes)
                assert bookie.simulated.storage.queued_bytes <= 256 * KIB
            nursery.cancel_scope.cancel()
        assert 0 < max(waiting_bytes) <= 10 * 2 * THROTTLED_BYTES_MAX
        assert sum(flood.statuses[Status.TOO_MANY_REQUESTS] for flood in floods) > 1000
        await trio.sleep(1)
        assert bookie.server.statistics().held_add_bytes == 0, "their peers are gone"

    run_server(scenario, options=SMALL_CACHE)


def test_a_full_directory_does_not_block_another() -> None:
    """The checkpoint of one of two directories hangs. Adds to the other continue."""

    async def scenario(bookie: SimulatedServer) -> None:
        storage = bookie.simulated.storage
        await seed(bookie, 8, 9)
        _, other = storage.directories
        flood = Flood(bookie, "writer", 8, payload=2000)
        async with trio.open_nursery() as nursery, bookie.peer("both") as both:
            unblocked = await fill(bookie, flood, nursery)
            answers: list[tuple[int, Status]] = []

            async def ask(ledger_id: int, entry_id: int) -> None:
                answer = await call(both, add(ledger_id, entry_id))
                answers.append((ledger_id, answer.status))

            for entry_id in range(1, 11):
                nursery.start_soon(ask, 8, 100_000 + entry_id)
                nursery.start_soon(ask, 9, entry_id)
            await trio.sleep(SOON_S)
            assert answers == [(9, Status.OK)] * 10
            flood.stop()
            await trio.sleep(SOON_S)
            unblocked.set()
            await trio.sleep(2)
            assert sorted(answers) == [(8, Status.OK)] * 10 + [(9, Status.OK)] * 10
            assert not other.is_full
            nursery.cancel_scope.cancel()

    run_server(scenario, directories=2, options=replace(OPTIONS, write_cache_bytes=1024 * KIB))


def test_a_thousand_reads_of_a_slow_disk_delay_no_fence_no_tail_and_no_other_peer() -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        ledgers = range(100, 1100)
        await seed(bookie, 7, *ledgers)
        await bookie.flush()
        await seed(bookie, 8)
        bookie.slow_disk.read_s = 1.0
        answered = 0
        async with (
            bookie.peer("catching-up") as busy,
            bookie.peer("catching-up-too") as busy_too,
            trio.open_nursery() as nursery,
        ):

            async def ask(ledger_id: int) -> None:
                nonlocal answered
                peer = busy_too if ledger_id % 2 else busy
                read = await call(peer, ReadRequest(ledger_id, 0))
                assert read.status is Status.OK
                answered += 1

            for ledger_id in ledgers:
                nursery.start_soon(ask, ledger_id)
            await trio.sleep(0.5)
            statistics = bookie.server.statistics()
            assert statistics.reads_waiting == 1000
            assert sum(statistics.reads_waiting_by_directory) == 992, "8 are in progress"
            async with bookie.peer("tail") as tail, bookie.peer("other") as other:
                # On the same connection and on another one, entries in memory are returned at once.
                for peer in (busy, tail):
                    hit = await call(peer, ReadRequest(8, 0), SOON_S)
                    assert hit.status is Status.OK
                await call(tail, add(8, 1), SOON_S)
                await recover(bookie, 7, within_s=1.0 + SOON_S)
                # It runs in the next free slot.
                read = await call(other, ReadRequest(500, 0), 2.0 + SOON_S)
                assert read.status is Status.OK
                fence = BatchReadRequest(501, 0, 10, 1000, KEY, is_fencing=True)
                batch = await call(other, fence, 1.0 + SOON_S)
                assert isinstance(batch, BatchReadResponse)
                assert batch.status is Status.OK
            assert answered < 100, "the thousand reads still wait"
        assert answered == 1000
        assert bookie.server.statistics().reads_waiting == 0

    run_server(scenario)


def test_reads_beyond_the_limit_of_a_directory_are_refused_unless_urgent() -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        await seed(bookie, *range(100, 200))
        await bookie.flush()
        bookie.slow_disk.read_s = 1.0
        statuses: list[Status] = []
        async with bookie.peer("busy") as busy, trio.open_nursery() as nursery:

            async def ask(ledger_id: int) -> None:
                answer = await call(busy, ReadRequest(ledger_id, 0))
                statuses.append(answer.status)

            for ledger_id in range(100, 200):
                nursery.start_soon(ask, ledger_id)
            await trio.sleep(0.5)
            assert statuses == [Status.TOO_MANY_REQUESTS] * (100 - 8 - 50)
            async with bookie.peer("recoverer") as peer:
                read = await call(peer, ReadRequest(150, 0, is_high_priority=True), 1 + SOON_S)
                assert read.status is Status.OK
        assert statuses[42:] == [Status.OK] * 58
        refused = bookie.server.statistics().requests.refused
        assert refused["read", "too_many_requests"] == 42

    run_server(scenario, read_limits=ReadLimits(waiting_max=1000, directory_waiting_max=50))


def test_above_the_limit_of_all_reads_their_connections_are_not_read() -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        await seed(bookie, *range(100, 400))
        await bookie.flush()
        bookie.slow_disk.read_s = 1.0
        answered = 0
        most = 0
        async with trio.open_nursery() as nursery:

            async def catch_up(name: str) -> None:
                nonlocal answered
                async with bookie.peer(name) as peer, trio.open_nursery() as reads:

                    async def ask(ledger_id: int) -> None:
                        nonlocal answered
                        assert (await call(peer, ReadRequest(ledger_id, 0))).status is Status.OK
                        answered += 1

                    for ledger_id in range(100, 400):
                        reads.start_soon(ask, ledger_id)
                        await trio.sleep(0.001)  # each in a chunk of its own

            for number in range(5):
                nursery.start_soon(catch_up, f"reader-{number}")
            while answered < 1500:
                await trio.sleep(0.1)
                most = max(most, bookie.server.statistics().reads_waiting)
        assert 100 <= most <= 100 + 5 * 40
        assert bookie.server.statistics().requests.waits[Wait.READS] > 0

    run_server(scenario, read_limits=ReadLimits(waiting_max=100, directory_waiting_max=5000))


def test_a_peer_that_takes_no_replies_is_disconnected_and_does_not_affect_others() -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        payload = bytes(30_000)
        async with bookie.peer("seeder") as peer:
            for entry_id in range(3):
                entry = entry_of(7, entry_id, payload=payload)
                await call(peer, AddRequest(7, entry_id, KEY, entry))
        deaf = []
        for number in range(10):
            transport = await bookie.network.of(f"deaf-{number}").connect("bookie", 3181)
            transport.send(v2.encode_request(Request(2, 0, ReadRequest(7, 0))) * 2000)
            deaf.append(transport)
        await trio.sleep(5)
        statistics = bookie.server.statistics()
        # Each of them may exceed half of the limit by at most one reply.
        assert 200_000 < statistics.reply_bytes <= 1_000_000
        flat = statistics.reply_bytes
        async with bookie.peer("listening") as peer:
            for entry_id in range(3):
                read = await call(peer, ReadRequest(7, entry_id), SOON_S)
                assert read.status is Status.OK
        await trio.sleep(50)
        statistics = bookie.server.statistics()
        assert statistics.reply_bytes <= flat
        assert statistics.connections == 10
        await trio.sleep(10)
        statistics = bookie.server.statistics()
        assert statistics.peers_dropped == 10
        assert (statistics.reply_bytes, statistics.connections) == (0, 0)

    run_server(scenario, replies_bytes_max=1_000_000)
