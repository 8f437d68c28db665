"""Namespace: the door to streams. Creates, lists, deletes them; gives writers and readers.

Keeps no state but its addresses: any number of processes may use the same namespace.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Unpack, overload

from ledger.client import LedgerClient
from ledger.options import ClientOptions
from stream.core.metadata.partitioned import PartitionedStream
from stream.core.metadata.streams import StreamMetadata
from stream.core.names import check_name, check_new_name
from stream.core.position import Position
from stream.core.sinks import SinkLedger
from stream.core.takeover import Succession
from stream.errors import NamespaceExists, StreamExists
from stream.namespace_consuming import NamespaceConsuming
from stream.namespace_keeping import NamespaceKeeping
from stream.namespace_partitions import NamespacePartitions
from stream.partitions import partitions as partitioning
from stream.reading.seek import measure, sequence_at
from stream.reading.shared_tail import SharedTails
from stream.retention import reclaim
from stream.retention.policies import NamespaceSettings as NamespaceSettings
from stream.retention.policies import create_namespace as create_namespace
from stream.retention.policies import delete_namespace as delete_namespace
from stream.retention.policies import list_namespaces as list_namespaces
from stream.sinks.sinks import commit_batch, is_committed
from stream.store.streams import StreamStore
from stream.takeover import StreamLedgers
from stream.writing.open_segment import WriterOptions
from stream.writing.policy_watch import PolicyWatch
from stream.writing.writer import StreamWriter, open_writer


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream as it is now. Records first_sequence..next_sequence-1 can be read."""

    name: str
    epoch: int
    created_ms: int
    segments: int
    sealed_bytes: int
    has_open_segment: bool
    first_position: Position
    end_position: Position
    first_sequence: int
    next_sequence: int

    @property
    def records(self) -> int:
        return self.next_sequence - self.first_sequence


