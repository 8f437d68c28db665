"""Batches can be planned while streams are truncated and purged."""

from __future__ import annotations

import pytest
import trio

from bookie.testing import SimCluster, simulate
from connectors.spark.core.filters import NO_BOUNDS
from connectors.spark.options.options import ReadOptions, Selection
from connectors.spark.source import batch_reader
from connectors.spark.source.batch_reader import _plan
from connectors.spark.source.data_loss import DataLossLog
from connectors.spark.source.discovery import open_streams
from connectors.spark.source.micro_batches import MicroBatches
from connectors.spark.source.stream_index import StreamIndex
from connectors.spark.source.stream_reader import _begin, _partitions
from ledger.client import LedgerClient
from ledger.core.metadata import LedgerMetadata
from stream import Namespace, Position
from stream.retention.janitor import Janitor
from stream.store.pages import forget_pages
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


def test_a_batch_is_planned_again_if_its_pages_were_purged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace:
            await namespace.set_policy(trash_ms=0)
            for _ in range(12):
                await append(namespace, "a", 2)

            async def opened_before(
                client: LedgerClient, selection: Selection
            ) -> dict[str, StreamIndex]:
                found = await open_streams(client, selection)
                await namespace.truncate("a", Position(9, 0, 0))
                forget_pages(client.store)  # by another process
                return found

            monkeypatch.setattr(batch_reader, "open_streams", opened_before)
            options = options_for(is_streaming=False)
            (partition,) = await _plan(namespace.client, options, NO_BOUNDS)
            assert [each.segment for each in partition.ranges] == [9, 10, 11, 12]

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


def test_a_plan_that_is_made_again_keeps_what_it_has_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace, cluster.client() as client:
            await namespace.set_policy(trash_ms=0)
            for _ in range(20):
                await append(namespace, "a", 1)
            stream = await namespace.stream_metadata("a")
            segments = await namespace.store.pages.listed(stream, limit=20)
            ask, asked = client.ledger_metadata, list[int]()

            async def purge_and_ask(ledger_id: int) -> LedgerMetadata:
                asked.append(ledger_id)
                if ledger_id == segments[0].ledger_id:
                    await namespace.truncate("a", Position(2, 0, 0))
                    await Janitor(namespace.client, "n", orphan_age_ms=0).sweep()
                return await ask(ledger_id)

            monkeypatch.setattr(client, "ledger_metadata", purge_and_ask)
            (partition,) = await _plan(client, options_for(is_streaming=False), NO_BOUNDS)
            assert [each.segment for each in partition.ranges] == [*range(2, 21)]
            assert sorted(asked) == sorted(segment.ledger_id for segment in segments)

    run_scenario(scenario)


def test_planning_asks_for_many_ledgers_at_a_time() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace:
            for _ in range(32):
                await append(namespace, "a", 1)
            options = options_for(is_streaming=False)
            async with cluster.client() as client:
                begun_s = cluster.simulation.now_s
                (partition,) = await _plan(client, options, NO_BOUNDS)
                took_s = cluster.simulation.now_s - begun_s
            assert len(partition.ranges) == 32
            assert took_s < 0.1, "one after the other takes 5 ms for each ledger"

    simulate(scenario)
