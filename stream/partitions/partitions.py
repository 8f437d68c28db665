"""Partitioned streams as one: made, grown, measured, truncated, deleted.

A partition is a stream like any other, with its own writer, segments and cursors; here is what is
true of all of them together. Every step can be stopped and repeated. Keeps no state.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import trio

from ledger.client import LedgerClient
from ledger.errors import InvalidArgument, LedgerError, MetadataConflict, MetadataCorrupt
from ledger.metastore.base import Check
from stream.core.metadata.partitioned import PartitionedStream
from stream.core.names import (
    PARTITIONS_MAX,
    check_name,
    check_new_name,
    parse_partition,
    partition_name,
)
from stream.core.position import FromTime, Position
from stream.errors import NoSuchStream, NotPartitioned, PartitionsFailed, StreamExists
from stream.retention.reclaim import delete_stream
from stream.store.partitions import PartitionStore
from stream.store.streams import (
    UPDATE_TRIES_MAX,
    StreamStore,
    kept_changing,
    no_stream,
    stream_path,
)

if TYPE_CHECKING:
    from stream.namespace import Namespace, StreamInfo

T = TypeVar("T")

AT_ONCE_MAX = 16
"""Partitions that one call works on at the same time."""


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


async def create(namespace: Namespace, stream: str, partitions: int) -> PartitionedStream:
    """Makes a stream of so many partitions, all of them at once.

    Raises StreamExists, NoSuchNamespace, InvalidArgument.
    """
    wanted = PartitionedStream(
        name=check_new_name(stream), created_ms=namespace.client.now_ms(), partitions=partitions
    )
    store = PartitionStore(namespace.client.store)
    try:
        await store.create(namespace.name, wanted)
    except StreamExists:
        # What is in the way may be a deleted stream whose partitions are still going.
        present, _ = await store.read(namespace.name, stream)
        if present is None or not present.is_deleted:
            raise
        await delete(namespace, stream)
        await store.create(namespace.name, wanted)
    return wanted


async def grow(namespace: Namespace, stream: str, partitions: int) -> PartitionedStream:
    """Adds partitions until there are so many; writers notice and route to them.

    Raises NoSuchStream, NotPartitioned, InvalidArgument for fewer than there are.
    """
    await read(namespace, stream)
    store = PartitionStore(namespace.client.store)
    return await store.grow(namespace.name, stream, partitions)


async def read(namespace: Namespace, stream: str) -> PartitionedStream:
    """The partitioned stream. Raises NoSuchStream, NotPartitioned."""
    store = PartitionStore(namespace.client.store)
    present, _ = await store.read(namespace.name, check_name(stream))
    if present is None:
        raise NotPartitioned(
            f"stream {stream!r} is not partitioned, and cannot be: make another one with "
            f"partitions (ledgerstream stream create {namespace.name}/NAME --partitions N)"
        )
    if present.is_deleted:
        raise no_stream(namespace.name, stream)
    return present


async def names(namespace: Namespace, stream: str) -> list[str]:
    """The streams that hold the records: its partitions by number, or the stream itself.

    Raises NoSuchStream.
    """
    try:
        return (await read(namespace, stream)).partition_names
    except NotPartitioned:
        await namespace.stream_metadata(stream)
        return [stream]


def without_partitions(names: Sequence[str]) -> list[str]:
    """Names of streams as users know them: those of partitions are left out."""
    return [name for name in names if parse_partition(name) is None]


async def measure(namespace: Namespace, stream: str) -> PartitionedInfo:
    """Where each partition begins and ends now. Raises NoSuchStream, NotPartitioned."""
    present = await read(namespace, stream)
    facts = await for_each(present, lambda number, name: namespace.info(name))
    return PartitionedInfo(stream, present.created_ms, tuple(facts.values()))


async def truncate(
    namespace: Namespace, stream: str, to: FromTime | Mapping[int, Position]
) -> dict[int, Position]:
    """Drops what was appended before a time, or what is before a position in some partitions.

    Returns where each of these partitions begins. Raises NoSuchStream, NotPartitioned,
    InvalidArgument (an impossible partition: nothing is done), PartitionsFailed.
    """
    present = await read(namespace, stream)
    if not isinstance(to, FromTime) and (
        missing := [number for number in to if not 0 <= number < present.partitions]
    ):
        raise InvalidArgument(
            f"stream {stream!r} has partitions 0 to {present.partitions - 1}, not {missing}"
        )

    async def truncate_one(number: int, name: str) -> Position:
        if isinstance(to, FromTime):
            async with namespace.reader(name, start=to) as reader:
                position = reader.position
        else:
            position = to[number]
        return (await namespace.truncate(name, position)).first_available

    numbers = None if isinstance(to, FromTime) else sorted(to)
    return await for_each(present, truncate_one, numbers)


async def delete(namespace: Namespace, stream: str) -> bool:
    """Deletes a partitioned stream: for everybody at once, then its partitions. False: it is a
    plain one, and nothing was done.

    If it is stopped, calling it again (or the janitor) goes on. Raises NoSuchStream,
    PartitionsFailed.
    """
    store = PartitionStore(namespace.client.store)
    for _ in range(UPDATE_TRIES_MAX):
        present, version = await store.read(namespace.name, stream)
        if present is None:
            return False
        if present.is_deleted:
            break
        present = present.deleted(namespace.client.now_ms())
        try:
            await store.put(namespace.name, present, version)
            version = -1
            break
        except MetadataConflict:
            continue
    else:
        raise kept_changing(f"stream {stream!r}")
    is_ours = version == -1

    async def delete_one(number: int, name: str) -> bool:
        return await delete_uncounted(namespace.client, namespace.name, name)

    deleted = await for_each(present, delete_one)
    if not is_ours and not any(deleted.values()):
        raise no_stream(namespace.name, stream)
    return True


async def uncounted(client: LedgerClient, namespace: str, names: Sequence[str]) -> list[str]:
    """Which of these streams are partitions that no partitioned stream seems to count: what is
    left of one whose deletion was stopped. `delete_uncounted` makes sure."""
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
                counts[partition.stream] = PARTITIONS_MAX  # doubt is never absence
                continue
            counts[partition.stream] = 0 if node is None or node.is_deleted else node.partitions
        if partition.partition >= counts[partition.stream]:
            left.append(name)
    return left


async def delete_uncounted(client: LedgerClient, namespace: str, name: str) -> bool:
    """Deletes a partition if no partitioned stream counts it, also not one that came back or was
    made anew a moment ago. Whether it did."""
    partition = parse_partition(name)
    assert partition is not None, f"{name!r} is no partition"
    store = PartitionStore(client.store)

    async def conditions() -> Sequence[Check]:
        # Without a node none can be made while this partition lives: its name is not free.
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
        return False  # it went before, or is not to go
    return True


async def for_each(
    stream: PartitionedStream,
    work: Callable[[int, str], Awaitable[T]],
    numbers: Sequence[int] | None = None,
) -> dict[int, T]:
    """Calls `work(number, name)` for these partitions (None: all), some at a time.

    Returns what each gave, by number. What fails keeps no other from being done: then
    PartitionsFailed says which.
    """
    chosen = list(range(stream.partitions)) if numbers is None else list(numbers)
    done: dict[int, T] = {}
    errors: dict[int, LedgerError] = {}
    waiting = iter(chosen)

    async def take_turns() -> None:
        for number in waiting:
            try:
                done[number] = await work(number, partition_name(stream.name, number))
            except LedgerError as error:
                errors[number] = error

    async with trio.open_nursery() as nursery:
        for _ in range(min(AT_ONCE_MAX, len(chosen))):
            nursery.start_soon(take_turns)
    if errors:
        raise PartitionsFailed(stream.name, errors, sorted(done))
    return {number: done[number] for number in chosen}
