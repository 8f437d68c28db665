"""A bookie is renamed while auto-recovery takes it for lost, and the metadata store fails."""

from __future__ import annotations

import pytest
import trio

from bookie.testing import SimCluster, Simulation, run_simulated
from ledger.autorecovery.options import AutoRecoveryOptions
from ledger.verify import verify_ledger
from tests.effort import scaled
from tests.ledger.autorecovery.test_healing import healing, is_whole, until_no_marks
from tests.sim.bookies.test_renaming import (
    NAME,
    NEW,
    OLD,
    PORT,
    named,
    prepare,
    write,
)

LEDGERS = 12
DELAY_S = 20.0


@pytest.mark.parametrize("seed", range(scaled(ci=8, night=200)))
def test_all_copies_are_there_in_either_order(seed: int) -> None:
    async def main(simulation: Simulation) -> tuple[int, int]:
        async with SimCluster(simulation, bookies=5) as cluster:
            async with cluster.client("writer") as client:
                ids = [(await write(client)).ledger_id for _ in range(LEDGERS)]
            ids += (await prepare(cluster))[:-1]
            options = AutoRecoveryOptions(
                lost_bookie_recovery_delay_s=DELAY_S, copy_bytes_per_s=10_000, ledgers_at_once=2
            )
            async with cluster.client() as client, healing(cluster, options=options):
                before = [await client.ledgers.read(ledger_id) for ledger_id in ids]
                await simulation.sleep(simulation.chance("begin").uniform(DELAY_S - 2, DELAY_S + 4))
                faults = cluster.metadata.options
                faults.error_before_probability = faults.error_after_probability = 0.003
                while not await cluster.rename_bookie(NAME, PORT):
                    await simulation.sleep(1)
                faults.error_before_probability = faults.error_after_probability = 0.0
                await cluster.start_bookie(NAME)
                with trio.fail_after(600):
                    await until_no_marks(client)
                moved = renamed = 0
                for ledger_id, (metadata, _) in zip(ids, before, strict=True):
                    now, _ = await client.ledgers.read(ledger_id)
                    assert OLD not in named(now)
                    moved += OLD in named(metadata) and NEW not in named(now)
                    renamed += NEW in named(now)
                    report = await verify_ledger(client, ledger_id)
                    assert is_whole(report), (ledger_id, report)
                return moved, renamed

    moved, renamed = run_simulated(main, seed, time_limit_s=3600)
    assert moved + renamed > 0
