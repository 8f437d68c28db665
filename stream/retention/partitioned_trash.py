"""Restores partitioned streams from the trash: first the node, then each partition.

The order matters: partitions that no node counts are taken for the rest of an interrupted deletion.
A call that was interrupted continues when it is made again.
"""

from __future__ import annotations

from ledger.client import LedgerClient
from ledger.errors import InvalidArgument, MetadataConflict
from stream.core.metadata.partitioned import PartitionedStream
from stream.errors import NoSuchStream, NotInTrash, StreamExists
from stream.retention.trash import Trash
from stream.store.partitions import PartitionStore, for_each_partition
from stream.store.streams import UPDATE_TRIES_MAX, StreamStore, too_many_conflicts


async def undelete_partitioned(
    client: LedgerClient, namespace: str, stream: str, as_name: str | None
) -> bool:
    """Restores a partitioned stream with all its partitions. Returns False if it is a plain one.

    Raises StreamExists if it was not deleted, NotInTrash if it was purged, InvalidArgument with
    another name, PartitionsFailed.
    """
    node = await _revive(client, namespace, stream, as_name)
    if node is None:
        return False
    trash, streams = Trash(client, namespace), StreamStore(client.store)

    async def undelete_one(number: int, name: str) -> bool:
        try:
            await trash.undelete(name)
        except StreamExists:
            return False  # it is restored already
        except NotInTrash:
            await streams.read_living_stream(namespace, name)
            return False
        return True

    restored = await for_each_partition(node, undelete_one)
    if node.deleted_ms < 0 and not any(restored.values()):
        raise StreamExists(f"stream {stream!r} in namespace {namespace!r} was not deleted")
    return True


async def _revive(
    client: LedgerClient, namespace: str, stream: str, as_name: str | None
) -> PartitionedStream | None:
    """Restores the node and returns it as it was before; None for a plain stream."""
    store = PartitionStore(client.store)
    for _ in range(UPDATE_TRIES_MAX):
        try:
            node, version = await store.read(namespace, stream)
        except NoSuchStream:
            return None
        if node is None:
            return None
        if as_name is not None and as_name != stream:
            trash = await StreamStore(client.store).list_trash(namespace)
            if any(name == stream for name, _ in trash):
                return (
                    None  # a plain stream had the name at another time: the caller means that one
                )
            raise InvalidArgument(
                f"stream {stream!r} is partitioned and is restored under its own name only; its "
                f"partitions can have others (like {stream}#0)"
            )
        if not node.is_deleted:
            return node
        await _check_in_trash(client, namespace, node)
        try:
            await store.put(namespace, node.revived(), version)
        except MetadataConflict:
            continue
        return node
    raise too_many_conflicts(f"stream {stream!r}")


async def _check_in_trash(client: LedgerClient, namespace: str, node: PartitionedStream) -> None:
    """Raises NotInTrash if a partition was purged: half a stream is never restored."""
    trash, streams = Trash(client, namespace), StreamStore(client.store)
    times: dict[str, list[int]] = {}
    for name, deleted_ms in await streams.list_trash(namespace):
        times.setdefault(name, []).append(deleted_ms)
    for name in node.partition_names:
        try:
            await streams.read_living_stream(namespace, name)
        except NoSuchStream:
            if name not in times or (await trash.read(name, max(times[name])))[0].is_purged:
                raise _purged(namespace, name) from None


def _purged(namespace: str, name: str) -> NotInTrash:
    return NotInTrash(f"partition {name!r} in namespace {namespace!r} was purged already")
