"""Namespace: the door to streams. Creates, lists, deletes them; gives writers and readers.

Keeps no state but its addresses: any number of processes may use the same namespace.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

from ledger.client import LedgerClient
from ledger.errors import InvalidArgument, MetadataConflict
from ledger.options import ClientOptions
from stream import reclaim
from stream.core.metadata import SegmentEnd, StreamMetadata
from stream.core.names import check_name
from stream.core.ownership import Succession
from stream.core.policy import NamespaceMetadata
from stream.core.position import EARLIEST, Position, Start
from stream.errors import NamespaceExists, NoSuchStream, StreamExists
from stream.open_segment import WriterOptions
from stream.reader import StreamReader
from stream.seek import measure, sequence_at
from stream.store import UPDATE_TRIES_MAX, StreamStore
from stream.succession import StreamLedgers
from stream.writer import StreamWriter, open_writer

_SETTINGS = frozenset(field.name for field in fields(NamespaceMetadata)) - {"name", "created_ms"}


def _check_settings(settings: dict[str, Any]) -> None:
    if unknown := sorted(settings.keys() - _SETTINGS):
        raise InvalidArgument(
            f"no namespace setting {', '.join(unknown)}; there are: {', '.join(sorted(_SETTINGS))}"
        )


async def create_namespace(client: LedgerClient, name: str, **settings: Any) -> NamespaceMetadata:
    """Makes a namespace; `settings` are fields of NamespaceMetadata.

    Raises NamespaceExists, InvalidArgument.
    """
    _check_settings(settings)
    namespace = NamespaceMetadata(name=name, created_ms=client.now_ms(), **settings)
    await StreamStore(client.store).create_namespace(namespace)
    return namespace


async def list_namespaces(client: LedgerClient) -> list[str]:
    """Names, sorted."""
    return await StreamStore(client.store).list_namespaces()


async def delete_namespace(client: LedgerClient, name: str) -> None:
    """Raises NoSuchNamespace; NamespaceNotEmpty while it has streams."""
    await StreamStore(client.store).delete_namespace(name)


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


class Namespace:
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
        self.writer_options = writer_options or WriterOptions()

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

    async def ensure(self, **settings: Any) -> bool:
        """Makes the namespace if it does not exist; True if it was made."""
        try:
            await create_namespace(self.client, self.name, **settings)
        except NamespaceExists:
            return False
        return True

    # Policy

    async def policy(self) -> NamespaceMetadata:
        """How streams are written and kept. Raises NoSuchNamespace."""
        namespace, _ = await self.store.read_namespace(self.name)
        return namespace

    async def set_policy(self, **settings: Any) -> NamespaceMetadata:
        """Changes some settings; they apply from the next segment of each writer on.

        Raises NoSuchNamespace, InvalidArgument (nothing is changed then).
        """
        _check_settings(settings)
        for _ in range(UPDATE_TRIES_MAX):
            present, version = await self.store.read_namespace(self.name)
            wanted = replace(present, **settings)
            try:
                await self.store.put_namespace(wanted, version)
            except MetadataConflict:
                continue
            return wanted
        raise MetadataConflict(f"namespace {self.name!r}: others kept changing it")

    # Streams

    async def create_stream(self, stream: str) -> StreamMetadata:
        """Makes an empty stream. Raises StreamExists, NoSuchNamespace, InvalidArgument."""
        metadata = StreamMetadata(name=check_name(stream), created_ms=self.client.now_ms())
        try:
            await self.store.create_stream(self.name, metadata)
        except StreamExists:
            present, version = await self.store.read_stream(self.name, stream)
            if not present.is_deleted:
                raise
            await reclaim.purge_stream(self.client, self.store, self.name, present, version)
            await self.store.create_stream(self.name, metadata)
        return metadata

    async def ensure_stream(self, stream: str) -> bool:
        """Makes the stream if it does not exist; True if it was made."""
        try:
            await self.create_stream(stream)
        except StreamExists:
            return False
        return True

    async def list_streams(self) -> list[str]:
        """Names, sorted; one that is being deleted may still be among them.

        Raises NoSuchNamespace.
        """
        await self.policy()
        return await self.store.list_streams(self.name)

    async def delete_stream(self, stream: str) -> None:
        """Removes a stream with all its data; its writer can confirm nothing more.

        Raises NoSuchStream. If stopped in the middle, the stream is gone for everybody, and the
        janitor removes what is left.
        """
        await reclaim.delete_stream(self.client, self.store, self.name, stream)

    async def stream_metadata(self, stream: str) -> StreamMetadata:
        """Segments, epoch, truncation point. Raises NoSuchStream."""
        metadata, _ = await self.store.read_stream(self.name, stream)
        if metadata.is_deleted:
            raise NoSuchStream(f"stream {stream!r} in namespace {self.name!r} was deleted")
        return metadata

    async def info(self, stream: str) -> StreamInfo:
        """Where the stream begins and ends now, asked of metadata and bookies."""
        metadata = await self.stream_metadata(stream)
        first = metadata.first_available
        end, next_sequence = await measure(self.client, metadata)
        return StreamInfo(
            name=stream,
            epoch=metadata.epoch,
            created_ms=metadata.created_ms,
            segments=len(metadata.segments),
            sealed_bytes=sum(segment.nbytes for segment in metadata.segments),
            has_open_segment=metadata.open_segment is not None,
            first_position=first,
            end_position=end,
            first_sequence=min(await sequence_at(self.client, metadata, first), next_sequence),
            next_sequence=next_sequence,
        )

    async def truncate(self, stream: str, position: Position) -> StreamMetadata:
        """Records before `position` are gone for readers; whole segments are deleted.

        Moves forward only. Raises InvalidArgument for a position behind the end of the stream,
        NoSuchStream.
        """
        await self.store.update_stream(self.name, stream, lambda s: s.truncated(position))
        await reclaim.reclaim_stream(self.client, self.store, self.name, stream)
        return await self.stream_metadata(stream)

    # Writing and reading

    @asynccontextmanager
    async def writer(
        self, stream: str, *, create: bool = False, options: WriterOptions | None = None
    ) -> AsyncIterator[StreamWriter]:
        """Takes the stream over; a writer elsewhere can append nothing more.

        With `create` the stream is made if it does not exist. The end of the block seals the
        segment. Raises NoSuchStream, NotEnoughBookies, RecoveryIncomplete.
        """
        if create:
            await self.ensure_stream(stream)
        ledgers = self._ledgers(stream)
        async with open_writer(ledgers, options or self.writer_options) as writer:
            yield writer

    def reader(
        self, stream: str, *, start: Start = EARLIEST
    ) -> AbstractAsyncContextManager[StreamReader]:
        """Reads from `start`: EARLIEST, LATEST, a Position, FromSequence or FromTime.

        Entering raises NoSuchStream, Truncated.
        """
        check_name(stream)
        return StreamReader(self.client, self.store, self.name, stream, start)

    async def commit_segments(
        self, stream: str, sink_id: str, batch_id: int, ledger_ids: Sequence[int]
    ) -> StreamMetadata:
        """Makes closed ledgers of stream entries segments of the stream, in this order.

        Once per (sink, batch): the batch committed last is committed again without effect.
        The ledgers' entries must count sequences from the begin of their segment. Raises
        CommitOutOfOrder for an older batch, StreamBusy while a writer has an open segment.
        """
        ledgers = self._ledgers(stream)
        present = await self.stream_metadata(stream)
        ends: list[tuple[int, SegmentEnd]] = []
        if present.commits.get(sink_id, -1) != batch_id:
            for ledger_id in ledger_ids:
                ends.append((ledger_id, await ledgers.recovered_end(ledger_id, 0)))
        now_ms = self.client.now_ms()
        return await self.store.update_stream(
            self.name, stream, lambda s: s.committed(sink_id, batch_id, ends, now_ms)
        )

    async def seal_stream(self, stream: str) -> StreamMetadata:
        """Takes the stream over and seals its open segment, without beginning another.

        A writer elsewhere can append nothing more. Raises NoSuchStream, RecoveryIncomplete.
        """
        machine = Succession(stream, self.client.now_ms(), begins_next=False)
        return await self._ledgers(stream).run(machine)

    def _ledgers(self, stream: str) -> StreamLedgers:
        return StreamLedgers(self.client, self.store, self.name, check_name(stream))
