"""Auto-recovery in a simulated cluster: what lacks copies gets them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypedDict

import pytest
import trio

from bookie.testing import SimCluster, simulate
from ledger.autorecovery.copier import Copier
from ledger.autorecovery.options import AutoRecoveryOptions
from ledger.autorecovery.published import read_workers
from ledger.autorecovery.service import AutoRecovery
from ledger.autorecovery.worker import IN_OTHER_HANDS
from ledger.client import LedgerClient
from ledger.core.copies import LedgerReport
from ledger.errors import NoSuchLedger
from ledger.metastore.decommissions import Decommission, Decommissions
from ledger.options import ClientOptions
from ledger.verify import verify_ledger
from tests.ledger.autorecovery.naive_copier import NaiveCopier

OPTIONS = AutoRecoveryOptions(lost_bookie_recovery_delay_s=20)
ENTRIES = 50
PATIENCE_S = 600.0


class Sizes(TypedDict, total=False):
    ensemble_size: int
    write_quorum: int
    ack_quorum: int


SINGLE: Sizes = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}


@asynccontextmanager
async def healing(
    cluster: SimCluster,
    name: str = "healer",
    options: AutoRecoveryOptions = OPTIONS,
    *,
    is_naive: bool = False,
) -> AsyncIterator[AutoRecovery]:
    async with (
        cluster.client(name) as client,
        Copier(client, options.copier_options()) as copier,
        trio.open_nursery() as nursery,
    ):
        service = AutoRecovery(
            client,
            options,
            copier=NaiveCopier(client) if is_naive else copier,
            bookie_id=name,
            rng=cluster.simulation.chance(f"autorecovery/{name}"),
        )
        await nursery.start(service.run)
        yield service
        nursery.cancel_scope.cancel()


async def written(client: LedgerClient, sizes: Sizes | None = None, *, close: bool = True) -> int:
    writer = await client.create_ledger(**(sizes or {}))
    await writer.append_many([b"%d" % n for n in range(ENTRIES)])
    await trio.sleep(1)  # the last acks
    if close:
        await writer.close()
    return writer.ledger_id


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Returns when it is true, in virtual time."""
    with trio.fail_after(PATIENCE_S):
        while not await condition():  # noqa: ASYNC110
            await trio.sleep(1)


async def until_no_marks(client: LedgerClient) -> None:
    async def is_so() -> bool:
        return not await client.underreplication.list()

    await until(is_so)


async def until_found(service: AutoRecovery) -> None:
    """Returns when the worker has met a marked ledger."""

    async def is_so() -> bool:
        worker = service.worker
        is_met = worker.statistics.ledgers_healed or worker.backlog.held or worker.in_progress
        return bool(is_met)

    await until(is_so)


async def until_emptied(client: LedgerClient, bookie: str) -> None:
    """Returns when the bookie has left the cluster."""

    async def is_emptied() -> bool:
        found = await Decommissions(client.store).read(bookie)
        return found is not None and found.state == "emptied"

    await until(is_emptied)


def is_whole(report: LedgerReport) -> bool:
    return report.verdict.name == "WHOLE"


def id_of(bookie: str) -> str:
    return f"{bookie}:3181"


@pytest.mark.parametrize("is_naive", [False, True])
@pytest.mark.parametrize("sizes", [{}, {"ensemble_size": 4, "write_quorum": 2}])
def test_ledgers_of_a_lost_bookie_are_copied(sizes: Sizes, is_naive: bool) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client, healing(cluster, is_naive=is_naive) as service:
            ids = [await written(client, sizes) for _ in range(10)]
            lost = cluster.bookies[0]
            before = {i: await client.ledger_metadata(i) for i in ids}
            on_it = [i for i in ids if id_of(lost) in before[i].fragments[0].bookies]
            assert on_it
            await cluster.kill_bookie(lost)
            killed_s = trio.current_time()
            await until_found(service)
            assert trio.current_time() >= killed_s + 20, "it is waited for"
            await until_no_marks(client)
            for ledger_id in ids:
                metadata = await client.ledger_metadata(ledger_id)
                if ledger_id in on_it:
                    assert id_of(lost) not in metadata.fragments[0].bookies
                    assert len(set(metadata.fragments[0].bookies)) == metadata.ensemble_size
                else:
                    assert metadata == before[ledger_id]
                assert is_whole(await verify_ledger(client, ledger_id))
            assert service.worker.statistics.ledgers_healed == len(on_it)

    simulate(scenario, 1, bookies=5)


