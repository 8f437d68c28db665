"""Explicit LACs are sent where readers wait, and elsewhere only when a writer falls idle; in
requests per 1,000 adds, and by virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from bookie.core.ledger_state import READER_EXPECTED_S
from bookie.testing import SimCluster, simulate
from ledger.client import LedgerClient
from ledger.writing.send_loop import IDLE_S
from ledger.writing.writer import LedgerWriter

ADDS = 1000
ADDS_READ = 400
INTERVAL_S = 0.002
ONE_WAY_S = 0.0002


def lacs_received(cluster: SimCluster) -> int:
    """Returns how many explicit LACs the bookies have answered."""
    servers = map(cluster.server, cluster.bookies)
    return sum(server.statistics().requests.answered["write_lac"] for server in servers)


@asynccontextmanager
async def quick_writer(cluster: SimCluster) -> AsyncIterator[tuple[LedgerClient, LedgerWriter]]:
    """A writer, on a network and disks that are quick and do not vary."""
    options = cluster.network.options
    options.latency_min_s = options.latency_max_s = ONE_WAY_S
    options.spike_probability = options.split_probability = 0.0
    for name in cluster.bookies:
        disk = cluster.disk(name).options
        disk.write_max_s = disk.sync_max_s = 0.0002
    async with cluster.client("writer") as client, client.create_ledger() as writer:
        await writer.append(b"first")
        await trio.sleep(1)
        yield client, writer


async def append_slowly(writer: LedgerWriter) -> None:
    for _ in range(ADDS):
        await writer.append(b"x" * 100)
        await trio.sleep(INTERVAL_S)


def test_without_readers_1000_adds_cost_no_request_and_the_last_one_is_sent() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with quick_writer(cluster) as (_, writer):
            before = lacs_received(cluster)
            await append_slowly(writer)
            assert lacs_received(cluster) == before
            await trio.sleep(5 * IDLE_S)
            assert lacs_received(cluster) == before + 3
            await trio.sleep(60)
            assert lacs_received(cluster) == before + 3

    simulate(scenario, 1)


def test_with_a_reader_only_its_bookie_is_notified_and_it_waits_for_nothing_else() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with (
            quick_writer(cluster) as (_, writer),
            cluster.client("reader") as other,
            other.open_ledger(writer.ledger_id, recover=False) as reader,
            trio.open_nursery() as nursery,
        ):
            waits_s: list[float] = []
            confirmed_at: dict[int, float] = {}

            async def read() -> None:
                async for entries in reader.tail(1):
                    now_s = trio.current_time()
                    waits_s.extend(now_s - confirmed_at[entry.entry_id] for entry in entries)

            async def append(count: int, interval_s: float) -> None:
                for _ in range(count):
                    entry_id = await writer.append(b"x" * 100)
                    confirmed_at[entry_id] = trio.current_time()
                    await trio.sleep(interval_s)
                await trio.sleep(0.2)

            nursery.start_soon(read)
            # Until nobody expects the reader where it asked at first.
            await append(50, 2 * READER_EXPECTED_S / 50)
            waits_s.clear()
            before = lacs_received(cluster)
            await append(ADDS_READ, INTERVAL_S)
            assert lacs_received(cluster) - before <= 1.01 * ADDS_READ + 3
            assert len(waits_s) == ADDS_READ
            # The way to the bookie and to the reader, unless the bookie was asked meanwhile.
            assert sorted(waits_s)[ADDS_READ * 99 // 100] <= 2 * ONE_WAY_S + 0.0001
            nursery.cancel_scope.cancel()

    simulate(scenario, 1)


def test_a_poll_that_comes_just_after_the_ack_is_answered_within_its_time() -> None:
    """The writer knows that nobody waits, and appends nothing more."""

    async def scenario(cluster: SimCluster) -> None:
        async with (
            quick_writer(cluster) as (_, writer),
            cluster.client("reader") as other,
            other.open_ledger(writer.ledger_id, recover=False) as reader,
        ):
            for _ in range(20):
                await trio.sleep(10)  # no reader is expected any more
                entry_id = await writer.append(b"x")
                asked_at = trio.current_time()
                known = await reader.wait_lac_after(entry_id - 1, 60)
                assert known == entry_id
                assert trio.current_time() - asked_at <= 2 * IDLE_S + 0.01

    simulate(scenario, 1)


def test_a_reader_that_opens_after_an_ack_knows_of_it() -> None:
    """Although nobody is notified at once where nobody waits; also while others are in flight."""

    async def scenario(cluster: SimCluster) -> None:
        async with quick_writer(cluster) as (_, writer), cluster.client("reader") as other:
            for count in (1, 1, 30):
                for _ in range(count):
                    entry_id = await writer.append(b"x")
                async with trio.open_nursery() as nursery:
                    if count > 1:
                        nursery.start_soon(writer.append_many, [b"y"] * count)
                    asked_at = trio.current_time()
                    async with other.open_ledger(writer.ledger_id, recover=False) as reader:
                        assert reader.last_add_confirmed >= entry_id
                    assert trio.current_time() - asked_at <= 2 * IDLE_S + 0.01
                await trio.sleep(10)

    simulate(scenario, 1)


def test_a_reader_that_opens_bears_an_announcement_that_is_late() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with quick_writer(cluster) as (_, writer), cluster.client("reader") as other:
            entry_id = await writer.append(b"x")
            for name in cluster.bookies:
                cluster.network.clog("writer", name, 0.2)
            async with other.open_ledger(writer.ledger_id, recover=False) as reader:
                assert reader.last_add_confirmed == entry_id

    simulate(scenario, 1)


def test_a_reader_that_opens_a_stuck_ledger_does_not_wait_for_long() -> None:
    """An entry that only one bookie has is confirmed at no time."""

    async def scenario(cluster: SimCluster) -> None:
        async with quick_writer(cluster) as (_, writer), cluster.client("reader") as other:
            for name in writer.metadata.last_fragment.bookies[1:]:
                cluster.network.block("writer", name.partition(":")[0])
            with trio.move_on_after(0.1):
                await writer.append(b"x")
            asked_at = trio.current_time()
            async with other.open_ledger(writer.ledger_id, recover=False) as reader:
                assert reader.last_add_confirmed == 0
            assert trio.current_time() - asked_at <= 0.3
            cluster.network.heal()

    simulate(scenario, 1)


def test_a_writer_that_is_abandoned_notifies_all_at_once() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with quick_writer(cluster) as (_, writer):
            before = lacs_received(cluster)
            await writer.append(b"x")
            writer.abandon()
            await trio.sleep(0.2)
            assert lacs_received(cluster) == before + 3

    simulate(scenario, 1)
