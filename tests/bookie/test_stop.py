"""A bookie that is asked to stop answers what it has received, and its clients notice nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from bookie.testing import SimCluster, simulate
from ledger.errors import BookieUnavailable
from ledger.wire.messages import ReadRequest
from tests.real_cluster import SMALL, real_cluster


@pytest.mark.parametrize("wire_version", [2, 3])
async def test_adds_that_were_received_are_acknowledged_by_a_bookie_that_stops(
    tmp_path: Path, wire_version: int
) -> None:
    """The journal waits for others to share its sync, so that the adds are not durable yet."""
    settings = {**SMALL, "journal_group_wait_ms": 500.0, "journal_flush_when_queue_empty": False}
    async with real_cluster(tmp_path, bookies=1, **settings) as cluster:
        bookie = cluster.bookies[0]
        async with cluster.client(wire_version=wire_version) as client:
            writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
            acked: list[int] = []

            async def append(number: int) -> None:
                acked.append(await writer.append(b"%d" % number))

            async with trio.open_nursery() as nursery:
                for number in range(50):
                    nursery.start_soon(append, number)
                with trio.fail_after(20):
                    while writer.last_add_pushed < 49 or writer.is_dirty:
                        await trio.lowlevel.checkpoint()
                    # Requests of one connection are taken in order: the bookie has all adds.
                    connection = client.pool.connection(bookie.bookie_id, wire_version)
                    await connection.call(ReadRequest(writer.ledger_id + 1, 0), 10)
                    assert not acked
                    bookie.stop()
            assert sorted(acked) == list(range(50))
            with trio.fail_after(20):
                await cluster.ended(0)
            with pytest.raises(BookieUnavailable):
                await client.pool.wait_connected(bookie.bookie_id, 2)
            writer.abandon()


async def test_a_stop_is_bounded_although_a_peer_never_leaves(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, bookies=1, **SMALL) as cluster:
        host, port = cluster.bookies[0].address
        async with await trio.open_tcp_stream(host, port) as idle:
            cluster.bookies[0].stop()
            with trio.fail_after(20):
                assert await idle.receive_some() == b""  # told at once, and it stays
                await cluster.ended(0)


@pytest.mark.parametrize("seed", range(8))
def test_a_rolling_restart_is_invisible_to_a_writer_and_a_tail(seed: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        slowest_s, sent, received = 0.0, 0, 0
        is_over = False

        async def write() -> None:
            nonlocal slowest_s, sent
            while not is_over:
                begun_s = trio.current_time()
                await writer.append(b"%d" % sent)
                slowest_s = max(slowest_s, trio.current_time() - begun_s)
                sent += 1
                await trio.sleep(0.002)
            await writer.close()

        async def tail() -> None:
            nonlocal received
            async with client.open_ledger(writer.ledger_id, recover=False) as reader:
                async for entries in reader.tail(0):
                    for entry in entries:
                        assert bytes(entry.payload) == b"%d" % received
                        received += 1

        async with cluster.client() as client:
            writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write)
                nursery.start_soon(tail)
                for name in list(cluster.bookies):
                    await trio.sleep(1)
                    await cluster.stop_bookie(name)
                    await cluster.start_bookie(name)
                await trio.sleep(1)
                is_over = True
            assert received == sent > 500
            assert slowest_s < 0.5

    simulate(scenario, seed, bookies=3)