class Namespace(NamespaceConsuming, NamespacePartitions, NamespaceKeeping):
    """The streams of one namespace, over a client that the caller keeps open.

    Args:
        client: of the cluster that holds the ledgers.
        name: of the namespace, which must exist (see `create_namespace`).
        writer_options: bounds of the writers made here.
    """

    def __init__(
        self, client: LedgerClient, name: str, *, writer_options: WriterOptions | None = None
    ) -> None:
        self.client = client
        self.name = check_name(name, "namespace")
        self.store = StreamStore(client.store)
        self.tails = SharedTails(client)
        self.writer_options = writer_options or WriterOptions()
        self._policy_watch = PolicyWatch(client, self.name)

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        cluster: str,
        name: str,
        *,
        create: bool = False,
        options: ClientOptions | None = None,
        writer_options: WriterOptions | None = None,
    ) -> AsyncIterator[Namespace]:
        """A namespace of the cluster at this URI, e.g. "sqlite:///var/lib/cluster.db".

        With `create` it is made if it does not exist. Raises InvalidArgument for an address or
        name nobody can serve, MetadataUnavailable.
        """
        async with LedgerClient.connect(cluster, options=options) as client:
            namespace = cls(client, name, writer_options=writer_options)
            if create:
                await namespace.ensure()
            yield namespace

    async def ensure(self, **settings: Unpack[NamespaceSettings]) -> bool:
        """Makes the namespace if it does not exist; True if it was made.

        Settings are for the new one only. Raises InvalidArgument, MetadataUnavailable.
        """
        try:
            await create_namespace(self.client, self.name, **settings)
        except NamespaceExists:
            return False
        return True

    # Streams

    @overload
    async def create_stream(self, stream: str) -> StreamMetadata: ...
    @overload
    async def create_stream(self, stream: str, *, partitions: int) -> PartitionedStream: ...
    async def create_stream(
        self, stream: str, *, partitions: int | None = None
    ) -> StreamMetadata | PartitionedStream:
        """Makes an empty stream; with `partitions` a partitioned one, even if it is only 1.

        A deleted stream of the name stays in the trash. Raises StreamExists, NoSuchNamespace,
        TooManyStreams, InvalidArgument.
        """
        if partitions is not None:
            return await partitioning.create(self, stream, partitions)
        metadata = StreamMetadata(name=check_new_name(stream), created_ms=self.client.now_ms())
        return await self.store.create_stream(self.name, metadata)

    async def ensure_stream(self, stream: str, *, partitions: int | None = None) -> bool:
        """Makes the stream if it does not exist; True if it was made."""
        try:
            if partitions is None:
                await self.create_stream(stream)
            else:
                await self.create_stream(stream, partitions=partitions)
        except StreamExists:
            return False
        return True

    async def list_streams(self) -> list[str]:
        """Names, sorted; without deleted ones. Raises NoSuchNamespace."""
        await self.policy()
        return partitioning.without_partitions(await self.store.list_streams(self.name))

    async def delete_stream(self, stream: str) -> None:
        """Puts a stream into the trash; its writer can confirm nothing more.

        `undelete_stream` brings it back until the namespace's `trash_ms` have passed; then (with
        0: now) the data is deleted. Raises NoSuchStream. If stopped in the middle, the stream is
        gone for everybody, and the janitor does the rest.
        """
        if not await partitioning.delete(self, check_new_name(stream)):
            await reclaim.delete_stream(self.client, self.store, self.name, stream)

    async def info(self, stream: str) -> StreamInfo:
        """Where the stream begins and ends now, asked of metadata and bookies."""
        metadata = await self.stream_metadata(stream)
        first = metadata.first_available
        end, next_sequence = await measure(self.client, metadata)
        return StreamInfo(
            name=stream,
            epoch=metadata.epoch,
            created_ms=metadata.created_ms,
            segments=len(metadata.live()),
            sealed_bytes=sum(segment.nbytes for segment in metadata.live()),
            has_open_segment=metadata.open_segment is not None,
            first_position=first,
            end_position=end,
            first_sequence=min(await sequence_at(self.client, metadata, first), next_sequence),
            next_sequence=next_sequence,
        )

    # Writing and reading

    @asynccontextmanager
    async def writer(
        self,
        stream: str,
        *,
        create: bool = False,
        options: WriterOptions | None = None,
        if_epoch: int | None = None,
        hand_over_s: float | None = None,
    ) -> AsyncIterator[StreamWriter]:
        """Takes the stream over; a writer elsewhere can append nothing more.

        With `create` the stream is made if it does not exist. With `if_epoch` it is taken over
        only if it is at that epoch still (as in `StreamInfo.epoch`). With `hand_over_s` a writer
        elsewhere is asked first: it makes durable what it has taken and seals the stream, so that
        nothing becomes unknown; after so many seconds the stream is taken over all the same. The
        end of the block seals the segment. Raises NoSuchStream, EpochMismatch, NotEnoughBookies,
        RecoveryIncomplete.
        """
        if create:
            await self.ensure_stream(stream)
        ledgers = self._ledgers(stream)
        async with open_writer(
            ledgers, options or self.writer_options, self._policy_watch,
            if_epoch=if_epoch, hand_over_s=hand_over_s,
        ) as writer:  # fmt: skip
            yield writer

    async def forget_producer(self, stream: str, producer: str) -> StreamMetadata:
        """Makes room for another idempotent producer; `StreamMetadata.producers` lists them.

        Only for one that will not come back: should it, its numbers begin again at 0, and what it
        repeats is appended again. Raises NoSuchStream, MetadataUnavailable.
        """
        return await self.store.update_stream(
            self.name, stream, lambda present: present.without_producer(producer)
        )

    async def commit_segments(
        self, stream: str, sink_id: str, batch_id: int, ledger_ids: Sequence[int]
    ) -> StreamMetadata:
        """Makes closed ledgers of stream entries segments of the stream, in this order.

        Once per (sink, batch), whatever the streams: the batch the sink committed last is committed
        again without effect. The ledgers' entries must count sequences from the begin of their
        segment. A writer at work on the stream goes on behind them by itself. Raises
        CommitOutOfOrder for an older batch.
        """
        ends: list[SinkLedger] = []
        if not await is_committed(self.client, (), sink_id=sink_id, batch_id=batch_id):
            ledgers = self._ledgers(stream)
            for ledger_id in ledger_ids:
                end = await ledgers.recovered_end(ledger_id, 0)
                ends.append(SinkLedger(self.name, stream, ledger_id, end))
        await commit_batch(self.client, ends, sink_id=sink_id, batch_id=batch_id)
        return await self.stream_metadata(stream)

    async def seal_stream(self, stream: str) -> StreamMetadata:
        """Takes the stream over and seals its open segment, without beginning another.

        A writer elsewhere can append nothing more. Raises NoSuchStream, RecoveryIncomplete.
        """
        machine = Succession(stream, self.client.now_ms(), begins_next=False)
        return await self._ledgers(stream).run(machine)

    def _ledgers(self, stream: str) -> StreamLedgers:
        return StreamLedgers(self.client, self.store, self.name, check_name(stream))
