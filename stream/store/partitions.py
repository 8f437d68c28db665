"""Partitioned streams in the metadata store: the node, created and changed with its partitions.

A node and the partitions that it counts appear in one change, so that no client sees half a stream.
Every change compares versions. The node is stored where that of a plain stream would be.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TypeVar

import trio

from ledger.errors import (
    LedgerError,
    MetadataConflict,
    NodeExists,
    NoSuchNode,
)
from ledger.metastore.base import ANY_VERSION, Change, Check, Create, MetadataStore, Put
from stream.core.metadata.format import encode_stream
from stream.core.metadata.partitioned import (
    PartitionedStream,
    decode_partitioned,
    encode_partitioned,
)
from stream.core.metadata.streams import StreamMetadata
from stream.core.names import (
    check_name,
    partition_name,
)
from stream.core.trash import begun_at, recreated
from stream.errors import (
    IsPartitioned,
    NoSuchStream,
    NotPartitioned,
    PartitionsFailed,
    StreamExists,
)
from stream.store.streams import (
    UPDATE_TRIES_MAX,
    StreamStore,
    namespace_path,
    no_such_stream,
    stream_path,
    too_many_conflicts,
)


class PartitionStore:
    """Partitioned streams of one metadata store. Stateless, as `StreamStore` is."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._streams = StreamStore(store)

    async def read(self, namespace: str, name: str) -> tuple[PartitionedStream | None, int]:
        """Returns the node and its version, also of a deleted stream. The node is None for a plain
        stream.

        Raises NoSuchStream, MetadataCorrupt.
        """
        try:
            node = await self._store.get(stream_path(namespace, name))
        except NoSuchNode:
            raise no_such_stream(namespace, name) from None
        return decode_partitioned(name, node.data), node.version

    async def read_partitioned(self, namespace: str, name: str) -> PartitionedStream:
        """Returns a partitioned stream. Raises NoSuchStream, NotPartitioned, MetadataCorrupt."""
        present, _ = await self.read(namespace, check_name(name))
        if present is None:
            raise NotPartitioned(
                f"stream {name!r} is not partitioned, and cannot be: create another one with "
                f"partitions (ledgerstream stream create {namespace}/NAME --partitions N)"
            )
        if present.is_deleted:
            raise no_such_stream(namespace, name)
        return present

    async def partition_names(self, namespace: str, name: str) -> list[str]:
        """Returns the streams that hold the records: the partitions, by number, or the stream.

        Raises NoSuchStream, MetadataCorrupt.
        """
        try:
            return (await self.read_partitioned(namespace, name)).partition_names
        except NotPartitioned:
            await self._streams.read_living_stream(namespace, name)
            return [name]

    async def create(self, namespace: str, stream: PartitionedStream) -> None:
        """Creates the node and its partitions, or replaces a deleted stream whose ledgers are in
        the trash or deleted. Raises StreamExists, NoSuchNamespace."""
        for _ in range(UPDATE_TRIES_MAX):
            changes = await self._blank_partitions(namespace, stream, 0)
            path, data = stream_path(namespace, stream.name), encode_partitioned(stream)
            tombstone = await self._tombstone(namespace, stream.name)
            changes.append(
                Create(path, data) if tombstone is None else Put(path, data, tombstone[1])
            )
            try:
                await self._store.transaction(changes)
            except (MetadataConflict, NodeExists, NoSuchNode):
                continue  # another client came first: read again
            return
        raise too_many_conflicts(f"stream {stream.name!r}")

    async def grow(self, namespace: str, name: str, partitions: int) -> PartitionedStream:
        """Adds partitions until there are this many; returns what is stored.

        Raises NoSuchStream, InvalidArgument for fewer than there are. The caller must have checked
        that the stream is partitioned.
        """
        for _ in range(UPDATE_TRIES_MAX):
            present, version = await self.read(namespace, name)
            if present is None or present.is_deleted:
                raise no_such_stream(namespace, name)
            wanted = present.grown(partitions)
            if wanted is present:
                return present
            try:
                changes = await self._blank_partitions(namespace, wanted, present.partitions)
                path = stream_path(namespace, name)
                changes.append(Put(path, encode_partitioned(wanted), version))
                await self._store.transaction(changes)
            except (MetadataConflict, NodeExists, NoSuchNode):
                continue
            return wanted
        raise too_many_conflicts(f"stream {name!r}")

    async def put(self, namespace: str, stream: PartitionedStream, version: int) -> int:
        """Replaces a node that has `version`. Raises MetadataConflict, NoSuchStream."""
        assert version != ANY_VERSION, "metadata is never overwritten blindly"
        path = stream_path(namespace, stream.name)
        try:
            return await self._store.put(path, encode_partitioned(stream), version)
        except NoSuchNode:
            raise no_such_stream(namespace, stream.name) from None

    async def watch(
        self, namespace: str, name: str
    ) -> AsyncGenerator[PartitionedStream | None, None]:
        """Yields the node now and after each change; None when the stream is deleted.

        Close it: `async with aclosing(store.watch(n, s)) as versions`.
        """
        async with aclosing(self._store.watch(stream_path(namespace, name))) as nodes:
            async for node in nodes:
                stream = None if node is None else decode_partitioned(name, node.data)
                yield None if stream is None or stream.is_deleted else stream

    async def _blank_partitions(
        self, namespace: str, stream: PartitionedStream, first: int
    ) -> list[Change]:
        """Returns the changes that create the partitions from `first` on. Raises
        NoSuchNamespace."""
        policy, _ = await self._streams.read_namespace(namespace)
        await self._streams.check_stream_limit(policy, stream.partition_names[first:])
        begin, is_begin = await self._streams.gone.begin()
        changes: list[Change] = [Check(namespace_path(namespace), ANY_VERSION), is_begin]
        folder = f"{namespace_path(namespace)}/streams"
        existing = set(await self._store.children(folder))  # including tombstones
        for number in range(first, stream.partitions):
            name = partition_name(stream.name, number)
            path = stream_path(namespace, name)
            blank = begun_at(StreamMetadata(name=name, created_ms=stream.created_ms), begin)
            tombstone = await self._tombstone(namespace, name) if name in existing else None
            if tombstone is None:
                changes.append(Create(path, encode_stream(blank)))
            else:
                changes.append(
                    Put(path, encode_stream(recreated(blank, tombstone[0])), tombstone[1])
                )
        return changes

    async def _tombstone(self, namespace: str, name: str) -> tuple[StreamMetadata, int] | None:
        """Returns the tombstone of this name and its version, None if there is none.

        Raises StreamExists if the name is in use, or its ledgers were not moved to the trash yet.
        """
        try:
            present, version = await self._streams.read_stream(namespace, name)
            is_free = present.is_deleted and not present.has_ledgers
        except NoSuchStream:
            return None
        except IsPartitioned:
            is_free = False
        if not is_free:
            raise StreamExists(f"stream {name!r} already exists in namespace {namespace!r}")
        return present, version


T = TypeVar("T")

PARTITIONS_CONCURRENT_MAX = 16
"""Partitions that one call works on at the same time."""


async def for_each_partition(
    stream: PartitionedStream,
    work: Callable[[int, str], Awaitable[T]],
    numbers: Sequence[int] | None = None,
) -> dict[int, T]:
    """Calls `work(number, name)` for these partitions (None: all), a bounded number at a time.

    Returns the results by number. The failure of one partition does not stop the others:
    PartitionsFailed then lists the failures.
    """
    chosen = list(range(stream.partitions)) if numbers is None else list(numbers)
    done: dict[int, T] = {}
    errors: dict[int, LedgerError] = {}
    waiting = iter(chosen)

    async def work_through() -> None:
        for number in waiting:
            try:
                done[number] = await work(number, partition_name(stream.name, number))
            except LedgerError as error:
                errors[number] = error

    async with trio.open_nursery() as nursery:
        for _ in range(min(PARTITIONS_CONCURRENT_MAX, len(chosen))):
            nursery.start_soon(work_through)
    if errors:
        raise PartitionsFailed(stream.name, errors, sorted(done))
    return {number: done[number] for number in chosen}
