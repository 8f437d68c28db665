"""How often an idle cluster wakes up, by virtual time: nothing happens while nothing changes."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from typing import Any

import trio

from bookie.config import BookieConfig
from bookie.testing import SimCluster
from bookie.testing.cluster import small_config
from bookie.testing.scheduler import Simulation, run_simulated

SECONDS = 600
STEPS_PER_BOOKIE_S = 2.5
"""With the two clients, of which one polls every 5 s and one looks after its writer every 1.25 s.
A bookie by itself takes 0.7: it looks at its disks, the garbage and its checkpoints."""


class Steps(trio.abc.Instrument):
    """Counts the steps of tasks, by the names of the tasks."""

    def __init__(self) -> None:
        self.by_task: Counter[str] = Counter()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.by_task[task.name] += 1


def with_usual_intervals(name: str, chance: random.Random) -> BookieConfig:
    usual: dict[str, Any] = {
        field.name: field.default for field in dataclasses.fields(BookieConfig)
    }
    return dataclasses.replace(
        small_config(name, chance),
        checkpoint_interval_ms=usual["checkpoint_interval_ms"],
        garbage_interval_ms=usual["garbage_interval_ms"],
    )


def test_an_idle_cluster_takes_hardly_a_step() -> None:
    """With an open writer that is idle, and a tail that waits for it."""

    async def scenario(simulation: Simulation) -> None:
        async with (
            SimCluster(simulation, config=with_usual_intervals) as cluster,
            cluster.client("writer") as one,
            cluster.client("reader") as other,
            one.create_ledger() as writer,
            other.open_ledger(writer.ledger_id, recover=False) as reader,
            trio.open_nursery() as nursery,
        ):
            await writer.append(b"x")

            async def read() -> None:
                async for _ in reader.tail(0):
                    pass

            nursery.start_soon(read)
            await trio.sleep(60)
            steps = Steps()
            trio.lowlevel.add_instrument(steps)
            await trio.sleep(SECONDS)
            trio.lowlevel.remove_instrument(steps)
            total, bookies = steps.by_task.total(), len(cluster.bookies)
            assert total <= STEPS_PER_BOOKIE_S * bookies * SECONDS, steps.by_task.most_common(10)
            nursery.cancel_scope.cancel()

    run_simulated(scenario, 1)
