"""Bookies that are older than ours or overloaded: no batch reads, refusals, read-only bookies."""

from __future__ import annotations

from collections import Counter

import pytest
import trio
import trio.testing

from ledger.client import LedgerClient
from ledger.errors import LedgerError, NotEnoughBookies, Status, TooManyRequests
from ledger.wire.messages import (
    AddRequest,
    AddResponse,
    BatchReadRequest,
    BatchReadResponse,
    ReadRequest,
    ReadResponse,
    Request,
    ResponseBody,
)
from tests.ledger.scripted_bookie import Hangup, ScriptedCluster, scripted_cluster


def payload_of(i: int) -> bytes:
    return b"%d" % i


def closes_on_batches(request: Request) -> ResponseBody | None:
    """Closes the connection on an unknown opcode, as release 4.16 does."""
    if isinstance(request.body, BatchReadRequest):
        raise Hangup
    return None


async def written(client: LedgerClient, count: int) -> int:
    async with client.create_ledger() as writer:
        await writer.append_many(map(payload_of, range(count)))
    return writer.ledger_id


async def check_reads(client: LedgerClient, ledger_id: int, count: int) -> int:
    """Reads all entries and returns the number of requests."""
    async with client.open_ledger(ledger_id) as reader:
        entries = await reader.read(0, count - 1)
        assert [bytes(e.payload) for e in entries] == [payload_of(i) for i in range(count)]
        return reader.statistics().requests


def requests_of(cluster: ScriptedCluster, kind: type) -> list[Request]:
    return [r for b in cluster.bookies.values() for r in b.requests if isinstance(r.body, kind)]


async def test_no_call_fails_when_a_batch_read_closes_its_connection() -> None:
    async with scripted_cluster() as cluster, cluster.client(speculative_read_s=60) as client:
        for bookie in cluster.bookies.values():
            bookie.script = closes_on_batches
        ledger_id = await written(client, 500)
        async with client.create_ledger() as writer, trio.open_nursery() as nursery:

            async def append() -> None:
                for i in range(200):
                    assert await writer.append(b"%d" % i) == i

            nursery.start_soon(append)
            for _ in range(3):
                assert await check_reads(client, ledger_id, 500) == 500
        assert writer.statistics().ensemble_changes == 0
        assert writer.last_add_confirmed == 199
        batches = requests_of(cluster, BatchReadRequest)
    # It is sent twice to each bookie, to distinguish an old one from one that is being stopped.
    asked = {b.name: sum(r in batches for r in b.requests) for b in cluster.bookies.values()}
    assert set(asked.values()) <= {0, 2}
    assert batches


async def test_a_bookie_that_is_being_stopped_is_not_taken_for_an_old_one() -> None:
    async with scripted_cluster(1) as cluster, cluster.client(speculative_read_s=60) as client:
        bookie = cluster.bookie("b0")
        hangups = 1

        def script(request: Request) -> ResponseBody | None:
            nonlocal hangups
            if isinstance(request.body, BatchReadRequest) and hangups:
                hangups -= 1
                raise Hangup
            return None

        bookie.script = script
        async with client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as writer:
            await writer.append_many(map(payload_of, range(500)))
        assert await check_reads(client, writer.ledger_id, 500) < 20


async def test_a_restarted_bookie_is_sent_batch_reads_again() -> None:
    sizes = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
    async with scripted_cluster(1) as cluster, cluster.client(speculative_read_s=60) as client:
        bookie = cluster.bookie("b0")
        bookie.script = closes_on_batches
        async with client.create_ledger(**sizes) as writer:  # type: ignore[arg-type]
            await writer.append_many(map(payload_of, range(500)))
        assert await check_reads(client, writer.ledger_id, 500) == 500

        def restarted(request: Request) -> ResponseBody | None:
            if isinstance(request.body, ReadRequest) and request.version == 2:
                raise Hangup
            return None

        bookie.script = restarted
        with pytest.raises(LedgerError):
            await check_reads(client, writer.ledger_id, 1)
        bookie.script = lambda request: None
        with trio.fail_after(10):
            while True:
                try:
                    assert await check_reads(client, writer.ledger_id, 500) < 20
                except LedgerError:
                    await trio.sleep(0.05)  # the pause after a failure
                else:
                    break


