"""An idle writer whose bookie dies changes nothing: its next append finds a replacement."""

from __future__ import annotations

import pytest
import trio

from bookie.testing import CrashKind, SimCluster, simulate
from ledger.writing.writer import LedgerWriter


async def idle_writers(cluster: SimCluster, writers: list[LedgerWriter]) -> str:
    """Kills one bookie of the writers and returns its id."""
    victim = writers[0].metadata.last_fragment.bookies[0]
    name = next(n for n in cluster.bookies if n in victim)
    for writer in writers:
        await writer.append(b"first")
    await cluster.kill_bookie(name, next(iter(CrashKind)))
    await trio.sleep(30)
    return victim


@pytest.mark.parametrize("bookies", [3, 4])
def test_a_dead_bookie_is_replaced_with_the_next_append(bookies: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            writers = [await client.create_ledger() for _ in range(20)]
            victim = await idle_writers(cluster, writers)
            concerned = [w for w in writers if victim in w.metadata.last_fragment.bookies]
            assert all(w.core.failed for w in concerned)
            for writer in concerned:
                metadata = await client.ledger_metadata(writer.ledger_id)
                assert victim in metadata.last_fragment.bookies
            first = concerned[0]
            with trio.fail_after(5):
                await first.append(b"second")
            await trio.sleep(5)
            assert first.statistics().ensemble_changes == (1 if bookies == 4 else 0)
            assert all(w.statistics().ensemble_changes == 0 for w in concerned[1:])
            for writer in writers:
                await writer.close()

    simulate(scenario, 7, bookies=bookies)


def test_an_idle_writer_without_an_ack_quorum_does_not_fail_before_its_next_append() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3)
            victim = await idle_writers(cluster, [writer])
            await trio.sleep(600)
            assert writer.error is None
            await cluster.start_bookie(next(n for n in cluster.bookies if n in victim))
            with trio.fail_after(5):
                await writer.append(b"second")
            await writer.close()

    simulate(scenario, 8, bookies=3)


def test_slow_appends_use_a_returned_bookie_again() -> None:
    """Each append is confirmed long before the writer would check the bookie by itself."""

    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            writer = await client.create_ledger()
            victim = await idle_writers(cluster, [writer])
            await writer.append(b"without")
            await cluster.start_bookie(next(n for n in cluster.bookies if n in victim))
            with trio.fail_after(10):
                while writer.statistics().ensemble_changes == 0:
                    await writer.append(b"more")
                    await trio.sleep(0.01)
            assert not writer.core.failed
            await writer.close()

    simulate(scenario, 9, bookies=3)
