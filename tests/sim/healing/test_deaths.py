"""A process of auto-recovery dies at each of its calls of the metadata store, before it has an
effect and after: whatever it leaves behind, the next one heals the cluster."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from bookie.testing import SimCluster, simulate
from bookie.testing.metastore import SimMetadataStore
from ledger.autorecovery.options import AutoRecoveryOptions
from ledger.autorecovery.service import AutoRecovery
from ledger.client import LedgerClient
from ledger.core.copies import CopyVerdict
from ledger.metastore.decommissions import Decommission, Decommissions
from ledger.verify import verify_ledger
from tests.effort import stride
from tests.sim.healing.copiers import open_copier

OPTIONS = AutoRecoveryOptions(lost_bookie_recovery_delay_s=3, open_ledger_grace_s=1)
ENTRIES = 5
PATIENCE_S = 300.0
CALLS_MAX = 1000


async def _heal(
    cluster: SimCluster,
    client: LedgerClient,
    *,
    dies_at: int | None = None,
    is_after: bool = False,
) -> int:
    """Runs a process until the cluster is healed, or it dies at its call number `dies_at`, before
    that has an effect or after. Returns how many calls it made."""
    calls = 0

    async def body(own: LedgerClient) -> None:
        nonlocal calls
        store = own.store
        assert isinstance(store, SimMetadataStore)
        call = store._call

        async def counted(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            is_last = calls == dies_at
            if is_last and not is_after:
                process.kill()
            found = await call(*args)
            if is_last:
                process.kill()
                await trio.lowlevel.checkpoint()
            return found

        store._call = counted  # type: ignore[method-assign, assignment]
        async with open_copier(own, OPTIONS) as copier:
            service = AutoRecovery(
                own, OPTIONS, copier=copier, bookie_id="healer:3181", rng=own.rng
            )
            await service.run()

    process = cluster.start_client(body, name="healer")
    with trio.fail_after(PATIENCE_S):
        while process.is_running and not await _is_healed(cluster, client):  # noqa: ASYNC110
            await trio.sleep(0.5)
    process.kill()
    await process.finished.wait()
    return calls


async def _is_healed(cluster: SimCluster, client: LedgerClient) -> bool:
    if await client.underreplication.list() or await client.store.children(
        "/ledgers/underreplication/ledgers"
    ):
        return False
    for ledger_id in await client.list_ledgers():
        metadata = await client.ledger_metadata(ledger_id)
        named = {one.partition(":")[0] for f in metadata.fragments for one in f.bookies}
        if not metadata.is_closed or not named <= set(cluster.bookies):
            return False
    decommissions = await Decommissions(client.store).list()
    return all(one.state == "emptied" for one in decommissions)


async def _prepare(cluster: SimCluster, client: LedgerClient) -> list[int]:
    """A bookie is lost and another one is to be emptied; of three ledgers one is open, without its
    writer, and one is deleted though it is marked."""
    ids = []
    async with cluster.client("writer") as other:
        for number in range(4):
            writer = await other.create_ledger()
            await writer.append_many([b"%d" % n for n in range(ENTRIES)])
            await trio.sleep(0.5)  # the last acks
            if number:
                await writer.close()
            ids.append(writer.ledger_id)
        cluster.metadata.expire("writer")
    open_one = await client.ledger_metadata(ids[0])
    lost, leaving = open_one.fragments[0].bookies[:2]
    await cluster.lose_disk(lost.partition(":")[0])
    await Decommissions(client.store).begin(Decommission(bookie=leaving, begun_ms=client.now_ms()))
    await client.underreplication.mark(ids[3], [lost])
    await client.delete_ledger(ids[3])
    return ids[:3]


def _run(*, dies_at: int | None = None, is_after: bool = False) -> int:
    async def scenario(cluster: SimCluster) -> int:
        async with cluster.client() as client:
            ids = await _prepare(cluster, client)
            calls = await _heal(cluster, client, dies_at=dies_at, is_after=is_after)
            if dies_at is not None:
                await _heal(cluster, client)
            assert await client.list_ledgers() == ids
            for ledger_id in ids:
                report = await verify_ledger(client, ledger_id)
                assert report.verdict is CopyVerdict.WHOLE, (dies_at, report)
                assert report.entries == ENTRIES, (dies_at, report)
            return calls

    return simulate(scenario, 1, bookies=6)


@pytest.mark.parametrize("is_after", [False, True])
def test_a_process_may_die_at_each_call_of_the_metadata_store(is_after: bool) -> None:
    calls = _run()
    assert 100 < calls < CALLS_MAX
    for number in range(1 + is_after * 3, calls + 1, stride(ci=40)):
        _run(dies_at=number, is_after=is_after)
