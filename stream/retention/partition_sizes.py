"""The sizes of partitioned streams, as read once during a sweep, for their retention.

The partitions of a stream are read once for all of them. What cannot be read counts nothing, and so
more is kept; a plan that counted other partitions comes with checks that they have not changed.
"""

from __future__ import annotations

from typing import NamedTuple

from ledger.client import LedgerClient
from ledger.errors import MetadataCorrupt
from ledger.metastore.base import Check
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.segments import Segment
from stream.core.metadata.streams import StreamMetadata
from stream.core.names import parse_partition
from stream.core.retention import SizeShare, size_shares
from stream.errors import NoSuchStream
from stream.store.partitions import PartitionStore
from stream.store.streams import StreamStore, stream_path


class Partition(NamedTuple):
    """A partition as it was read, and its version."""

    stream: StreamMetadata
    version: int


class PartitionSizes:
    """The partitions of the streams of one namespace. Short-lived: what it has read gets old."""

    def __init__(self, client: LedgerClient, namespace: str) -> None:
        self._namespace = namespace
        self._streams = StreamStore(client.store)
        self._partitioned = PartitionStore(client.store)
        self._read: dict[str, dict[str, Partition | None]] = {}
        """By stream and partition; None: to be read again."""

    def forget(self, name: str) -> None:
        """Forgets this partition, which has changed."""
        if (partition := parse_partition(name)) is not None:
            read = self._read.get(partition.stream, {})
            if name in read:
                read[name] = None

    def forget_all(self, name: str) -> None:
        """Forgets all partitions of its stream, because one of them has changed."""
        if (partition := parse_partition(name)) is not None:
            self._read.pop(partition.stream, None)

    async def share(
        self, policy: NamespaceMetadata, stream: StreamMetadata
    ) -> tuple[SizeShare | None, list[Check]]:
        """Returns what the size of the whole stream says about this partition, and checks of the
        others as they were read.

        The share is None for a plain stream, and without `retention_bytes`. Raises
        MetadataUnavailable.
        """
        partition = parse_partition(stream.name)
        if partition is None or policy.retention_bytes is None:
            return None, []
        read = self._read.get(partition.stream)
        if read is None:
            read = self._read[partition.stream] = await self._names(partition.stream)
        found: dict[str, Partition] = {}
        for name, each in read.items():
            if name != stream.name:
                each = read[name] = each or await self._read_one(name)
                if each is not None:
                    found[name] = each
        retention_bytes = policy.retention_bytes
        shares = await self._streams.pages.resolve_all(
            [stream, *(each.stream for each in found.values())],
            lambda known: size_shares(known, retention_bytes),
        )
        checks = [
            Check(stream_path(self._namespace, name), each.version)
            for name, each in found.items()
            if any(_counts(each.stream, segment) for segment in each.stream.segments)
        ]
        return shares[stream.name], checks

    async def _names(self, name: str) -> dict[str, Partition | None]:
        try:
            whole, _ = await self._partitioned.read(self._namespace, name)
        except (NoSuchStream, MetadataCorrupt):
            return {}
        if whole is None or whole.is_deleted:
            return {}
        return dict.fromkeys(whole.partition_names)

    async def _read_one(self, name: str) -> Partition | None:
        try:
            stream, version = await self._streams.read_stream(self._namespace, name)
        except (NoSuchStream, MetadataCorrupt):
            return None
        return None if stream.is_deleted else Partition(stream, version)


def _counts(stream: StreamMetadata, segment: Segment) -> bool:
    return not segment.is_open and stream.is_live(segment)
