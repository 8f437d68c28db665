"""Bookies gain and lose ledger directories while clients write, recover and read.

What the bookies are checked for at every step, and that all is well afterwards, is as in every run
of the simulator. Here each bookie has several directories, a lost one is always dropped, and in the
end nothing is in limbo.
"""

from __future__ import annotations

import dataclasses
import logging
import random

import pytest
import trio

from bookie.config import BookieConfig
from bookie.testing.cluster import SimCluster, random_config
from bookie.testing.scheduler import Simulation, run_simulated
from tests.effort import scaled
from tests.sim.checks import check_convergence
from tests.sim.directory_changes import DirectoryChanges
from tests.sim.faults import Faults
from tests.sim.model import Model
from tests.sim.workload import PASSWORD, Workload, WorkloadOptions

_HEALED_S = 120.0
_DIRECTORIES = ("/ledgers", "/ledgers-1", "/ledgers-2")


def _config(name: str, chance: random.Random) -> BookieConfig:
    made = random_config(name, chance)
    count = chance.choice((2, 3))
    return dataclasses.replace(
        made,
        ledger_directories=_DIRECTORIES[:count],
        write_cache_bytes=made.frame_bytes_max * 8 * count,
        read_cache_bytes=64 * 1024 * count,
    )


async def _lose_and_drop(cluster: SimCluster, changes: DirectoryChanges, at_s: float) -> None:
    chance = cluster.simulation.chance("dropped")
    await trio.sleep(at_s)
    # Calm would come between, and it stay half lost.
    with trio.CancelScope(shield=True):
        async with changes.operator:
            name = chance.choice(cluster.bookies)
            lost = chance.choice(cluster.config(name).ledger_directories)
            await cluster.lose_disk(name, lost)
            await changes.drop(name, lost)


async def _check_healed(cluster: SimCluster, model: Model) -> None:
    """Nothing is in limbo any more: all ledgers are closed, or deleted and collected."""
    async with cluster.client("operator") as client:
        for ledger_id in await client.list_ledgers():
            if ledger_id not in model.ledgers:  # the answer to the request that made it was lost
                async with client.open_ledger(ledger_id, password=PASSWORD):
                    pass
    with trio.move_on_after(_HEALED_S) as scope:
        for name in model.forgetful:
            storage = cluster.storage(name)
            while any(one.integrity.state is not None for one in storage.directories):
                await cluster.limbo_repair(name).round_ended.wait()
    assert not scope.cancelled_caught, "ledgers of a dropped directory are still in limbo"


def _run(seed: int) -> tuple[int, int]:
    """Returns how many directories were dropped, and gained."""

    async def main(simulation: Simulation) -> tuple[int, int]:
        chance = simulation.chance("run")
        cluster = SimCluster(simulation, bookies=chance.choice((4, 5)), config=_config)
        async with cluster:
            model = Model(simulation.fail)
            options = WorkloadOptions(
                writers=chance.randint(1, 3),
                recoverers=chance.randint(0, 2),
                readers=chance.randint(0, 2),
                entries_max=chance.choice((5, 40, 120)),
                payload_max=chance.choice((60, 1000, 4000)),
                deletes=chance.random() < 0.5,
            )
            options.ack_quorum_min = 2
            workload = Workload(cluster, model, options, None)
            workload.start()
            faults = Faults(cluster, workload, pause_mean_s=2.0, gains_directories=True)
            seconds = chance.uniform(4, 10)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    _lose_and_drop, cluster, faults.changes, chance.uniform(0, 0.8 * seconds)
                )
                await faults.run(seconds)
            await check_convergence(cluster, workload, model)
            await _check_healed(cluster, model)
            return len(model.forgetful), faults.changes.gained

    logging.disable(logging.CRITICAL)
    try:
        return run_simulated(main, seed, time_limit_s=1000)
    finally:
        logging.disable(logging.NOTSET)


def test_directories_change_under_load(capsys: pytest.CaptureFixture[str]) -> None:
    dropped = gained = 0
    for seed in range(scaled(ci=6, night=400)):
        lost, new = _run(seed)
        dropped, gained = dropped + lost, gained + new
    with capsys.disabled():
        print(f" {dropped} directories dropped, {gained} gained ", end="")
    assert dropped >= scaled(ci=6, night=400)
    assert gained >= 3
