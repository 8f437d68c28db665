"""Small results as tasks of a sink return them, and the commit of a batch that has some."""

from __future__ import annotations

from collections.abc import Sequence

from connectors.spark.core.cluster_access import ClusterAccess
from connectors.spark.options.options import WriteOptions
from connectors.spark.sink.batch_commit import commit_results
from connectors.spark.sink.routing import Target
from connectors.spark.sink.task_results import SmallResult, TaskLedger, checksum_of
from ledger.client import LedgerClient
from stream.core.entry.encoder import encode
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.sinks.sinks import BatchCommit, SinkLedger, SinkQuery

OPTIONS = WriteOptions(cluster=ClusterAccess("simulated"), is_streaming=True)


def small_result(
    policy: NamespaceMetadata,
    stream: str,
    entries: Sequence[Sequence[bytes]],
    *,
    partition: int = 0,
) -> SmallResult:
    """Returns what a task returns that wrote these records, one list for each entry."""
    payloads: list[bytes] = []
    records = 0
    for values in entries:
        payloads.append(
            encode(values, first_sequence=records, append_time_ms=1, is_sequence_in_segment=True)
        )
        records += len(values)
    target = Target(policy.name, stream)
    checksum = checksum_of(target, partition, payloads)
    return SmallResult(target, policy, tuple(payloads), checksum, partition)


async def commit(
    client: LedgerClient,
    results: Sequence[SinkLedger | TaskLedger | SmallResult],
    sink_id: str | None,
    batch_id: int | None,
    *,
    options: WriteOptions = OPTIONS,
    query: SinkQuery | None = None,
) -> BatchCommit:
    """Commits results of tasks, in this order, as the driver of a Spark job does."""
    tasks = [TaskLedger(result) if isinstance(result, SinkLedger) else result for result in results]
    return await commit_results(
        client, tasks, options, sink_id=sink_id, batch_id=batch_id, query=query
    )