async def test_concurrent_batch_reads_wait_for_the_first() -> None:
    async with scripted_cluster(1) as cluster, cluster.client(speculative_read_s=60) as client:
        async with client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as writer:
            await writer.append_many(map(payload_of, range(100)))
        answers: list[ResponseBody | None] = []

        async def ask() -> None:
            request = BatchReadRequest(writer.ledger_id, 0, 10, 1 << 20)
            answers.append(await client.pool.read_batch("b0", request, timeout_s=5))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(ask)
        assert all(isinstance(a, BatchReadResponse) and len(a.bodies) == 10 for a in answers)
        assert len(answers) == 20
        asked = [
            sum(isinstance(request.body, BatchReadRequest) for request in requests)
            for requests in cluster.bookie("b0").requests_of.values()
        ]
        assert sorted(asked)[-2:] == [1, 19], (
            "one read uses a connection of its own, before all others"
        )
        assert sum(asked) == 20


async def test_v3_needs_one_connection_and_single_reads() -> None:
    async with (
        scripted_cluster() as cluster,
        cluster.client(wire_version=3, speculative_read_s=60) as client,
    ):
        ledger_id = await written(client, 300)
        assert await check_reads(client, ledger_id, 300) == 300
        requests = [r for b in cluster.bookies.values() for r in b.requests]
        assert {r.version for r in requests} == {3}
        assert all(b.connections == 1 for b in cluster.bookies.values())
        async with client.open_ledger(ledger_id, recover=False) as reader:
            assert reader.last_add_confirmed == 299


async def test_a_failed_single_read_ends_the_batch_and_is_sent_elsewhere() -> None:
    async with (
        scripted_cluster() as cluster,
        cluster.client(wire_version=3, speculative_read_s=60) as client,
    ):
        ledger_id = await written(client, 300)

        def script(request: Request) -> ResponseBody | None:
            body = request.body
            if isinstance(body, ReadRequest) and body.entry_id in (0, 150, 299):
                return ReadResponse(Status.IO_ERROR, body.ledger_id, body.entry_id)
            return None

        cluster.bookie("b0").script = script
        cluster.bookie("b1").script = script
        assert await check_reads(client, ledger_id, 300) >= 300


async def test_fewer_single_reads_are_sent_at_once_after_too_many() -> None:
    async with (
        scripted_cluster() as cluster,
        cluster.client(wire_version=3, speculative_read_s=60) as client,
    ):
        ledger_id = await written(client, 1000)
        reads: list[int] = []

        def script(request: Request) -> ResponseBody | None:
            """Accepts 15 reads, refuses the next 15, and so on."""
            body = request.body
            if not isinstance(body, ReadRequest):
                return None
            reads.append(body.entry_id)
            if len(reads) // 15 % 2:
                return ReadResponse(Status.TOO_MANY_REQUESTS, body.ledger_id, body.entry_id)
            return None

        for bookie in cluster.bookies.values():
            bookie.script = script
        assert await check_reads(client, ledger_id, 1000) == len(reads)
        assert len(reads) < 4000


