"""Queries that share the id of a sink: a second one, whose first batches were in another sink, and
a copy of the first one's checkpoint.

Each runs as Spark runs it: it commits the batch behind those that its checkpoint has, then records
it there; it is killed at any moment and starts as a new run. The metadata store fails. In the end
the stream has the batches of one query, each once and in order, and what a run took for a
repetition of another run's batch was the batch that it began with.
"""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass, field

import trio

from bookie.testing.cluster import SimCluster
from bookie.testing.metastore import MetadataOptions
from bookie.testing.process import SimProcess
from bookie.testing.scheduler import Simulation, run_simulated
from ledger.client import LedgerClient
from ledger.errors import LedgerError
from stream.core.position import EARLIEST
from stream.errors import CommitOutOfOrder
from stream.namespace import Namespace
from stream.sinks.sinks import SinkQuery, commit_batch
from tests.sim.model import Violation
from tests.sim.page_limits import page_limits
from tests.sim.workload import client_options
from tests.stream.sinks.sink_ledgers import write_ledger

_TIME_LIMIT_S = 50_000.0
_SINK = "k"


@dataclass(slots=True)
class _Checkpoint:
    """What Spark keeps of a query: its id, and the last batch that is done."""

    query_id: str
    last: int = -1


@dataclass(slots=True)
class _World:
    cluster: SimCluster
    batches: int
    chance: random.Random
    checkpoints: dict[str, _Checkpoint] = field(default_factory=dict)
    done: dict[str, list[int]] = field(default_factory=dict)
    """The batches whose commit returned, by run, in order."""
    counts: dict[str, int] = field(default_factory=dict)
    _runs: int = 0
    _processes: dict[str, SimProcess] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return max(each.last for each in self.checkpoints.values()) >= self.batches

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    async def run(self) -> None:
        self.checkpoints = {"one": _Checkpoint("one"), "two": _Checkpoint("two", 4)}
        for name in self.checkpoints:
            self._start(name)
        while not self.is_over:
            await trio.sleep(self.chance.expovariate(1))
            name = self.chance.choice((*self.checkpoints, "copy", "metadata"))
            if name == "metadata":
                await self._doubt()
            elif name == "copy" and "copy" not in self.checkpoints:
                owner = max(self.checkpoints.values(), key=lambda each: each.last)
                self.checkpoints["copy"] = _Checkpoint(owner.query_id, owner.last)
                self._start("copy")
            elif name in self._processes:
                self._processes[name].kill()
                await self._processes[name].finished.wait()
                self._count("kills")
                self._start(name)
        for process in self._processes.values():
            process.kill()
            await process.finished.wait()

    async def _doubt(self) -> None:
        self.cluster.metadata.options = MetadataOptions(
            timeout_s=0.5, error_before_probability=0.1, error_after_probability=0.2,
            error_late_probability=0.1, late_max_s=1.0,
        )  # fmt: skip
        await trio.sleep(self.chance.expovariate(0.5))
        self.cluster.metadata.options = MetadataOptions()

    def _start(self, name: str) -> None:
        chance = self.cluster.simulation.chance(f"{name}/{self._runs}")

        async def supervise(client: LedgerClient) -> None:
            while not self.is_over:
                try:
                    await self._query(client, chance, self.checkpoints[name])
                except CommitOutOfOrder as error:
                    is_other = "another" in str(error) or "query two" in str(error)
                    self._count("other query" if is_other else "out of order")
                    if "both are active" in str(error):
                        self._count("other run")
                except LedgerError as error:
                    self._count(type(error).__name__)
                await trio.sleep(chance.expovariate(2))

        self._processes[name] = self.cluster.start_client(
            supervise, name=name, options=client_options(chance)
        )

    async def _query(
        self, client: LedgerClient, chance: random.Random, checkpoint: _Checkpoint
    ) -> None:
        """One run, until it fails or all is done."""
        self._runs += 1
        run = f"r{self._runs}"
        query = SinkQuery(query_id=checkpoint.query_id, run_id=run)
        done = self.done[run] = []
        while not self.is_over:
            batch = checkpoint.last + 1
            value = f"{query.query_id}/{batch}/{run}".encode()
            ledger = await write_ledger(client, "s", [[value]], sink_id=_SINK, batch_id=batch)
            await commit_batch(
                client, [ledger], sink_id=_SINK, batch_id=batch,
                origin=f"query {query.query_id}", query=query,
            )  # fmt: skip
            done.append(batch)
            self._count("committed")
            await trio.sleep(chance.choice((0, 0.01, 0.3)))
            checkpoint.last = batch

    async def check(self) -> None:
        self.cluster.metadata.options = MetadataOptions()
        await trio.sleep(5)  # late transactions have been executed
        async with self.cluster.client("checker") as client:
            space = Namespace(client, "n")
            async with space.reader("s", start=EARLIEST) as reader:
                values = [
                    record.value async for batch in reader.read_to_end()
                    for record in batch.records()
                ]  # fmt: skip
        rows = [value.decode().split("/") for value in values]
        if len({query for query, _, _ in rows}) > 1:
            raise Violation(f"rows of two queries: {rows}")
        if [int(batch) for _, batch, _ in rows] != list(range(len(rows))):
            raise Violation(f"batches are missing or twice: {rows}")
        winners = {int(batch): run for _, batch, run in rows}
        for run, done in self.done.items():
            for number, batch in enumerate(done):
                if batch not in winners:
                    raise Violation(f"run {run} committed batch {batch}, which is not there")
                if number and winners[batch] != run:
                    raise Violation(f"rows of batch {batch} of run {run} were dropped: {done}")


@page_limits()
def run_world(seed: int, batches: int) -> dict[str, int]:
    """Runs queries until one has committed this many batches. Raises `Violation`, or any other
    error."""

    async def main(simulation: Simulation) -> dict[str, int]:
        async with SimCluster(simulation, bookies=3) as cluster:
            world = _World(cluster, batches, simulation.chance("queries"))
            async with cluster.client("preparer") as client:
                space = Namespace(client, "n")
                await space.ensure()
                await space.ensure_stream("s")
            await world.run()
            await world.check()
            return world.counts

    logging.disable(logging.CRITICAL)
    try:
        return run_simulated(main, seed, time_limit_s=_TIME_LIMIT_S)
    finally:
        logging.disable(logging.NOTSET)
