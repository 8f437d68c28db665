"""One run: a cluster that heals itself, users, faults, then calm and the checks.

Everything is drawn from the seed. In some runs bookies are asked for their entries now and then, so
that what no writer stored everywhere is found. In the others each ack quorum is the write quorum,
and all that is missing must be found because something happened.
"""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass, replace
from functools import partial
from typing import TextIO

import trio

from bookie.config import BookieConfig
from bookie.testing.cluster import SimCluster, random_config, small_config
from bookie.testing.scheduler import Simulation, run_simulated
from ledger.client import LedgerClient
from tests.sim.healing.bugs import bug_planted
from tests.sim.healing.checks import HealingChecks
from tests.sim.healing.faults import HealingFaults
from tests.sim.healing.healers import Healers, random_options
from tests.sim.healing.oracle import Oracle
from tests.sim.healing.workload import HealingModel, HealingStreams, HealingWorkload
from tests.sim.run import Outcome, network_options, separate_disks
from tests.sim.stream_model import StreamModel
from tests.sim.workload import WorkloadOptions, client_options

TIME_LIMIT_S = 2000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What a run is like."""

    losses: int
    """Bookies that lose their disks for good."""
    is_checking: bool
    is_varied: bool

    @property
    def ack_quorum_min(self) -> int:
        return self.losses + 1


def run_seed(seed: int, *, bug: str | None = None, trace_file: TextIO | None = None) -> Outcome:
    """Runs one seed. Raises `Violation` or whatever else went wrong."""

    async def main(simulation: Simulation) -> Outcome:
        chance = simulation.chance("healing")
        kind = _Kind(
            losses=chance.choice((0, 1, 1, 2)),
            is_checking=chance.random() < 0.6,
            is_varied=chance.random() < 0.7,
        )
        cluster = SimCluster(
            simulation,
            bookies=chance.choice((5, 6, 7)),
            config=partial(_config, kind.is_varied),
            network=network_options(chance),
        )
        separate_disks(cluster, simulation.chance("separate disks"))
        async with cluster, cluster.client("operator") as operator:
            return await _World(cluster, chance, kind).run(operator)

    logging.disable(logging.CRITICAL)
    try:
        with bug_planted(bug):
            return run_simulated(main, seed, time_limit_s=TIME_LIMIT_S, trace_file=trace_file)
    finally:
        logging.disable(logging.NOTSET)


class _World:
    """The users and the healers of a cluster."""

    def __init__(self, cluster: SimCluster, chance: random.Random, kind: _Kind) -> None:
        self.cluster = cluster
        self.chance = chance
        self.kind = kind
        options = random_options(chance, is_checking=kind.is_checking)
        self.healers = Healers(cluster, chance.randint(1, 3), options, client_options(chance))
        self.oracle = Oracle(cluster, self.healers, cluster.simulation.fail)
        self.healers.on_service = self.oracle.watch
        self.model = HealingModel(cluster.simulation.fail)
        self.model.recovered = self.oracle.recovered

    async def run(self, operator: LedgerClient) -> Outcome:
        simulation = self.cluster.simulation
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.oracle.sample)
            nursery.start_soon(self.oracle.check_promises, operator)
            workload = await self._start_workload()
            self.healers.start_all()
            faults = HealingFaults(
                self.cluster,
                workload,
                self.healers,
                self.oracle,
                operator,
                pause_mean_s=self.chance.choice((0.3, 1.0, 3.0)),
                losses=self.kind.losses,
            )
            await faults.run(self.chance.uniform(5, 20))
            checks = HealingChecks(
                self.cluster, workload, self.model, self.healers, self.oracle, operator
            )
            await checks.run()
            await self.healers.kill_all()
            nursery.cancel_scope.cancel()
        streams = {} if workload.streams is None else workload.streams.model.counts
        counts = self.model.counts | streams | self.oracle.counts | self.healers.counts
        counts |= {f"fault {name}": number for name, number in faults.counts.items()}
        return Outcome(
            simulation.seed,
            simulation.trace_hash(),
            simulation.events_traced,
            trio.current_time(),
            dict(sorted(counts.items())),
        )

    async def _start_workload(self) -> HealingWorkload:
        chance, kind = self.chance, self.kind
        streams: HealingStreams | None = None
        if chance.random() < 0.5:
            streams = HealingStreams(
                self.cluster,
                StreamModel("stream", self.cluster.simulation.fail),
                self.cluster.simulation.chance("streams"),
                ack_quorum_min=kind.ack_quorum_min,
                is_exact=not kind.is_checking,
            )
            await streams.prepare()
        options = WorkloadOptions(
            writers=chance.randint(1, 2),
            recoverers=chance.randint(0, 1),
            readers=chance.randint(0, 1),
            entries_max=chance.choice((5, 40)),
            payload_max=chance.choice((60, 1000)),
            pause_max_s=chance.choice((1.0, 3.0)),
            deletes=chance.random() < 0.5,
            ack_quorum_min=kind.ack_quorum_min,
        )
        workload = HealingWorkload(self.cluster, self.model, options, streams)
        workload.is_exact = not kind.is_checking
        workload.start()
        return workload


def _config(is_varied: bool, name: str, chance: random.Random) -> BookieConfig:
    """Some bookies soon remove the copies that metadata does not name any more."""
    made = (random_config if is_varied else small_config)(name, chance)
    interval_ms = chance.choice((0, 300, 2000))
    return replace(
        made,
        over_replicated_interval_ms=interval_ms,
        over_replicated_age_ms_min=chance.choice((0, 1000)),
    )
