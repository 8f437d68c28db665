"""Queries and tasks continue when the segments that they read are merged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio

from bookie.testing import SimCluster
from connectors.spark.core.admission import Limits
from connectors.spark.core.filters import NO_BOUNDS
from connectors.spark.options.options import ReadOptions
from connectors.spark.source.batch_reader import _plan
from connectors.spark.source.input_partitions import LedgerPartition, _entries
from ledger.client import LedgerClient
from stream import Namespace
from stream.retention.segment_merging import drop_replaced, merge_segments, plan_merge
from tests.connectors.spark.source.sample_namespaces import (
    all_of,
    append,
    run_scenario,
    sample_namespace,
)
from tests.connectors.spark.source.simulated_query import Query, by_stream
from tests.sim.page_limits import page_limits, small_merges

SEGMENTS = 16


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with page_limits(), small_merges():
        yield


async def merge(namespace: Namespace) -> int:
    """Merges what there is to merge, and deletes the earlier ledgers, which bookies forget."""
    policy, count = await namespace.policy(), 0
    while True:
        stream = await namespace.stream_metadata("a")
        plan = (await plan_merge(namespace.client, policy, stream)).plan
        if plan is None:
            break
        await merge_segments(namespace.client, policy, stream, plan, bytes_per_s=1e9)
        count += len(plan.segments)
    stream = await namespace.stream_metadata("a")
    assert (await drop_replaced(namespace.client, "n", stream, 0))[1] > 0
    await trio.sleep(60)
    return count


async def rows_of(client: LedgerClient, partitions: list[LedgerPartition]) -> list[object]:
    """Returns where each entry is, and its bytes."""
    found: list[object] = []
    for partition in partitions:
        async for number, base, entries in _entries(client, partition):
            segment = partition.ranges[number].segment
            found += [(segment, each.entry_id - base, bytes(each.payload)) for each in entries]
    return found


@pytest.mark.parametrize("tasks", ["1", "5"])
def test_a_task_reads_what_was_merged_after_it_was_planned(tasks: str) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace:
            for count in range(1, SEGMENTS):
                await append(namespace, "a", 7 * count)
            given = {"cluster": "sqlite:///x", "stream": "n/a", "minTasks": tasks}
            options = ReadOptions.parse(given, {}, is_streaming=False)
            client = namespace.client
            planned = await _plan(client, options, NO_BOUNDS)
            before = await rows_of(client, planned)
            assert len(before) > 2 * SEGMENTS
            assert await merge(namespace) > SEGMENTS // 2
            assert await rows_of(client, planned) == before
            again = await _plan(client, options, NO_BOUNDS)
            assert await rows_of(client, again) == before
            kept = [each.metadata for partition in again for each in partition.ranges]
            assert len(set(kept)) <= (await namespace.info("a")).ledgers

    run_scenario(scenario)


def test_a_query_goes_on_over_a_merge_and_a_restart() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace:
            for _ in range(SEGMENTS):
                await append(namespace, "a", 9)
            query = Query(namespace.client, [], stream="n/a")
            async with query.running():
                for _ in range(5):
                    await query.step(Limits(records_max=7))
                await merge(namespace)
                again = await query.again()
                assert again == query.seen[-1]
                for _ in range(5):
                    await query.step(Limits(records_max=7))
            for _ in range(SEGMENTS):
                await append(namespace, "a", 3)
            await merge(namespace)
            restarted = Query(namespace.client, query.log, stream="n/a")
            async with restarted.running():
                await restarted.drain(Limits(bytes_max=500))
            assert by_stream(query.seen + restarted.seen) == await all_of(namespace, "a")

    run_scenario(scenario)
