"""One run of the simulator: a cluster, a workload, faults, then calm and the checks.

Everything, also which faults and how much of what, is drawn from the seed.
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
from bookie.testing.network import NetworkOptions
from bookie.testing.scheduler import Simulation, run_simulated
from tests.sim.bugs import bug_planted
from tests.sim.checks import check_convergence
from tests.sim.faults import Faults
from tests.sim.model import Model
from tests.sim.page_limits import page_limits
from tests.sim.stream_model import StreamModel
from tests.sim.stream_workload import StreamWorkload
from tests.sim.workload import Workload, WorkloadOptions

TIME_LIMIT_S = 1000.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The report of a run without a violation."""

    seed: int
    trace_hash: str
    events: int
    virtual_s: float
    counts: dict[str, int]


@page_limits()
def run_seed(seed: int, *, bug: str | None = None, trace_file: TextIO | None = None) -> Outcome:
    """Runs one seed. Raises `Violation` or whatever else went wrong."""

    async def main(simulation: Simulation) -> Outcome:
        chance = simulation.chance("run")
        is_varied = chance.random() < 0.8
        # What is not synced outlives processes, but no machine nor a journal's failure.
        syncs_late = simulation.chance("late sync").random() < 0.15
        cluster = SimCluster(
            simulation,
            bookies=chance.choice((3, 3, 4, 5)),
            config=partial(_config, is_varied, syncs_late),
            network=network_options(chance),
        )
        separate_disks(cluster, simulation.chance("separate disks"))
        loses_disk, rots = _disk_damage(simulation)
        ack_quorum_min = 2 if loses_disk or rots else 1
        async with cluster:
            model = Model(simulation.fail)
            streams: StreamWorkload | None = None
            if chance.random() < 0.6:
                streams = StreamWorkload(
                    cluster,
                    StreamModel("stream", simulation.fail),
                    simulation.chance("streams"),
                    ack_quorum_min=ack_quorum_min,
                )
                await streams.prepare()
            options = _workload_options(chance, streams)
            options.ack_quorum_min = ack_quorum_min
            workload = Workload(cluster, model, options, streams)
            workload.start()
            faults = Faults(
                cluster,
                workload,
                pause_mean_s=chance.choice((0.15, 0.5, 2.0)),
                loses_disk=loses_disk,
                rots=rots,
                loses_unsynced=not syncs_late,
                gains_directories=simulation.chance("gains").random() < 0.15,
            )
            await faults.run(chance.uniform(2, 10))
            await check_convergence(cluster, workload, model)
            counts = model.counts | (streams.model.counts if streams else {})
            counts["runs with late syncs"] = syncs_late
            counts |= {f"fault {name}": n for name, n in faults.counts.items()}
            return Outcome(
                seed,
                simulation.trace_hash(),
                simulation.events_traced,
                trio.current_time(),
                dict(sorted(counts.items())),
            )

    logging.disable(logging.CRITICAL)
    try:
        with bug_planted(bug):
            return run_simulated(main, seed, time_limit_s=TIME_LIMIT_S, trace_file=trace_file)
    finally:
        logging.disable(logging.NOTSET)


def _disk_damage(simulation: Simulation) -> tuple[bool, bool]:
    """Whether one disk is lost for good, and whether one rots: then every ack quorum must be 2 or
    more, so never both."""
    is_lost = simulation.chance("lost disk").random() < 0.3
    return is_lost, not is_lost and simulation.chance("rotten disk").random() < 0.2


def network_options(chance: random.Random) -> NetworkOptions:
    return NetworkOptions(
        latency_max_s=chance.choice((0.0005, 0.002, 0.02)),
        split_probability=chance.choice((0.0, 0.05, 0.3)),
        buffer_bytes=chance.choice((2000, 64 * 1024, 256 * 1024)),
    )


def _config(is_varied: bool, syncs_late: bool, name: str, chance: random.Random) -> BookieConfig:
    made = (random_config if is_varied else small_config)(name, chance)
    return replace(made, journal_sync_data=False) if syncs_late else made


def separate_disks(cluster: SimCluster, chance: random.Random) -> None:
    """Half of the bookies have a disk for each of their directories."""
    for name in cluster.bookies:
        config = cluster.config(name)
        if chance.random() < 0.5:
            cluster.disk(name).separate((*config.journal_directories, *config.ledger_directories))


def _workload_options(chance: random.Random, streams: StreamWorkload | None) -> WorkloadOptions:
    least = 0 if streams is not None and chance.random() < 0.5 else 1
    return WorkloadOptions(
        writers=chance.randint(least, 3),
        recoverers=chance.randint(least, 2),
        readers=chance.randint(0, 2),
        entries_max=chance.choice((5, 40, 120)),
        payload_max=chance.choice((60, 1000, 4000)),
        deletes=chance.random() < 0.5,
    )
