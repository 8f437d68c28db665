"""Requests to replicas for which no task waits: hedges, silence and cancellation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from ledger.client import LedgerClient
from ledger.core.reading import ReplicaAnswered
from ledger.errors import LedgerError, OperationTimeout, RetryableError
from ledger.reading.reader import LedgerReader
from ledger.wire.messages import ReadRequest, Request
from tests.ledger.scripted_bookie import ScriptedCluster, scripted_cluster
from tests.task_count import TaskCount


def silent_in_reads(cluster: ScriptedCluster, *names: str) -> None:
    never = trio.Event()

    def hold(request: Request) -> trio.Event | None:
        return never if isinstance(request.body, ReadRequest) else None

    for name in names:
        cluster.bookie(name).hold = hold


@asynccontextmanager
async def closed_ledger(client: LedgerClient, entries: int) -> AsyncIterator[LedgerReader]:
    async with client.create_ledger() as writer:
        for number in range(entries):
            await writer.append(b"%d" % number)
    async with client.open_ledger(writer.ledger_id) as reader:
        yield reader


async def test_a_silent_replica_costs_one_hedge_and_is_read_last_afterwards() -> None:
    async with (
        scripted_cluster() as cluster,
        cluster.client(speculative_read_s=0.4, read_timeout_s=5) as client,
        closed_ledger(client, 20) as reader,
    ):
        silent_in_reads(cluster, "b0", "b1")
        with trio.fail_after(5):
            for number in range(20):
                (entry,) = await reader.read(number, number)
                assert bytes(entry.payload) == b"%d" % number
        statistics = reader.statistics()
        assert statistics.hedges <= 2
        assert statistics.entries == 20


async def test_a_bug_in_taking_an_answer_ends_that_read_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with (
        scripted_cluster() as cluster,
        cluster.client() as client,
        closed_ledger(client, 3) as reader,
    ):
        with monkeypatch.context() as planted:
            planted.setattr(ReplicaAnswered, "__init__", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await reader.read(0, 0)
        assert [bytes(entry.payload) for entry in await reader.read(1, 1)] == [b"1"]


async def test_replicas_that_are_all_silent_are_given_up_after_the_timeout() -> None:
    async with (
        scripted_cluster() as cluster,
        cluster.client(speculative_read_s=0.02, read_timeout_s=0.1) as client,
        closed_ledger(client, 3) as reader,
    ):
        silent_in_reads(cluster, "b0", "b1", "b2")
        before = sum(bookie.connections for bookie in cluster.bookies.values())
        with trio.fail_after(5), pytest.raises(LedgerError) as caught:
            await reader.read(1, 1)
        assert caught.value.retry_is_safe, "no bookie reported that the entry is absent"
        for bookie in cluster.bookies.values():
            bookie.hold = lambda _request: None
        with trio.fail_after(5):
            while True:
                try:
                    (entry,) = await reader.read(1, 1)
                except RetryableError:
                    await trio.sleep(0.05)
                else:
                    break
        assert bytes(entry.payload) == b"1"
        after = sum(bookie.connections for bookie in cluster.bookies.values())
        assert after > before, "the silent connections were kept"


async def test_a_cancelled_read_does_not_affect_later_ones() -> None:
    async with (
        scripted_cluster() as cluster,
        cluster.client(speculative_read_s=60) as client,
        closed_ledger(client, 10) as reader,
    ):
        released = trio.Event()

        def hold(request: Request) -> trio.Event | None:
            return released if isinstance(request.body, ReadRequest) else None

        for bookie in cluster.bookies.values():
            bookie.hold = hold
        with trio.move_on_after(0.05) as scope:
            await reader.read(4, 4)
        assert scope.cancelled_caught
        released.set()
        for number in range(10):
            (entry,) = await reader.read(number, number)
            assert bytes(entry.payload) == b"%d" % number


async def test_single_reads_cost_no_task_each() -> None:
    async with (
        scripted_cluster() as cluster,
        cluster.client(speculative_read_s=60) as client,
        closed_ledger(client, 50) as reader,
    ):
        await reader.read(0, 0)  # this opens the connection
        spawned = TaskCount()
        trio.lowlevel.add_instrument(spawned)
        for number in range(50):
            await reader.read(number, number)
        trio.lowlevel.remove_instrument(spawned)
        assert spawned.count <= 5, f"{spawned.count} tasks for 50 reads"


async def test_a_timeout_names_the_bookies_and_the_time() -> None:
    async with (
        scripted_cluster(1) as cluster,
        cluster.client(speculative_read_s=60, read_timeout_s=0.05) as client,
    ):
        async with client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as writer:
            await writer.append(b"x")
        silent_in_reads(cluster, "b0")
        async with client.open_ledger(writer.ledger_id) as reader:
            with trio.fail_after(5), pytest.raises(LedgerError) as caught:
                await reader.read(0, 0)
        assert "b0" in str(caught.value)
        assert isinstance(caught.value, OperationTimeout) or "silent" in str(caught.value)
