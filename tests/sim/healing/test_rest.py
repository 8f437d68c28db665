"""A healed cluster is at rest: auto-recovery asks nothing of the metadata store for an hour."""

from __future__ import annotations

from dataclasses import replace

import trio

from bookie.testing.cluster import SimCluster, small_config
from bookie.testing.scheduler import Simulation, run_simulated
from ledger.autorecovery.options import AutoRecoveryOptions
from ledger.core.copies import CopyVerdict
from ledger.options import ClientOptions
from ledger.verify import verify_ledger
from tests.sim.healing.healers import Healers

OPTIONS = AutoRecoveryOptions(lost_bookie_recovery_delay_s=5)
HOUR_S = 3600.0


def test_nothing_is_asked_for_an_hour_after_a_cluster_has_healed() -> None:
    async def main(simulation: Simulation) -> None:
        cluster = SimCluster(
            simulation,
            bookies=5,
            config=lambda name, chance: replace(
                small_config(name, chance),
                garbage_interval_ms=3_600_000,
                checkpoint_interval_ms=600_000,
            ),
        )
        async with cluster, cluster.client() as client:
            healers = Healers(cluster, 3, OPTIONS, ClientOptions())
            ids = []
            for _ in range(5):
                async with client.create_ledger() as writer:
                    await writer.append_many([b"x"] * 20)
                    await trio.sleep(1)  # the last acks
                ids.append(writer.ledger_id)
            healers.start_all()
            await cluster.lose_disk(cluster.bookies[0])
            await trio.sleep(60)
            assert sum(s.worker.statistics.ledgers_healed for s in healers.services.values())
            for ledger_id in ids:
                report = await verify_ledger(client, ledger_id)
                assert report.verdict is CopyVerdict.WHOLE
            assert len(healers.auditors()) == 1
            calls = healers.calls
            await trio.sleep(HOUR_S)
            assert healers.calls == calls
            await healers.kill_all()

    run_simulated(main, 1, time_limit_s=2 * HOUR_S)
