"""A driver that writes small results dies, is cancelled, or gets no answer, at each step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from bookie.testing import SimCluster, simulate
from bookie.testing.metastore import MetadataOptions
from bookie.testing.process import SimProcess
from connectors.spark.sink.result_ledgers import SmallLedgers
from connectors.spark.sink.task_ledgers import delete_ledgers
from ledger.client import LedgerClient
from ledger.errors import LedgerError
from stream.core.position import EARLIEST
from stream.namespace import Namespace
from stream.retention.janitor import Janitor
from stream.sinks.sinks import SinkQuery
from tests.effort import stride
from tests.sim.commits.results import commit, small_result
from tests.sim.model import Violation

_STREAMS = ("a", "b")
_BATCHES = 2
"""The first one reads, the second one is committed by what the first has left."""

Fault = Callable[["_World"], None]


class _World:
    """A driver that commits batches, as a query of Spark does; it fails at one step."""

    def __init__(self, cluster: SimCluster, step: int, fault: Fault) -> None:
        self.cluster = cluster
        self.steps = 0
        self.commits: list[int] = []
        """The steps that commit a batch."""
        self.process: SimProcess | None = None
        self.scope = trio.CancelScope()
        self._step = step
        self._fault = fault
        self._recorded = -1
        self._runs = 0
        cluster.metadata.on_call = self._note

    def _note(self, node: str, kind: str, path: str) -> None:
        if node == "driver":
            if kind == "transaction" and "/sinks/" in path:
                self.commits.append(self.steps)
            if self.steps == self._step:
                self._fault(self)
            if self.steps == self._step + 1:
                self.cluster.metadata.options = MetadataOptions()
            self.steps += 1

    async def run(self) -> None:
        while self._recorded < _BATCHES - 1:
            self._runs += 1
            self.process = self.cluster.start_client(self._query, name="driver")
            await self.process.finished.wait()
        await self.cluster.simulation.sleep(10)  # what is late has happened

    async def _query(self, client: LedgerClient) -> None:
        query = SinkQuery(query_id="q", run_id=f"r{self._runs}")
        policy = await Namespace(client, "n").policy()
        while self._recorded < _BATCHES - 1:
            batch = self._recorded + 1
            results = [
                small_result(policy, stream, [[f"{stream}{batch}{task}".encode()]], partition=task)
                for task in range(3)
                for stream in _STREAMS
            ]
            try:
                with trio.CancelScope() as self.scope:
                    await commit(client, results, "k", batch, query=query)
            except LedgerError:
                continue
            if not self.scope.cancelled_caught:
                self._recorded = batch


async def _check(cluster: SimCluster) -> None:
    async with cluster.client("checker") as client:
        space = Namespace(client, "n")
        named: set[int] = set()
        age_ms = -10_000
        await Janitor(client, "n", orphan_age_ms=age_ms, sink_orphan_age_ms=age_ms).sweep()
        for stream in _STREAMS:
            async with space.reader(stream, start=EARLIEST) as reader:
                found = [r.value async for batch in reader.read_to_end() for r in batch.records()]
            wanted = [f"{stream}{n}{task}".encode() for n in range(_BATCHES) for task in range(3)]
            if found != wanted:
                raise Violation(f"{stream} has {found}")
            named.update((await space.stream_metadata(stream)).ledgers())
        if named != set(await client.list_ledgers()):
            raise Violation(f"{named} are in streams, {await client.list_ledgers()} are there")
        for ledger_id in named:
            if not (await client.ledger_metadata(ledger_id)).is_closed:
                raise Violation(f"ledger {ledger_id} is open")


def _run(step: int, fault: Fault) -> _World:
    """Runs a world, and checks what it leaves."""

    async def scenario(cluster: SimCluster) -> _World:
        async with cluster.client("preparer") as client:
            space = Namespace(client, "n")
            await space.ensure()
            for stream in _STREAMS:
                await space.ensure_stream(stream)
        world = _World(cluster, step, fault)
        await world.run()
        await _check(cluster)
        return world

    return simulate(scenario)


def _die(world: _World) -> None:
    assert world.process is not None
    world.process.kill()


def _cancel(world: _World) -> None:
    """A request that is sent at this moment is still carried out."""
    world.scope.cancel()


def _lose_the_next_answer(world: _World) -> None:
    world.cluster.metadata.options = MetadataOptions(error_after_probability=1.0, timeout_s=0.1)


def _carry_the_next_call_out_late(world: _World) -> None:
    world.cluster.metadata.options = MetadataOptions(
        error_late_probability=1.0, late_max_s=1.0, timeout_s=0.1
    )


@pytest.mark.parametrize(
    ("fault", "distance"),
    [
        (_die, stride(ci=2)),
        (_cancel, stride(ci=2)),
        (_lose_the_next_answer, stride(ci=5)),
        (_carry_the_next_call_out_late, stride(ci=5)),
    ],
)
def test_each_batch_is_there_once_and_nothing_is_left(fault: Fault, distance: int) -> None:
    undisturbed = _run(-2, fault)
    assert len(undisturbed.commits) == _BATCHES
    for step in {*range(0, undisturbed.steps, distance), *undisturbed.commits}:
        _run(step, fault)


def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def discard(self: SmallLedgers) -> None:
        """Does not look whether a stream has them."""
        await delete_ledgers(self._client, [each.writer.ledger_id for each in self.unclosed])

    monkeypatch.setattr(SmallLedgers, "discard", discard)
    for step in _run(-2, _cancel).commits:
        with pytest.raises((Violation, LedgerError)):
            _run(step, _cancel)
