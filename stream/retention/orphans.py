"""Partitions that no stream counts: what a crash left between their creation and the count.

They are deleted only while the node of the partitioned stream proves that it does not count them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledger.client import LedgerClient
from ledger.errors import MetadataCorrupt
from ledger.metastore.base import Check
from stream.core.names import (
    PARTITIONS_MAX,
    parse_partition,
)
from stream.errors import NoSuchStream
from stream.retention.reclaim import delete_stream
from stream.store.partitions import PartitionStore
from stream.store.streams import (
    StreamStore,
    stream_path,
)


async def orphaned_partitions(
    client: LedgerClient, namespace: str, names: Sequence[str]
) -> list[str]:
    """Returns which of these streams are partitions that no partitioned stream seems to count.

    They are left from a stream whose deletion was interrupted. `delete_orphaned_partition` checks
    again.
    """
    store = PartitionStore(client.store)
    counts: dict[str, int] = {}
    left: list[str] = []
    for name in names:
        partition = parse_partition(name)
        if partition is None:
            continue
        if partition.stream not in counts:
            try:
                node, _ = await store.read(namespace, partition.stream)
            except NoSuchStream:
                node = None
            except MetadataCorrupt:
                counts[partition.stream] = PARTITIONS_MAX  # unknown never means absent
                continue
            counts[partition.stream] = 0 if node is None or node.is_deleted else node.partitions
        if partition.partition >= counts[partition.stream]:
            left.append(name)
    return left


async def delete_orphaned_partition(client: LedgerClient, namespace: str, name: str) -> bool:
    """Deletes a partition if no partitioned stream counts it; returns whether it did.

    A stream that was restored or created again a moment ago counts it.
    """
    partition = parse_partition(name)
    assert partition is not None, f"{name!r} is not a partition"
    store = PartitionStore(client.store)

    async def conditions() -> Sequence[Check]:
        # Without a node none can be created while this partition exists: its name is in use.
        try:
            node, version = await store.read(namespace, partition.stream)
        except NoSuchStream:
            return ()
        if node is None:
            return ()
        if not node.is_deleted and partition.partition < node.partitions:
            raise NoSuchStream(f"partition {name!r} is one of a stream that is in use")
        return (Check(stream_path(namespace, partition.stream), version),)

    try:
        await delete_stream(
            client, StreamStore(client.store), namespace, name, conditions=conditions
        )
    except NoSuchStream:
        return False  # it was deleted before, or must not be deleted
    return True
