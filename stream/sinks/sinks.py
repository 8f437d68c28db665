"""Sinks: commits whole batches of closed ledgers to streams, exactly once.

One transaction changes the node of the sink and all streams of a batch, and checks that every
ledger still exists. An unknown outcome is looked up, never guessed: after any failure the same
call, or `discard_ledgers`, may be made again. An active writer of a stream continues by itself
behind the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ledger.client import LedgerClient
from ledger.errors import MetadataConflict, NoSuchLedger, NoSuchNode
from ledger.metastore.base import Check, Delete
from ledger.runtime.concurrency import map_bounded
from stream.core.metadata.streams import StreamMetadata
from stream.core.sink_owner import SinkQuery as SinkQuery
from stream.core.sinks import SinkLedger as SinkLedger
from stream.core.sinks import SinkTag, by_stream, check_batch
from stream.errors import NoSuchStream
from stream.sinks.commit import BatchCommit as BatchCommit
from stream.sinks.commit import BatchCommitter
from stream.sinks.prepared import SinkMemory as SinkMemory
from stream.sinks.prepared import UnclosedLedger as UnclosedLedger
from stream.store.sinks import read_sink_node
from stream.store.streams import UPDATE_TRIES_MAX, StreamStore, stream_path
from stream.takeover import APPLICATION_TAG, SINK_TAG, STREAM_TAG


def ledger_tags(
    namespace: str,
    stream: str,
    *,
    sink_id: str | None = None,
    batch_id: int | None = None,
    attempt: str = "",
) -> dict[str, bytes]:
    """Returns custom metadata for a ledger that a task makes for a stream: janitors use it to find
    ledgers that no batch used. `attempt` names the task, for people."""
    check_batch(sink_id, batch_id)
    return {
        APPLICATION_TAG: b"ledgerstream",
        STREAM_TAG: f"{namespace}/{stream}".encode(),
        SINK_TAG: SinkTag(sink_id, batch_id, attempt).encode(),
    }


async def commit_batch(
    client: LedgerClient,
    ledgers: Sequence[SinkLedger],
    *,
    sink_id: str | None = None,
    batch_id: int | None = None,
    origin: str = "",
    query: SinkQuery | None = None,
    unclosed: Sequence[UnclosedLedger] = (),
    memory: SinkMemory | None = None,
) -> BatchCommit:
    """Makes closed ledgers segments of their streams, all of them or none, once.

    The ledgers of a stream keep their order; those without records are left out. Committing the
    sink's last batch again has no effect, whatever ledgers are named; without a sink this holds for
    the same ledgers. An active writer of a stream continues behind the batch. Batches must be
    committed one after the other. `origin` identifies what numbers the batches, a query for
    instance.

    With `query` the sink belongs to that query from then on: batches of others are refused. If its
    batches are consecutive, they are refused, too, behind a number that the sink does not know, and
    for a stream that was created again; a run of it repeats only the batch that it begins with.

    `unclosed` are ledgers among these that this process has written and not closed: the
    transaction closes them. With the `memory` of this sink, the same object in each call, what the
    last commit left is not read again.

    Raises CommitOutOfOrder for a batch before the last one, or with its number but of another
    origin, and for what `query` refuses; InvalidArgument for a ledger that is open, is not as its
    task reported, or is in the stream already, and if the metadata of a stream, or of all together,
    is full; NoSuchStream, NoSuchLedger; MetadataUnavailable if the store does not report what it
    did: try again, or call `is_committed`.
    """
    check_batch(sink_id, batch_id)
    return await BatchCommitter(
        client, ledgers, sink_id, batch_id, origin, query, unclosed, memory
    ).run()


async def is_committed(
    client: LedgerClient,
    ledgers: Sequence[SinkLedger],
    *,
    sink_id: str | None = None,
    batch_id: int | None = None,
) -> bool:
    """Whether this batch is committed: with a sink, this one or a later one; otherwise these
    ledgers.

    A commit whose outcome is not known may still be executed after the answer. Raises what leaves
    it unknown: MetadataUnavailable; NoSuchStream and MetadataConflict for ledgers of no sink whose
    stream was deleted, or that has only some of them.
    """
    check_batch(sink_id, batch_id)
    if sink_id is not None and batch_id is not None:
        sink, _ = await read_sink_node(client.store, sink_id)
        return sink is not None and sink.is_committed(batch_id)
    streams = StreamStore(client.store)
    named: list[bool] = []
    for (namespace, name), sources in by_stream(ledgers).items():
        stream = await streams.read_living_stream(namespace, name)
        ids = [ledger.ledger_id for ledger in sources]
        named += await streams.pages.resolve(stream, partial(_named, ids=ids))
    if any(named) and not all(named):
        raise MetadataConflict(
            f"{sum(named)} of {len(named)} ledgers are in their streams: others were purged"
        )
    return bool(named) and all(named)


def _named(stream: StreamMetadata, ids: Sequence[int]) -> list[bool]:
    return [stream.names(ledger_id) for ledger_id in ids]


async def discard_ledgers(
    client: LedgerClient,
    ledgers: Sequence[SinkLedger],
    *,
    sink_id: str | None = None,
    batch_id: int | None = None,
) -> int:
    """Deletes those of these ledgers that no stream has; returns how many.

    It is safe after a commit that failed or whose outcome is not known: a ledger is deleted only
    while its stream is as it was read without it, and a late commit then finds it deleted. What
    cannot be determined now is left to the janitor. Raises MetadataUnavailable.
    """
    check_batch(sink_id, batch_id)
    count = 0

    async def discard(ledger: SinkLedger) -> None:
        nonlocal count
        count += await _discard(client, ledger)

    await map_bounded(ledgers, discard)
    return count


async def _discard(client: LedgerClient, ledger: SinkLedger) -> bool:
    streams = StreamStore(client.store)
    path = await client.ledgers.path(ledger.ledger_id)
    try:
        metadata = await client.ledger_metadata(ledger.ledger_id)
        for _ in range(UPDATE_TRIES_MAX):
            stream, version = await streams.read_stream(ledger.namespace, ledger.stream)
            if stream.is_deleted or all(
                await streams.pages.resolve(stream, partial(_named, ids=[ledger.ledger_id]))
            ):
                return False
            # An earlier stream may have it, in the trash or by another name; clocks may differ.
            trash = await streams.list_trash(ledger.namespace)
            may_be_in_trash = any(name == ledger.stream for name, _ in trash)
            if may_be_in_trash or metadata.created_ms < stream.created_ms:
                return False
            is_same = Check(stream_path(ledger.namespace, ledger.stream), version)
            try:
                await client.store.transaction([is_same, Delete(path)])
            except MetadataConflict:
                continue
            return True
    except (NoSuchLedger, NoSuchStream, NoSuchNode):
        pass
    return False
