"""A bookie that claims entries to be confirmed which nobody wrote, while writers die."""

from __future__ import annotations

import logging

import pytest

from bookie.testing.cluster import SimCluster, small_config
from bookie.testing.scheduler import Simulation, run_simulated
from tests.effort import seeds
from tests.sim.checks import check_convergence
from tests.sim.faults import Faults
from tests.sim.model import Model
from tests.sim.run import TIME_LIMIT_S, network_options
from tests.sim.workload import Workload, WorkloadOptions


def run_with_liar(seed: int) -> dict[str, int]:
    """Runs writers, recoverers and faults beside a liar; returns what happened how often.

    An ack quorum of 2 is needed: a bookie that confirms entries by itself is believed.
    """

    async def main(simulation: Simulation) -> dict[str, int]:
        chance = simulation.chance("run")
        cluster = SimCluster(
            simulation,
            bookies=chance.choice((3, 4, 5)),
            config=small_config,
            network=network_options(chance),
        )
        async with cluster:
            model = Model(simulation.fail)
            options = WorkloadOptions(readers=0, liars=1, deletes=False, ack_quorum_min=2)
            workload = Workload(cluster, model, options)
            workload.start()
            faults = Faults(
                cluster,
                workload,
                pause_mean_s=chance.choice((0.5, 2.0)),
                loses_disk=False,
                rots=False,
                loses_unsynced=True,
                gains_directories=False,
            )
            await faults.run(chance.uniform(2, 6))
            await check_convergence(cluster, workload, model)
            return model.counts

    logging.disable(logging.CRITICAL)
    try:
        return run_simulated(main, seed, time_limit_s=TIME_LIMIT_S)
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", seeds(ci=(4, 6), night=40))
def test_no_lie_of_one_bookie_moves_an_end_or_keeps_a_ledger_open(seed: int) -> None:
    counts = run_with_liar(seed)
    assert counts["entries forged"] > 0
    assert counts["recovered or found closed"] > 0