async def test_reads_wait_for_busy_bookies_as_long_as_a_read_may_take(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with (
        scripted_cluster() as cluster,
        cluster.client(wire_version=3, read_timeout_s=10) as client,
    ):
        ledger_id = await written(client, 20)
        begun_s = trio.current_time()
        busy_s = 8.0

        def script(request: Request) -> ResponseBody | None:
            body = request.body
            if isinstance(body, ReadRequest) and trio.current_time() < begun_s + busy_s:
                return ReadResponse(Status.TOO_MANY_REQUESTS, body.ledger_id, body.entry_id)
            return None

        for bookie in cluster.bookies.values():
            bookie.script = script
        assert await check_reads(client, ledger_id, 20) > 20
        begun_s, busy_s = trio.current_time(), 1000.0
        with pytest.raises(TooManyRequests):
            await check_reads(client, ledger_id, 20)
        assert 10 <= trio.current_time() - begun_s < 20


@pytest.mark.parametrize("wire_version", [2, 3])
async def test_an_add_refused_by_a_busy_bookie_is_sent_again(wire_version: int) -> None:
    async with scripted_cluster() as cluster, cluster.client(wire_version=wire_version) as client:
        refusals: Counter[tuple[str, int]] = Counter()

        def script_of(name: str) -> None:
            def script(request: Request) -> ResponseBody | None:
                body = request.body
                if not isinstance(body, AddRequest) or body.entry_id % 7:
                    return None
                refusals[name, body.entry_id] += 1
                if refusals[name, body.entry_id] > 2:
                    return None
                status = Status.TOO_MANY_REQUESTS
                return AddResponse(status, body.ledger_id, body.entry_id, body.entry_id)

            cluster.bookie(name).script = script

        for name in cluster.bookies:
            script_of(name)
        async with client.create_ledger(ack_quorum=3) as writer:
            assert await writer.append_many(map(payload_of, range(100))) == 99
            assert writer.statistics().ensemble_changes == 0
        assert set(refusals.values()) == {3}
        for bookie in cluster.bookies.values():
            assert sorted(e for _, e in bookie.entries) == list(range(100))


async def test_a_bookie_that_stays_busy_is_replaced() -> None:
    async with (
        scripted_cluster(4) as cluster,
        cluster.client(add_timeout_s=0.4) as client,
        client.create_ledger(ack_quorum=3) as writer,
    ):
        busy = writer.metadata.last_fragment.bookies[0]

        def script(request: Request) -> ResponseBody | None:
            if isinstance(request.body, AddRequest):
                entry_id = request.body.entry_id
                return AddResponse(
                    Status.TOO_MANY_REQUESTS, request.body.ledger_id, entry_id, entry_id
                )
            return None

        cluster.bookie(busy).script = script
        with trio.fail_after(20):
            await writer.append_many(map(payload_of, range(50)))
        assert busy not in writer.metadata.last_fragment.bookies
        adds = [r for r in cluster.bookie(busy).requests if isinstance(r.body, AddRequest)]
        # The add is retried with growing pauses, not in a loop.
        assert len(adds) < 50 * 10


async def test_a_read_only_bookie_is_replaced() -> None:
    async with (
        scripted_cluster(4) as cluster,
        cluster.client() as client,
        client.create_ledger(ack_quorum=3) as writer,
    ):
        full = writer.metadata.last_fragment.bookies[0]

        def script(request: Request) -> ResponseBody | None:
            if isinstance(request.body, AddRequest):
                entry_id = request.body.entry_id
                return AddResponse(Status.READ_ONLY, request.body.ledger_id, entry_id, entry_id)
            return None

        cluster.bookie(full).script = script
        with trio.fail_after(20):
            await writer.append_many(map(payload_of, range(50)))
        assert full not in writer.metadata.last_fragment.bookies
        assert writer.metadata.last_fragment.first_entry_id == 0


async def test_deferred_sync_survives_the_loss_of_a_bookie_without_losing_forced_entries() -> None:
    async with scripted_cluster(4) as cluster, cluster.client() as client:
        async with client.create_ledger(deferred_sync=True) as writer:
            await writer.append_many(map(payload_of, range(50)))
            assert writer.last_add_confirmed == -1
            lost = writer.metadata.last_fragment.bookies[0]

            def script(request: Request) -> ResponseBody | None:
                raise Hangup

            cluster.bookie(lost).script = script
            with trio.fail_after(20):
                while writer.statistics().ensemble_changes == 0:
                    await writer.append(payload_of(writer.last_add_pushed + 1))
                    await trio.sleep(0.01)
            # The ensemble change had to force the entries of the old ensemble.
            first = writer.metadata.last_fragment.first_entry_id
            assert writer.last_add_confirmed == first - 1 >= 49
            adds = requests_of(cluster, AddRequest)
            assert all(isinstance(r.body, AddRequest) and r.body.is_deferred_sync for r in adds)
        last = writer.metadata.last_entry_id
        assert last == writer.last_add_pushed
        await check_reads(client, writer.ledger_id, last + 1)


@pytest.mark.parametrize("is_deferred", [True, False])
async def test_force_needs_an_ack_quorum(is_deferred: bool) -> None:
    async with (
        scripted_cluster() as cluster,
        cluster.client(ensemble_change_timeout_s=0.3) as client,
    ):
        writer = await client.create_ledger(deferred_sync=is_deferred)
        await writer.append_many(map(payload_of, range(10)))
        if not is_deferred:
            assert await writer.force() == 9

        def script(request: Request) -> ResponseBody | None:
            if not isinstance(request.body, AddRequest):
                raise Hangup
            return None

        bookies = writer.metadata.last_fragment.bookies
        for name in bookies[1:]:
            cluster.bookie(name).script = script
        with pytest.raises(NotEnoughBookies):
            await writer.force()
        assert writer.last_add_confirmed == (-1 if is_deferred else 9)
        writer.abandon()


async def test_bookie_info_returns_each_answer_or_error() -> None:
    async with scripted_cluster() as cluster, cluster.client(speculative_read_s=60) as client:

        def script(request: Request) -> ResponseBody | None:
            raise Hangup

        cluster.bookie("b1").script = script
        found = await client.bookie_info()
    assert list(found) == ["b0", "b1", "b2"]
    assert isinstance(found["b1"], LedgerError)
    for name in ("b0", "b2"):
        space = found[name]
        assert not isinstance(space, LedgerError)
        assert (space.total_bytes, space.free_bytes) == (1000, 400)
