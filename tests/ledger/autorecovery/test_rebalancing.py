"""A simulated cluster that got new bookies is made even again."""

from __future__ import annotations

import pytest

from bookie.testing import SimCluster, simulate
from ledger.autorecovery.copier import Copier
from ledger.autorecovery.rebalancing import balance_of, rebalance
from ledger.errors import InvalidArgument
from ledger.verify import verify_ledger


async def filled(cluster: SimCluster, ledgers: int) -> list[int]:
    ids = []
    async with cluster.client() as writer_client:
        for number in range(ledgers):
            writer = await writer_client.create_ledger()
            await writer.append_many([bytes(50 + number)] * 20)
            await writer.close()
            ids.append(writer.ledger_id)
    return ids


def test_copies_move_to_bookies_that_were_added() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            ids = await filled(cluster, 60)
            opened = await client.create_ledger()
            await opened.append(b"open")
            for _ in range(2):
                await cluster.start_bookie(cluster.add_bookie())
            before = [await client.ledger_metadata(one) for one in ids]
            proposed = await rebalance(
                client, await balance_of(client, tolerance=0.1), None, owner="dry"
            )
            assert proposed.skew_before == pytest.approx(5 / 3, rel=0.01)
            assert proposed.skew < 1.11
            assert proposed.copies_moved > 40
            assert [await client.ledger_metadata(one) for one in ids] == before, "a dry run"
            async with Copier(client) as copier:
                done = await rebalance(
                    client, await balance_of(client, tolerance=0.1), copier, owner="me"
                )
            assert (done.copies_failed, done.problems) == (0, [])
            assert done.copies_moved > 40
            assert done.skew < 1.11
            assert (await balance_of(client, tolerance=0.1)).skew == pytest.approx(done.skew)
            for ledger_id in ids:
                report = await verify_ledger(client, ledger_id)
                assert report.verdict.name == "WHOLE"
            metadata = await client.ledger_metadata(opened.ledger_id)
            assert metadata == opened.metadata, "the end of an open ledger is its writer's"
            await opened.append(b"more")

    simulate(scenario, 1, bookies=3)


def test_ledgers_that_others_tend_are_left_alone() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            ids = await filled(cluster, 30)
            await cluster.start_bookie(cluster.add_bookie())
            await client.underreplication.mark(ids[0], ["b:1"])
            before = [await client.ledger_metadata(one) for one in ids[:2]]
            async with Copier(client) as copier, client.underreplication.lock(ids[1], "other"):
                done = await rebalance(
                    client, await balance_of(client, tolerance=0.01), copier, owner="me"
                )
            assert [await client.ledger_metadata(one) for one in ids[:2]] == before
            for problem in done.problems:
                assert problem in (
                    f"ledger {ids[0]}: it lacks copies, which auto-recovery makes first",
                    f"ledger {ids[1]}: another process copies it",
                )
            assert done.copies_moved > 5

    simulate(scenario, 2, bookies=3)


def test_one_bookie_has_nothing_to_balance() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            with pytest.raises(InvalidArgument, match="1 bookies are writable: there is nothing"):
                await balance_of(client, tolerance=0.1)
            with pytest.raises(InvalidArgument, match="tolerance of 0 is not above 0"):
                await balance_of(client, tolerance=0)

    simulate(scenario, 3, bookies=1)
