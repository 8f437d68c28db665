"""Commits or discards the ledgers of a batch's tasks, on the driver.

Decides the order of ledgers in each stream, and creates missing streams. stream/sinks/sinks.py
guarantees that a batch is committed once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from connectors.spark.sink.result_ledgers import SmallLedgers
from connectors.spark.sink.routing import look_up, parse_target
from connectors.spark.sink.sink_batch import SinkBatch
from connectors.spark.sink.sort_merge import in_total_order
from connectors.spark.sink.sort_order import SortOrder
from connectors.spark.sink.task_results import (
    SmallResult,
    TaskLedger,
    check_results,
)
from ledger.client import LedgerClient
from ledger.errors import LedgerError
from stream.core.metadata.streams import StreamMetadata
from stream.core.names import check_new_name
from stream.errors import StreamExists
from stream.sinks.sinks import (
    BatchCommit,
    SinkMemory,
    SinkQuery,
    UnclosedLedger,
    commit_batch,
    discard_ledgers,
    is_committed,
)
from stream.store.streams import StreamStore

if TYPE_CHECKING:
    from connectors.spark.client.client_cache import ClusterClient
    from connectors.spark.options.options import WriteOptions

_log = logging.getLogger(__name__)

_MEMORIES_MAX = 16
_memories: WeakKeyDictionary[LedgerClient, dict[str, SinkMemory]] = WeakKeyDictionary()
"""What this process knows of the sinks that it commits to, by their ids."""


def make_target(cluster: ClusterClient, name: str) -> None:
    """Creates a plain stream with this full name, unless it exists.

    Raises NoSuchNamespace, TooManyStreams, MetadataUnavailable.
    """
    target = parse_target(name, None)
    if cluster.run(look_up, target, may_be_missing=True).is_missing:
        cluster.run(_make_streams, [(target.namespace, target.stream)])


async def _make_streams(client: LedgerClient, names: Sequence[tuple[str, str]]) -> None:
    for namespace, stream in names:
        metadata = StreamMetadata(name=check_new_name(stream), created_ms=client.now_ms())
        with suppress(StreamExists):
            await StreamStore(client.store).create_stream(namespace, metadata)


async def commit_results(
    client: LedgerClient,
    results: Sequence[TaskLedger | SmallResult],
    options: WriteOptions,
    *,
    sink_id: str | None,
    batch_id: int | None,
    origin: str = "",
    query: SinkQuery | None = None,
) -> BatchCommit:
    """Makes what tasks have written, or returned, segments of their streams, once for this sink and
    batch.

    `results` are in the order of tasks. A batch without any is committed, too: older batches are
    refused from then on. Raises what `stream.sinks.sinks.commit_batch` and writing ledgers raise;
    DigestMismatch and InvalidArgument for results that are damaged or too large.
    """
    small = [each for each in results if isinstance(each, SmallResult)]
    check_results(small, options.small_result_bytes)
    order = SortOrder(options.sort_within_batch) if options.sort_within_batch else None
    batch = SinkBatch(sink_id, batch_id, "written by the driver")
    written = SmallLedgers(client, batch, order, options.entry_bytes)
    try:
        ledgers = await written.write(results)
        return await _commit(
            client, ledgers, written.unclosed, order, batch, options, origin, query
        )
    except BaseException:
        await written.discard()
        raise


async def _commit(
    client: LedgerClient,
    ledgers: Sequence[TaskLedger],
    unclosed: Sequence[UnclosedLedger],
    order: SortOrder | None,
    batch: SinkBatch,
    options: WriteOptions,
    origin: str,
    query: SinkQuery | None,
) -> BatchCommit:
    sink_id, batch_id = batch.sink_id, batch.batch_id
    chosen = [each.ledger for each in ledgers]
    # Sorted and unclosed: all that its stream gets, in order, and not readable before the commit.
    unclosed_ids = {each.writer.ledger_id for each in unclosed}
    closed = [each for each in ledgers if each.ledger.ledger_id not in unclosed_ids]
    if (
        order is not None
        and _may_overlap(closed)
        and not await _is_committed(client, sink_id, batch_id)
    ):
        merged = replace(batch, attempt="merged by the driver")
        chosen = [each for each in chosen if each.ledger_id in unclosed_ids]
        chosen += await in_total_order(client, closed, order, merged, options.entry_bytes)
    new = {(e.ledger.namespace, e.ledger.stream): None for e in ledgers if e.is_new}
    await _make_streams(client, list(new))
    done = await commit_batch(
        client, chosen, sink_id=sink_id, batch_id=batch_id, origin=origin, query=query,
        unclosed=unclosed, memory=_memory_of(client, sink_id),
    )  # fmt: skip
    kept_ids = set() if done.is_repeat else {ledger.ledger_id for ledger in chosen}
    useless = {each.ledger.ledger_id: each.ledger for each in ledgers}
    useless |= {ledger.ledger_id: ledger for ledger in chosen}
    left = [ledger for ledger in useless.values() if ledger.ledger_id not in kept_ids]
    if left:
        try:
            await discard_ledgers(client, left, sink_id=sink_id, batch_id=batch_id)
        except LedgerError as error:
            _log.info("sink=%s batch=%s: left to the janitor: %s", sink_id, batch_id, error)
    return done


def _may_overlap(ledgers: Sequence[TaskLedger]) -> bool:
    """Whether a stream has more than one ledger: a single one is sorted."""
    return len(ledgers) > len({(each.ledger.namespace, each.ledger.stream) for each in ledgers})


def _memory_of(client: LedgerClient, sink_id: str | None) -> SinkMemory | None:
    if sink_id is None:
        return None
    memories = _memories.setdefault(client, {})
    memory = memories.pop(sink_id, None) or SinkMemory()
    if len(memories) >= _MEMORIES_MAX:
        del memories[next(iter(memories))]  # the one that was not used for the longest time
    memories[sink_id] = memory
    return memory


async def _is_committed(client: LedgerClient, sink_id: str | None, batch_id: int | None) -> bool:
    if sink_id is None:
        return False
    return await is_committed(client, (), sink_id=sink_id, batch_id=batch_id)


async def discard_task_ledgers(
    client: LedgerClient,
    ledgers: Sequence[TaskLedger],
    *,
    sink_id: str | None,
    batch_id: int | None,
) -> int:
    """Deletes the ledgers that are in no stream; returns their number.

    Raises MetadataUnavailable.
    """
    return await discard_ledgers(
        client, [each.ledger for each in ledgers], sink_id=sink_id, batch_id=batch_id
    )
