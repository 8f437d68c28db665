"""An idle writer whose bookie dies changes nothing: its next append finds a replacement, or, if the
bookie stays away, the writer some time later."""

from __future__ import annotations

import pytest
import trio

from bookie.testing import CrashKind, SimCluster, simulate
from ledger.client import LedgerClient
from ledger.errors import BookieUnavailable, InvalidArgument
from ledger.options import ClientOptions
from ledger.writing.idle_replacement import CHANGES_PER_S
from ledger.writing.writer import LedgerWriter


async def idle_writers(cluster: SimCluster, writers: list[LedgerWriter]) -> str:
    """Kills one bookie of the writers and returns its id."""
    victim = writers[0].metadata.last_fragment.bookies[0]
    name = next(n for n in cluster.bookies if n in victim)
    for writer in writers:
        await writer.append(b"first")
    await trio.sleep(1)  # until the bookies that no ack quorum needed have acknowledged, too
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


DELAY_S = 60.0


async def is_marked(client: LedgerClient, writer: LedgerWriter, bookie: str) -> bool:
    """Whether the ledger is marked with the bookie."""
    mark = await client.underreplication.read(writer.ledger_id)
    return mark is not None and bookie in mark.replicas


def changes_of(writers: list[LedgerWriter]) -> int:
    return sum(writer.statistics().ensemble_changes for writer in writers)


def test_a_bookie_that_stays_away_is_replaced_by_idle_writers_a_few_at_a_time() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            writers = [await client.create_ledger() for _ in range(120)]
            empty = [await client.create_ledger() for _ in range(20)]
            victim = await idle_writers(cluster, writers)  # 30 s
            every = [w for w in writers + empty if victim in w.metadata.last_fragment.bookies]
            await trio.sleep(DELAY_S - 31)
            assert changes_of(every) == 0
            before, most = 0, 0
            for _ in range(60):
                await trio.sleep(1)
                count = changes_of(every)
                before, most = count, max(most, count - before)
            assert before == len(every)
            assert len(every) / 60 < most <= CHANGES_PER_S + 2
            for writer in every:
                assert not writer.core.failed
                stored = await client.ledger_metadata(writer.ledger_id)
                assert victim not in stored.last_fragment.bookies
                # Everything was acknowledged before: nothing is missing, and no entry is marked.
                assert not await is_marked(client, writer, victim)
                assert len(stored.fragments) == (1 if writer in empty else 2)
            running = trio.lowlevel.current_statistics().tasks_living
            lowest = running + 1
            for _ in range(10):  # a task may live for a moment
                await trio.sleep(30)
                lowest = min(lowest, trio.lowlevel.current_statistics().tasks_living)
            assert lowest <= running
            for writer in every[:20]:
                await writer.append(b"more")
                await writer.close()

    simulate(scenario, 10, bookies=5)


def test_a_bookie_that_returns_in_time_is_used_again_without_an_ensemble_change() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            writers = [await client.create_ledger() for _ in range(50)]
            victim = await idle_writers(cluster, writers)
            concerned = [w for w in writers if victim in w.metadata.last_fragment.bookies]
            assert all(w.core.failed for w in concerned)
            # It was killed right after the last append, which it may not have acknowledged.
            lacking = [w.ledger_id for w in concerned if any(map(w.core.lacks, w.core.failed))]
            assert len(lacking) <= 1
            await cluster.start_bookie(next(n for n in cluster.bookies if n in victim))
            await trio.sleep(10)
            assert not any(w.core.failed for w in concerned)
            for writer in concerned:
                await writer.append(b"second")
                assert (await writer.close()).fragments[0].bookies.count(victim) == 1
            assert changes_of(writers) == len(lacking)
            await trio.sleep(10)
            assert await client.underreplication.list() == lacking

    simulate(scenario, 12, bookies=4)


def test_a_bookie_that_returns_without_the_last_entries_is_marked_and_used_again() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            writer = await client.create_ledger()
            await writer.append(b"first")
            bookies = writer.metadata.last_fragment.bookies
            names = [bookie.partition(":")[0] for bookie in bookies]
            await trio.sleep(1)
            cluster.network.block("client-1", names[0])
            await writer.append(b"two of three have it")
            await cluster.kill_bookie(names[0])
            cluster.network.heal()
            await trio.sleep(1)
            assert list(writer.core.failed) == [0]
            assert writer.core.lacks(0)
            await cluster.start_bookie(names[0])
            await trio.sleep(DELAY_S / 2)
            assert not writer.core.failed
            assert writer.metadata.last_fragment.bookies == bookies
            assert [f.first_entry_id for f in writer.metadata.fragments] == [0, 2]
            assert await is_marked(client, writer, bookies[0])
            await writer.append(b"third")
            await writer.close()

    simulate(scenario, 12, bookies=4)


def test_a_connection_that_breaks_costs_an_idle_writer_nothing() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            writer = await client.create_ledger()
            await writer.append(b"first")
            await trio.sleep(1)
            for bookie in writer.metadata.last_fragment.bookies:
                client.pool.connection(bookie, 2).close(BookieUnavailable("cut"))
            assert len(writer.core.failed) == 3
            await trio.sleep(5)
            assert not writer.core.failed
            await writer.append(b"second")
            assert writer.statistics().ensemble_changes == 0

    simulate(scenario, 13, bookies=4)


def test_an_idle_writer_without_a_replacement_looks_again_and_does_not_fail() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client(options=ClientOptions(idle_replacement_delay_s=5)) as client:
            writer = await client.create_ledger(ack_quorum=3)
            victim = await idle_writers(cluster, [writer])
            await trio.sleep(100)
            assert writer.error is None
            new = cluster.add_bookie()
            await cluster.start_bookie(new)
            await trio.sleep(15)
            assert not writer.core.failed
            assert victim not in writer.metadata.last_fragment.bookies
            await writer.append(b"second")
            await writer.close()

    simulate(scenario, 14, bookies=3)


@pytest.mark.parametrize("delay_s", [0, -1, float("nan")])
def test_a_delay_that_can_never_work_is_refused(delay_s: float) -> None:
    with pytest.raises(InvalidArgument, match="idle_replacement_delay_s is more than 0, not"):
        ClientOptions(idle_replacement_delay_s=delay_s)


def test_an_idle_writer_waits_while_the_metadata_store_is_out_of_reach() -> None:
    async def scenario(cluster: SimCluster) -> None:
        options = ClientOptions(idle_replacement_delay_s=2)
        async with cluster.client("writer", options) as client:
            writer = await client.create_ledger()
            await writer.append(b"first")
            victim = writer.metadata.last_fragment.bookies[0]
            cluster.metadata.cut_off("writer")
            await cluster.kill_bookie(victim.partition(":")[0])
            await trio.sleep(60)
            assert writer.error is None
            assert writer.statistics().ensemble_changes == 0
            cluster.metadata.heal()
            await trio.sleep(15)
            assert victim not in writer.metadata.last_fragment.bookies
            await writer.close()

    simulate(scenario, 15, bookies=4)
