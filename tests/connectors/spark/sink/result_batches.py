"""Batches of small results on a simulated cluster, what they leave, and what they cost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bookie.testing import SimCluster
from connectors.spark.sink.task_results import SmallResult
from ledger.client import LedgerClient
from stream import Namespace
from stream.core.entry.records import Record
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.position import EARLIEST
from stream.sinks.sinks import SinkQuery
from tests.sim.commits.results import small_result
from tests.stream.sim_namespace import sim_namespace

POLICY = NamespaceMetadata(name="n", created_ms=0)
RUN = SinkQuery(query_id="q", run_id="r")


def one_row_each(tasks: int, batch: int, policy: NamespaceMetadata = POLICY) -> list[SmallResult]:
    """Returns the results of tasks that have one row each, "batch/task"."""
    return [
        small_result(policy, "s", [[b"%d/%d" % (batch, task)]], partition=task)
        for task in range(tasks)
    ]


async def records_of(client: LedgerClient, stream: str = "s") -> list[Record]:
    """Returns all records of a stream."""
    async with Namespace(client, "n").reader(stream, start=EARLIEST) as reader:
        return [record async for batch in reader.read_to_end() for record in batch.records()]


async def values_of(client: LedgerClient, stream: str = "s") -> list[bytes]:
    """Returns the values of a stream, and checks that its sequences are dense from 0."""
    records = await records_of(client, stream)
    assert [record.sequence for record in records] == list(range(len(records)))
    return [record.value for record in records]


async def check_all_closed(client: LedgerClient) -> None:
    """Checks that no ledger of the cluster is open."""
    for ledger_id in await client.list_ledgers():
        assert (await client.ledger_metadata(ledger_id)).is_closed


class Calls:
    """The calls of one node to the metadata store: their kinds and paths."""

    def __init__(self, cluster: SimCluster, node: str) -> None:
        self.made: list[tuple[str, str]] = []
        self._node = node
        cluster.metadata.on_call = self._note

    def _note(self, node: str, kind: str, path: str) -> None:
        if node == self._node:
            self.made.append((kind, path))

    def taken(self) -> list[tuple[str, str]]:
        made, self.made = self.made, []
        return made


@asynccontextmanager
async def driver_of(cluster: SimCluster) -> AsyncIterator[LedgerClient]:
    """Yields the client "driver" of a cluster that has the stream n/s."""
    async with sim_namespace(cluster) as namespace:
        await namespace.create_stream("s")
        await cluster.simulation.sleep(20)  # older than ledgers also by a clock that is late
        async with cluster.client("driver") as client:
            yield client
