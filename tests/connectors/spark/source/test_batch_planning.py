"""Batches can be planned while streams are truncated and purged."""

from __future__ import annotations

import pytest
import trio

from bookie.testing import SimCluster
from connectors.spark.core.filters import NO_BOUNDS
from connectors.spark.options.options import ReadOptions
from connectors.spark.source.batch_reader import _plan
from connectors.spark.source.data_loss import DataLossLog
from connectors.spark.source.micro_batches import MicroBatches
from connectors.spark.source.stream_reader import _begin, _partitions
from stream import Namespace, Position
from stream.retention.janitor import Janitor
from tests.connectors.spark.source.sample_namespaces import append, run_scenario, sample_namespace


class _Churn:
    """Replaces the oldest segment of a stream by a new one, repeatedly."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.is_over = False

    async def begin(self) -> None:
        await self.namespace.set_policy(trash_ms=0, retention_ms=1)
        for _ in range(5):
            await append(self.namespace, "a", 20)

    async def run(self) -> None:
        while not self.is_over:
            await append(self.namespace, "a", 20)
            await Janitor(self.namespace.client, "n", orphan_age_ms=0).sweep()


def options_for(*, is_streaming: bool, **options: str) -> ReadOptions:
    given = {"cluster": "sqlite:///x", "stream": "n/a", "failOnDataLoss": "false", **options}
    return ReadOptions.parse(given, {}, is_streaming=is_streaming)


@pytest.mark.parametrize("place", ["earliest", "time=0", "end=15"])
def test_a_batch_is_planned_during_a_purge(place: str) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace:
            churn = _Churn(namespace)
            await churn.begin()
            options = options_for(is_streaming=False, startingPosition=place)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(churn.run)
                for _ in range(30):
                    await _plan(namespace.client, options, NO_BOUNDS)
                    await trio.sleep(0.01)
                churn.is_over = True

    run_scenario(scenario)


def test_a_micro_batch_is_planned_during_a_purge() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace:
            await namespace.set_policy(trash_ms=0)
            for _ in range(3):
                await append(namespace, "a", 20)
            options = options_for(is_streaming=True, startingPosition="earliest")
            client = namespace.client
            losses = DataLossLog(is_error=False)
            batches = MicroBatches(options.selection, options.starting, losses)
            # The tracker is not running: it gets no notifications.
            batches.tracker = await _begin(client, options.selection, ())
            start, end = await batches.initial(), batches.newest()
            await namespace.truncate("a", Position(3, 0, 0))
            await Janitor(client, "n", orphan_age_ms=0).sweep()
            (partition,) = await _partitions(client, batches, start, end, options)
            assert [each.segment for each in partition.ranges] == [3]
            assert losses.records == 40

    run_scenario(scenario)


def test_planning_asks_for_many_ledgers_at_a_time() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace:
            for _ in range(48):
                await append(namespace, "a", 1)
            options = options_for(is_streaming=False)
            async with cluster.client() as client:
                begun_s = cluster.simulation.now_s
                (partition,) = await _plan(client, options, NO_BOUNDS)
                took_s = cluster.simulation.now_s - begun_s
            assert len(partition.ranges) == 48
            assert took_s < 0.1, "one after the other takes 5 ms for each ledger"

    run_scenario(scenario)
