"""Partitioned streams as a whole: created, grown, measured, truncated, deleted.

A partition is a stream like any other, with its own writer, segments and cursors; this module
handles all of them together. Every step can be interrupted and repeated. It keeps no state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ledger.errors import InvalidArgument, MetadataConflict, NoSuchEntry, NoSuchLedger
from stream.core.metadata.partitioned import PartitionedStream
from stream.core.metadata.streams import StreamInfo
from stream.core.names import (
    check_new_name,
    parse_partition,
)
from stream.core.position import FromTime, Position
from stream.errors import StreamExists
from stream.reading import seek
from stream.retention.orphans import delete_orphaned_partition
from stream.retention.reclaim import truncate_stream
from stream.scope import NamespaceScope
from stream.store.partitions import PartitionStore, for_each_partition
from stream.store.streams import (
    UPDATE_TRIES_MAX,
    no_such_stream,
    too_many_conflicts,
)


@dataclass(frozen=True, slots=True)
class PartitionedInfo:
    """A partitioned stream as it is now; `partitions` are its partitions, by number."""

    name: str
    created_ms: int
    partitions: tuple[StreamInfo, ...]

    @property
    def records(self) -> int:
        """Records that can be read, in all partitions."""
        return sum(partition.records for partition in self.partitions)

    @property
    def segments(self) -> int:
        return sum(partition.segments for partition in self.partitions)

    @property
    def sealed_bytes(self) -> int:
        """Payload bytes of sealed segments."""
        return sum(partition.sealed_bytes for partition in self.partitions)


async def create(scope: NamespaceScope, stream: str, partitions: int) -> PartitionedStream:
    """Creates a stream of `partitions` partitions, all of them at once.

    Raises StreamExists, NoSuchNamespace, InvalidArgument.
    """
    wanted = PartitionedStream(
        name=check_new_name(stream), created_ms=scope.client.now_ms(), partitions=partitions
    )
    store = PartitionStore(scope.client.store)
    try:
        await store.create(scope.name, wanted)
    except StreamExists:
        # The existing node may be a deleted stream whose partitions are still being deleted.
        present, _ = await store.read(scope.name, stream)
        if present is None or not present.is_deleted:
            raise
        await delete(scope, stream)
        await store.create(scope.name, wanted)
    return wanted


async def grow(scope: NamespaceScope, stream: str, partitions: int) -> PartitionedStream:
    """Adds partitions until there are `partitions`; writers notice and route to them.

    Raises NoSuchStream, NotPartitioned, InvalidArgument for fewer than there are.
    """
    store = PartitionStore(scope.client.store)
    await store.read_partitioned(scope.name, stream)
    return await store.grow(scope.name, stream, partitions)


def without_partitions(names: Sequence[str]) -> list[str]:
    """Returns the names of streams as users know them, without those of partitions."""
    return [name for name in names if parse_partition(name) is None]


async def measure(scope: NamespaceScope, stream: str) -> PartitionedInfo:
    """Returns where each partition begins and ends now. Raises NoSuchStream, NotPartitioned."""
    present = await PartitionStore(scope.client.store).read_partitioned(scope.name, stream)

    async def measure_one(number: int, name: str) -> StreamInfo:
        return await scope.store.consult(scope.name, name, partial(seek.stream_info, scope.client))

    facts = await for_each_partition(present, measure_one)
    return PartitionedInfo(stream, present.created_ms, tuple(facts.values()))


async def truncate(
    scope: NamespaceScope, stream: str, to: FromTime | Mapping[int, Position]
) -> dict[int, Position]:
    """Drops what was appended before a time, or what is before a position in some partitions.

    Returns where each of these partitions begins. Raises NoSuchStream, NotPartitioned,
    InvalidArgument (an impossible partition: nothing is done), PartitionsFailed.
    """
    present = await PartitionStore(scope.client.store).read_partitioned(scope.name, stream)
    if not isinstance(to, FromTime) and (
        missing := [number for number in to if not 0 <= number < present.partitions]
    ):
        raise InvalidArgument(
            f"stream {stream!r} has partitions 0 to {present.partitions - 1}, not {missing}"
        )

    async def truncate_one(number: int, name: str) -> Position:
        position = await _position_at(scope, name, to) if isinstance(to, FromTime) else to[number]
        await truncate_stream(scope.client, scope.store, scope.name, name, position)
        begin = partial(seek.first_available, scope.client)
        return await scope.store.consult(scope.name, name, begin)

    numbers = None if isinstance(to, FromTime) else sorted(to)
    return await for_each_partition(present, truncate_one, numbers)


async def _position_at(scope: NamespaceScope, stream: str, time: FromTime) -> Position:
    """Returns the position of the first record appended at or after this time."""
    find = partial(seek.find, scope.client, start=time)
    try:
        return await scope.store.consult(scope.name, stream, find)
    except (NoSuchLedger, NoSuchEntry):
        # Retention may have deleted the segment between the two reads.
        return await scope.store.consult(scope.name, stream, find)


async def delete(scope: NamespaceScope, stream: str) -> bool:
    """Deletes a partitioned stream: first its node, then its partitions. Returns False, and does
    nothing, for a plain stream.

    If it is interrupted, another call (or the janitor) continues. Raises NoSuchStream,
    PartitionsFailed.
    """
    store = PartitionStore(scope.client.store)
    for _ in range(UPDATE_TRIES_MAX):
        present, version = await store.read(scope.name, stream)
        if present is None:
            return False
        if present.is_deleted:
            break
        present = present.deleted(scope.client.now_ms())
        try:
            await store.put(scope.name, present, version)
            version = -1
            break
        except MetadataConflict:
            continue
    else:
        raise too_many_conflicts(f"stream {stream!r}")
    is_ours = version == -1

    async def delete_one(number: int, name: str) -> bool:
        return await delete_orphaned_partition(scope.client, scope.name, name)

    deleted = await for_each_partition(present, delete_one)
    if not is_ours and not any(deleted.values()):
        raise no_such_stream(scope.name, stream)
    return True