def test_a_bookie_that_is_back_in_time_costs_nothing() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client, healing(cluster) as service:
            ids = [await written(client) for _ in range(5)]
            before = [await client.ledger_metadata(i) for i in ids]
            await cluster.kill_bookie(cluster.bookies[0])
            await trio.sleep(10)
            await cluster.start_bookie(cluster.bookies[0])
            await trio.sleep(100)
            assert await client.underreplication.list() == []
            assert [await client.ledger_metadata(i) for i in ids] == before
            assert service.worker.statistics.entries_copied == 0

    simulate(scenario, 2, bookies=4)


def test_a_bookie_that_comes_back_takes_its_ledgers_off_the_list() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            ids = [await written(client) for _ in range(8)]
            # Without a spare bookie nothing can be copied, and the reason is said.
            async with healing(cluster) as service:
                await cluster.kill_bookie(cluster.bookies[0])
                await until_found(service)
                await trio.sleep(60)
                assert len(service.worker.backlog.held) == len(ids)
                reasons = {held.reason for held in service.worker.backlog.held}
                assert reasons == {"needs 3 bookies, 2 are writable"}
                await cluster.start_bookie(cluster.bookies[0])
                back_s = trio.current_time()
                await until_no_marks(client)
                assert trio.current_time() < back_s + 30, "at once, not at the next retry"
                assert service.worker.statistics.entries_copied == 0
                assert not service.worker.backlog.held

    simulate(scenario, 3, bookies=3)


def test_a_bookie_that_lacks_entries_is_filled_in_place() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client, healing(cluster) as service:
            writer = await client.create_ledger()
            paused = cluster.bookies[1]
            await writer.append_many([b"%d" % n for n in range(ENTRIES)])
            await cluster.kill_bookie(paused)
            await writer.append_many([b"%d" % n for n in range(ENTRIES)])
            await writer.close()
            before = await client.ledger_metadata(writer.ledger_id)
            await client.underreplication.mark(writer.ledger_id, [id_of(paused)])
            await trio.sleep(10)
            await cluster.start_bookie(paused)
            await until_no_marks(client)
            assert await client.ledger_metadata(writer.ledger_id) == before
            assert is_whole(await verify_ledger(client, writer.ledger_id))
            assert service.worker.statistics.copies_filled == 1
            assert service.worker.statistics.entries_copied >= ENTRIES

    simulate(scenario, 4, bookies=3)


def test_two_bookies_lost_within_the_delay_are_not_waited_for() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client, healing(cluster) as service:
            ids = [await written(client) for _ in range(10)]
            await cluster.kill_bookie(cluster.bookies[0])
            await trio.sleep(6)
            await cluster.kill_bookie(cluster.bookies[1])
            killed_s = trio.current_time()
            await until_found(service)
            assert trio.current_time() < killed_s + 15
            await until_no_marks(client)
            for ledger_id in ids:
                assert is_whole(await verify_ledger(client, ledger_id))

    simulate(scenario, 5, bookies=6)


def test_a_deleted_ledger_leaves_no_trace() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            ledger_id = await written(client)
            await client.underreplication.mark(ledger_id, [id_of(cluster.bookies[0])])
            await client.delete_ledger(ledger_id)
            async with healing(cluster) as service:
                await until_no_marks(client)
                assert service.worker.statistics.ledgers_deleted == 1
                assert service.worker.statistics.ledgers_healed == 0
            with pytest.raises(NoSuchLedger):
                await client.ledger_metadata(ledger_id)
            assert await client.store.children("/ledgers/underreplication/ledgers") == []

    simulate(scenario, 6, bookies=3)


