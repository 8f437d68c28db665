"""Sinks in the metadata store: what each of them committed last.

Paths: `/ledgerstream/sinks/<sink id>`. A node is changed only together with the streams of a batch
(sinks/commit.py); this module reads, lists, resets and
forgets them.
"""

from __future__ import annotations

from ledger.errors import InvalidArgument, MetadataConflict, NodeExists, NoSuchNode
from ledger.metastore.base import MetadataStore
from stream.core.names import check_name
from stream.core.sinks import (
    SinkMetadata,
    check_batch,
    committed_now,
    decode_sink,
    encode_sink,
)
from stream.store.gone_streams import GoneSegments

ROOT = "/ledgerstream/sinks"


def sink_path(sink_id: str) -> str:
    return f"{ROOT}/{check_name(sink_id, 'sink')}"


async def read_sink_node(store: MetadataStore, sink_id: str) -> tuple[SinkMetadata | None, int]:
    """Returns the sink and the version of its node; None if it never committed. Raises
    MetadataCorrupt."""
    try:
        node = await store.get(sink_path(sink_id))
    except NoSuchNode:
        return None, -1
    return decode_sink(sink_id, node.data), node.version


async def find_sink(store: MetadataStore, sink_id: str) -> SinkMetadata | None:
    """Returns the sink; None if it never committed, or if no sink can have this id. Raises
    MetadataCorrupt."""
    try:
        return (await read_sink_node(store, sink_id))[0]
    except InvalidArgument:
        return None


async def list_sinks(store: MetadataStore) -> list[str]:
    """Returns the ids, sorted."""
    return await store.children(ROOT)


async def read_sink(store: MetadataStore, sink_id: str) -> SinkMetadata:
    """Returns the sink. Raises InvalidArgument if there is none, MetadataCorrupt."""
    sink, _ = await read_sink_node(store, sink_id)
    if sink is None:
        raise _no_sink(sink_id)
    return sink


async def forget_sink(store: MetadataStore, sink_id: str) -> None:
    """Forgets what a sink has committed: a batch that it repeats is appended again.

    Only for a sink that will not return. Raises InvalidArgument if there is none, MetadataConflict
    if it commits at this moment.
    """
    sink, version = await read_sink_node(store, sink_id)
    if sink is None:
        raise _no_sink(sink_id)
    await GoneSegments(store).note()
    try:
        await store.delete(sink_path(sink_id), version)
    except NoSuchNode:
        raise _no_sink(sink_id) from None


async def reset_sink(store: MetadataStore, sink_id: str, batch_id: int, now_ms: int) -> None:
    """Records that the batches of a sink up to this one are settled: the next one follows it, and
    its query owns the sink.

    What earlier batches did is forgotten; no stream changes. Creates the sink if it is missing.
    Raises InvalidArgument; MetadataConflict if the sink commits at this moment.
    """
    check_batch(sink_id, batch_id)
    data = encode_sink(committed_now(sink_id, batch_id, (), now_ms))
    _, version = await read_sink_node(store, sink_id)
    try:
        if version < 0:
            await store.create(sink_path(sink_id), data)
        else:
            await store.put(sink_path(sink_id), data, version)
    except (NodeExists, NoSuchNode):
        raise MetadataConflict(
            f"sink {sink_id!r} was committed or forgotten at this moment: look at it again, with "
            f"`ledgerstream sink show {sink_id}`"
        ) from None


def _no_sink(sink_id: str) -> InvalidArgument:
    return InvalidArgument(f"no sink {sink_id!r} has committed anything (`ledgerstream sink list`)")
