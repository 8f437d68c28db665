"""Copies that are stopped halfway, by an operator or as the bookie returns, leave no gap."""

from __future__ import annotations

import trio

from bookie.testing import SimCluster, simulate
from ledger.autorecovery.options import AutoRecoveryOptions
from ledger.autorecovery.service import AutoRecovery
from ledger.client import LedgerClient
from ledger.verify import verify_ledger
from tests.ledger.autorecovery.test_healing import (
    ENTRIES,
    PATIENCE_S,
    healing,
    id_of,
    is_whole,
    until_no_marks,
)

SLOW = AutoRecoveryOptions(lost_bookie_recovery_delay_s=5, copy_bytes_per_s=10_000)


def test_a_copy_that_is_disabled_halfway_stays_marked_and_is_made_later() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client, healing(cluster, options=SLOW) as service:
            ledger_id = await big_ledger(client, cluster, is_complete=True)
            await cluster.kill_bookie(cluster.bookies[0])
            await until_copying(service)
            await client.underreplication.set_enabled(False)
            await trio.sleep(5)
            assert not service.worker.in_progress
            assert service.worker.statistics.copies_stopped == 1
            assert await client.underreplication.locked() == {}
            await trio.sleep(60)
            assert await client.underreplication.list() == [ledger_id]
            assert not is_whole(await verify_ledger(client, ledger_id))
            await client.underreplication.set_enabled(True)
            await until_no_marks(client)
            assert is_whole(await verify_ledger(client, ledger_id))

    simulate(scenario, 3, bookies=4)


def test_a_bookie_that_returns_during_its_copy_is_asked_what_it_lacks() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client, healing(cluster, options=SLOW) as service:
            ledger_id = await big_ledger(client, cluster, is_complete=False)
            await until_copying(service)
            await cluster.start_bookie(cluster.bookies[0])
            await until_no_marks(client)
            assert service.worker.statistics.copies_stopped == 1
            assert service.worker.statistics.copies_filled == 1
            assert is_whole(await verify_ledger(client, ledger_id))

    simulate(scenario, 3, bookies=4)


async def until_copying(service: AutoRecovery) -> None:
    """Returns when the worker has been busy with a ledger for longer than any look takes."""
    busy_s = 0
    with trio.fail_after(PATIENCE_S):
        while busy_s < 3:
            await trio.sleep(1)
            busy_s = busy_s + 1 if service.worker.in_progress else 0


async def big_ledger(client: LedgerClient, cluster: SimCluster, *, is_complete: bool) -> int:
    """Returns a closed ledger on the first three bookies; the first one is dead and has only half
    of it, unless it `is_complete`."""
    first, spare = cluster.bookies[0], cluster.bookies[3]
    await cluster.kill_bookie(spare)
    await trio.sleep(60)
    writer = await client.create_ledger()
    for is_second_half in (False, True):
        if is_second_half and not is_complete:
            await cluster.kill_bookie(first)
        await writer.append_many([bytes(2000)] * ENTRIES)
        await trio.sleep(1)  # the last acks
    await writer.close()
    assert id_of(first) in writer.metadata.last_fragment.bookies
    await cluster.start_bookie(spare)
    await trio.sleep(1)
    return writer.ledger_id
