"""Micro-batches of streams whose metadata were put back to an older state, and of other streams
with the name that a Spark checkpoint has."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from bookie.testing import SimCluster
from connectors.spark.core.admission import Limits
from connectors.spark.core.offsets import Offsets
from connectors.spark.options.options import Selection
from connectors.spark.source.data_loss import DataLoss
from connectors.spark.source.discovery import offset_at, open_streams
from stream import Namespace
from stream.core.metadata.streams import SEQUENCES_PER_RESTORE
from stream.core.position import FromEnd
from tests.connectors.spark.source.sample_namespaces import append, run_scenario, sample_namespace
from tests.connectors.spark.source.simulated_query import Query


async def _put_back(namespace: Namespace, stream: str) -> None:
    """Leaves the gap that the first writer after a restore leaves."""
    await namespace.store.update_stream("n", stream, lambda s: s.continued_after(s.restores + 1))


def _changed(log: list[str], **fields: int) -> list[str]:
    """Returns the checkpoint with another offset of stream n/a."""
    offsets = Offsets.from_json(json.loads(log[-1]))
    other = Offsets({**offsets, "n/a": replace(offsets["n/a"], **fields)})
    return [json.dumps(other.to_json())]


@pytest.mark.parametrize("limits", [Limits(records_max=3), Limits(bytes_max=200)])
def test_limits_count_records_and_not_the_gap_of_a_restore(limits: Limits) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace:
            await append(namespace, "a", 5)
            await _put_back(namespace, "a")
            await append(namespace, "a", 5, "w")
            query = Query(namespace.client, [], streams="n/a")
            async with query.running():
                await query.drain(limits)
                lag = await query.batches.lag(query.position)
            rows = [row for batch in query.seen for row in batch]
            first = SEQUENCES_PER_RESTORE
            assert [row.sequence for row in rows] == [*range(5), *range(first, first + 5)]
            assert lag.records == 0
            if limits.records_max is not None:
                assert [len(batch) for batch in query.seen] == [3, 3, 3, 1]
            (index,) = (await open_streams(namespace.client, Selection(streams=("n/a",)))).values()
            for records, expected in ((3, first + 2), (5, first), (7, 3), (20, 0)):
                found = await offset_at(index, FromEnd(records))
                assert found.sequence in (expected, 5 if expected == first else expected)
                assert await index.records_between(found, index.end) == min(records, 10)

    run_scenario(scenario)


@pytest.mark.parametrize("fails", [True, False])
def test_a_position_of_a_lost_history_is_data_loss(fails: bool) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace:
            await append(namespace, "a", 5)
            query = Query(namespace.client, [], streams="n/a")
            async with query.running():
                await query.drain()
            await _put_back(namespace, "a")
            await append(namespace, "a", 2, "w")
            # What was read up to the begin of the gap is followed by what is behind it.
            at_end = Query(namespace.client, list(query.log), streams="n/a")
            async with at_end.running():
                await at_end.drain()
            assert len([row for batch in at_end.seen for row in batch]) == 2
            ahead: dict[str, Any] = {"segment": 3, "entry": 0, "slot": 0, "nbytes": 0}
            log = _changed(query.log, sequence=8, **ahead)
            lost = Query(namespace.client, log, streams="n/a", fail_on_data_loss=fails)
            async with lost.running():
                if fails:
                    with pytest.raises(DataLoss, match=r"from sequence 8 on .*metadata restores"):
                        await lost.step()
                    return
                await lost.drain()
            rows = [row for batch in lost.seen for row in batch]
            assert [row.value for row in rows] == [b"w-0", b"w-1"]

    run_scenario(scenario)


def test_a_checkpoint_of_another_stream_of_the_name_is_data_loss() -> None:
    """Of another cluster, of a namespace that was made again, or of one stream of it."""

    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace:
            await append(namespace, "a", 5)
            query = Query(namespace.client, [], streams="n/a")
            async with query.running():
                await query.drain()
            created_ms = query.position["n/a"].created_ms
            log = _changed(query.log, created_ms=created_ms - 1000)
            foreign = Query(namespace.client, log, streams="n/a")
            async with foreign.running():
                with pytest.raises(DataLoss, match="checkpoint is of another cluster"):
                    await foreign.step()

    run_scenario(scenario)