def test_the_end_of_an_open_ledger_is_left_to_a_writer_that_lives() -> None:
    async def scenario(cluster: SimCluster) -> None:
        options = ClientOptions(idle_replacement_delay_s=400)
        async with cluster.client(options=options) as client, healing(cluster) as service:
            ledger_id = await written(client, close=False)
            metadata = await client.ledger_metadata(ledger_id)
            lost = metadata.fragments[0].bookies[0].partition(":")[0]
            await cluster.kill_bookie(lost)
            await until_found(service)
            await trio.sleep(200)
            assert not (await client.ledger_metadata(ledger_id)).is_closed
            (held,) = service.worker.backlog.held
            assert held.reason == (
                "it is open, and its writer, which is alive, replaces the bookie by itself"
            )
            await until_no_marks(client)
            metadata = await client.ledger_metadata(ledger_id)
            assert not metadata.is_closed
            assert not any(lost in bookie for f in metadata.fragments for bookie in f.bookies)

    simulate(scenario, 7, bookies=5)


def test_the_end_of_an_open_ledger_of_a_dead_writer_is_recovered() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client, healing(cluster) as service:
            async with cluster.client("writer") as other:
                ledger_id = await written(other, close=False)
                cluster.metadata.expire("writer")
            metadata = await client.ledger_metadata(ledger_id)
            lost = metadata.fragments[0].bookies[0].partition(":")[0]
            await cluster.kill_bookie(lost)
            await until_found(service)
            await until_no_marks(client)
            metadata = await client.ledger_metadata(ledger_id)
            assert metadata.is_closed
            assert metadata.last_entry_id == ENTRIES - 1
            assert is_whole(await verify_ledger(client, ledger_id))

    simulate(scenario, 8, bookies=5)


def test_a_ledger_without_a_live_copy_is_held_and_blocks_nobody() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client, healing(cluster) as service:
            single = await written(client, SINGLE)
            others = [await written(client) for _ in range(5)]
            lost = (await client.ledger_metadata(single)).fragments[0].bookies[0]
            await cluster.kill_bookie(lost.partition(":")[0])
            await until_found(service)

            async def is_the_only_one() -> bool:
                return await client.underreplication.list() == [single]

            await until(is_the_only_one)
            for ledger_id in others:
                assert is_whole(await verify_ledger(client, ledger_id))
            (held,) = service.worker.backlog.held
            assert held.reason == (
                f"no live copy of entries 0 to {ENTRIES - 1}; last holders {lost}"
            )
            await cluster.start_bookie(lost.partition(":")[0])
            await until_no_marks(client)
            assert (await client.ledger_metadata(single)).fragments[0].bookies == (lost,)

    simulate(scenario, 9, bookies=5)


def test_a_bookie_is_emptied_and_leaves() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client, healing(cluster):
            ids = [await written(client) for _ in range(10)]
            leaving = id_of(cluster.bookies[2])
            await Decommissions(client.store).begin(
                Decommission(bookie=leaving, begun_ms=client.now_ms())
            )
            await until_emptied(client, leaving)
            found = await Decommissions(client.store).read(leaving)
            assert found is not None
            assert (found.ledgers_left, found.bytes_left) == (0, 0)
            assert found.ledgers_total
            assert await client.bookies.read_cookie(leaving) is None
            for ledger_id in ids:
                assert leaving not in (await client.ledger_metadata(ledger_id)).fragments[0].bookies
                assert is_whole(await verify_ledger(client, ledger_id))

    simulate(scenario, 10, bookies=5)


def test_a_ledger_that_another_worker_copies_is_not_published_as_held() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client, healing(cluster) as service:
            ledger_id = await written(client)
            (lost, *_) = (await client.ledger_metadata(ledger_id)).fragments[0].bookies
            async with client.underreplication.lock(ledger_id, "another") as is_locked:
                assert is_locked
                await cluster.kill_bookie(lost.partition(":")[0])
                await until_found(service)
                await trio.sleep(3)  # it reports once per second
                assert [one.reason for one in service.worker.backlog.held] == [IN_OTHER_HANDS]
                assert not any(one.held for one in await read_workers(client.store))
            await until_no_marks(client)

    simulate(scenario, 11, bookies=5)
