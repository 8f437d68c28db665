"""The calls of a Namespace for partitioned streams. `Namespace` inherits them; nobody else does.

They only name what does the work: partitions.py and partitioned_writer.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

from stream.core.metadata.partitioned import PartitionedStream
from stream.core.position import FromTime, Position
from stream.partitions import partitions as partitioning
from stream.partitions.partitions import PartitionedInfo
from stream.partitions.writer import PartitionedWriter, open_partitioned_writer
from stream.writing.open_segment import WriterOptions

if TYPE_CHECKING:
    from stream.namespace import Namespace


class NamespacePartitions:
    """Part of `Namespace`."""

    @property
    def _whole(self) -> Namespace:
        return cast("Namespace", self)

    async def grow_stream(self, stream: str, *, partitions: int) -> PartitionedStream:
        """Gives a partitioned stream more partitions; its writers notice within a second or so.

        Of all keys the share of new partitions moves, to new partitions only. Raises
        NoSuchStream, NotPartitioned, InvalidArgument for fewer than there are.
        """
        return await partitioning.grow(self._whole, stream, partitions)

    async def partitions(self, stream: str) -> list[str]:
        """The streams that hold the records: `clicks#0`, `clicks#1`, ... of a partitioned one, by
        number; else the stream itself. Raises NoSuchStream."""
        return await partitioning.names(self._whole, stream)

    async def partitioned_info(self, stream: str) -> PartitionedInfo:
        """Where each partition begins and ends now. Raises NoSuchStream, NotPartitioned."""
        return await partitioning.measure(self._whole, stream)

    async def truncate_partitions(
        self, stream: str, to: FromTime | Mapping[int, Position]
    ) -> dict[int, Position]:
        """Drops what was appended before a time, or what is before positions in partitions.

        Returns where each of these partitions begins now. Raises NoSuchStream, NotPartitioned,
        InvalidArgument (no such partition: nothing was done), PartitionsFailed.
        """
        return await partitioning.truncate(self._whole, stream, to)

    @asynccontextmanager
    async def partitioned_writer(
        self,
        stream: str,
        *,
        own: Sequence[int] | None = None,
        create: int | None = None,
        options: WriterOptions | None = None,
    ) -> AsyncIterator[PartitionedWriter]:
        """Writes to the partitions of a stream, routed by key or by turns.

        Each partition is taken over with its first record; with `own`, these partitions are
        taken over at once and others never. With `create` the stream is made with so many
        partitions if it does not exist. `options` are of all partitions together: what they may
        have unconfirmed is shared out, 256 KiB each at least. The end of the block seals the
        partitions. Raises NoSuchStream, NotPartitioned, InvalidArgument, PartitionsFailed.
        """
        if create is not None:
            await self._whole.ensure_stream(stream, partitions=create)
        options = options or self._whole.writer_options
        async with open_partitioned_writer(self._whole, stream, options, own) as writer:
            yield writer
