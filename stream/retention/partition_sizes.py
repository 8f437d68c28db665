"""The sizes of partitioned streams, as read once during a sweep, for their retention.

The partitions of a stream are read once for all of them, and so are their pages; their shares are
calculated again once one of them has changed. What cannot be read counts nothing, and so more is
kept; a plan that counted other partitions comes with checks that they have not changed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ledger.client import LedgerClient
from ledger.errors import MetadataCorrupt
from ledger.metastore.base import Check
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.segments import Segment, Span
from stream.core.metadata.streams import StreamMetadata
from stream.core.names import PARTITION_MARK, parse_partition
from stream.core.retention import SizeShare, size_shares
from stream.errors import NoSuchStream
from stream.store.pages import PageLost
from stream.store.partitions import PartitionStore
from stream.store.streams import StreamStore, stream_path

_log = logging.getLogger(__name__)


class Partition(NamedTuple):
    """A partition as it was read, and its version."""

    stream: StreamMetadata
    version: int


@dataclass(slots=True)
class _Shares:
    """The shares of a partitioned stream, as its partitions were when they were calculated, and
    their pages that were needed for that."""

    stream: str
    retention_bytes: int = -1
    streams: Mapping[str, StreamMetadata] = field(default_factory=dict)
    shares: Mapping[str, SizeShare] = field(default_factory=dict)
    loaded: dict[str, tuple[Span, ...]] = field(default_factory=dict)
    lost: dict[str, Partition] = field(default_factory=dict)
    """Partitions that count nothing."""


class PartitionSizes:
    """The partitions of the streams of one namespace. Short-lived: what it has read gets old."""

    def __init__(self, client: LedgerClient, namespace: str) -> None:
        self._namespace = namespace
        self._streams = StreamStore(client.store)
        self._partitioned = PartitionStore(client.store)
        self._read: dict[str, dict[str, Partition | None]] = {}
        """By stream and partition; None: to be read again."""
        self._shares = _Shares("")

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

        The share is None for a plain stream, and without `retention_bytes`. Raises PageLost for a
        page of this stream, MetadataUnavailable.
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
        shares = await self._shares_of(policy.retention_bytes, stream, found)
        checks = [
            Check(stream_path(self._namespace, name), each.version)
            for name, each in found.items()
            if any(_counts(each.stream, segment) for segment in each.stream.segments)
        ]
        return shares[stream.name], checks

    async def _shares_of(
        self, retention_bytes: int, stream: StreamMetadata, found: dict[str, Partition]
    ) -> Mapping[str, SizeShare]:
        """Returns the shares of a partition and of the others, from which it removes those with a
        page that is lost."""
        whole = stream.name.partition(PARTITION_MARK)[0]
        if self._shares.stream != whole:
            self._shares = _Shares(whole)
        kept = self._shares
        for name in [name for name in found if kept.lost.get(name) == found[name]]:
            del found[name]
        while True:
            streams = {name: each.stream for name, each in found.items()} | {stream.name: stream}
            if (retention_bytes, streams) == (kept.retention_bytes, kept.streams):
                return kept.shares
            try:
                kept.shares = await self._streams.pages.resolve_all(
                    list(streams.values()),
                    lambda known: size_shares(known, retention_bytes),
                    loaded=kept.loaded,
                )
            except PageLost as error:
                lost = [name for name in found if found[name].stream.pages.folder == error.folder]
                if not lost:
                    raise
                # Damaged, or another janitor has purged it just now: then the next sweep counts it.
                _log.warning("stream=%s: counts nothing: %s", lost[0], error)
                kept.lost[lost[0]] = found.pop(lost[0])
            else:
                kept.retention_bytes, kept.streams = retention_bytes, streams

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
