"""stream.namespace for asyncio.

Generated from stream/namespace.py by `make faces`. Not to be edited.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Unpack, overload

from ledger.credentials import Credentials
from ledger.options import ClientOptions
from ledger.runtime.opening import Opened, opening
from stream.aio.backward import BackwardBatches
from stream.aio.bridge import Bridge, open_bridge
from stream.aio.client import LedgerClient
from stream.aio.consumer import Consumer
from stream.aio.cursor import Cursor
from stream.aio.merged_reader import MergedReader
from stream.aio.partitioned_writer import PartitionedWriter
from stream.aio.reader import StreamReader
from stream.aio.writer import StreamWriter
from stream.bridge.reading import bridged_merge, bridged_reader
from stream.bridge.writing import bridged_partitioned_writer, bridged_writer
from stream.consuming.cursor import COMMIT_INTERVAL_MS
from stream.consuming.groups import HAND_OVER_S, GroupInfo
from stream.core.entry.records import Record
from stream.core.metadata.cursors import CursorMetadata
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.partitioned import PartitionedStream
from stream.core.metadata.segments import Segment
from stream.core.metadata.streams import StreamInfo, StreamMetadata
from stream.core.position import EARLIEST, FromTime, Position, Start
from stream.core.receipt import Receipt
from stream.core.retention import RetentionPlan
from stream.namespace import Namespace as TrioNamespace
from stream.partitions.partitions import PartitionedInfo
from stream.reading.lag import CursorLag
from stream.reading.merge_options import OrderBy
from stream.reading.reader import OnTruncated
from stream.retention.policies import NamespaceSettings
from stream.retention.trash import TrashEntry
from stream.store.pages import SEGMENTS_LISTED_MAX
from stream.verify import OnProgress, StreamReport
from stream.writing.open_segment import WriterOptions


class Namespace(Opened):
    """The streams of one namespace, over a client that the caller keeps open.

    Args:
        client: of the cluster that holds the ledgers.
        name: of the namespace, which must exist (see `create_namespace`).
        writer_options: bounds of the writers opened here.
    """

    _bridge: Bridge
    _inner: TrioNamespace

    def __init__(
        self, client: LedgerClient, name: str, *, writer_options: WriterOptions | None = None
    ) -> None:
        self._bridge = client._bridge
        self._inner = TrioNamespace(client._inner, name, writer_options=writer_options)

    @classmethod
    def _of(cls, bridge: Bridge, holder: TrioNamespace) -> Namespace:
        made = cls.__new__(cls)
        made._bridge, made._inner = bridge, holder
        return made

    @property
    def name(self) -> str:
        return self._inner.name

    @classmethod
    @opening
    async def connect(
        cls,
        cluster: str,
        name: str,
        *,
        create: bool = False,
        options: ClientOptions | None = None,
        credentials: str | Path | Credentials | None = None,
        writer_options: WriterOptions | None = None,
    ) -> AsyncIterator[Namespace]:
        """Connects to a namespace of the cluster at this URI, e.g. "sqlite:///var/lib/cluster.db".

        With `create` the namespace is created if it does not exist; a cluster never is. Who the
        client is, `credentials` say, as in `LedgerClient.connect`. Raises NoSuchCluster,
        InvalidArgument for an unusable address, name or file, MetadataUnavailable.
        """
        async with (
            open_bridge() as bridge,
            bridge.hold(
                lambda: TrioNamespace.connect(
                    cluster,
                    name,
                    create=create,
                    options=options,
                    credentials=credentials,
                    writer_options=writer_options,
                )
            ) as inner,
        ):
            yield cls._of(bridge, inner)

    @classmethod
    async def open(
        cls,
        cluster: str,
        name: str,
        *,
        create: bool = False,
        options: ClientOptions | None = None,
        credentials: str | Path | Credentials | None = None,
        writer_options: WriterOptions | None = None,
    ) -> Namespace:
        """Opens what `connect` opens, with its arguments and errors: `close` it."""
        return await cls.connect(
            cluster, name, create=create, options=options, credentials=credentials,
            writer_options=writer_options
        ).open()  # fmt: skip

    async def ensure(self, **settings: Unpack[NamespaceSettings]) -> bool:
        """Creates the namespace if it does not exist; returns True if it was created.

        Settings apply only to a new one. Raises InvalidArgument, MetadataUnavailable.
        """
        return await self._bridge.call(lambda: self._inner.ensure(**settings))

    @overload
    async def create_stream(self, stream: str) -> StreamMetadata: ...

    @overload
    async def create_stream(self, stream: str, *, partitions: int) -> PartitionedStream: ...

    async def create_stream(
        self, stream: str, *, partitions: int | None = None
    ) -> StreamMetadata | PartitionedStream:
        """Creates an empty stream; with `partitions` a partitioned one, even if it is only 1.

        A deleted stream of the name stays in the trash. Raises StreamExists, NoSuchNamespace,
        TooManyStreams, InvalidArgument.
        """
        if partitions is None:
            return await self._bridge.call(lambda: self._inner.create_stream(stream))
        return await self._bridge.call(
            lambda: self._inner.create_stream(stream, partitions=partitions)
        )

    async def ensure_stream(self, stream: str, *, partitions: int | None = None) -> bool:
        """Creates the stream if it does not exist; returns True if it was created."""
        return await self._bridge.call(
            lambda: self._inner.ensure_stream(stream, partitions=partitions)
        )

    async def list_streams(self) -> list[str]:
        """Returns the names, sorted, without deleted ones. Raises NoSuchNamespace."""
        return await self._bridge.call(lambda: self._inner.list_streams())

    async def delete_stream(self, stream: str) -> None:
        """Moves a stream into the trash; its writer can confirm nothing more.

        `undelete_stream` restores it until the namespace's `trash_ms` have passed; then (with 0:
        now) the data is deleted. Raises NoSuchStream. If the call is interrupted, no client sees
        the stream any more, and the janitor completes the deletion.
        """
        await self._bridge.call(lambda: self._inner.delete_stream(stream))

    async def info(self, stream: str) -> StreamInfo:
        """Returns where the stream begins and ends now, asked of metadata and bookies."""
        return await self._bridge.call(lambda: self._inner.info(stream))

    @opening
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

        With `create` the stream is created if it does not exist. With `if_epoch` it is taken over
        only if it is still at that epoch (as in `StreamInfo.epoch`). With `hand_over_s` a writer
        elsewhere is asked first: it makes durable what it has accepted and seals the stream, so
        that no outcome becomes unknown; after this many seconds the stream is taken over all the
        same. The end of the block seals the segment. Raises NoSuchStream, EpochMismatch,
        NotEnoughBookies, RecoveryIncomplete.
        """
        bridge = self._bridge
        async with bridge.hold(
            lambda: bridged_writer(
                self._inner.writer(
                    stream,
                    create=create,
                    options=options,
                    if_epoch=if_epoch,
                    hand_over_s=hand_over_s,
                ),
                bridge.post,
                bridge.wake,
                (options or self._inner.writer_options).pending_bytes_max,
            )
        ) as inner:
            yield StreamWriter._of(bridge, inner)

    async def open_writer(
        self,
        stream: str,
        *,
        create: bool = False,
        options: WriterOptions | None = None,
        if_epoch: int | None = None,
        hand_over_s: float | None = None,
    ) -> StreamWriter:
        """Opens what `writer` opens, with its arguments and errors: `close` it."""
        return await self.writer(
            stream, create=create, options=options, if_epoch=if_epoch, hand_over_s=hand_over_s
        ).open()

    async def forget_producer(self, stream: str, producer: str) -> StreamMetadata:
        """Forgets an idempotent producer (of `StreamMetadata.producers`), so that another fits.

        Only for a producer that will not return: if it does, its numbers begin again at 0, and what
        it repeats is appended again. Raises NoSuchStream, MetadataUnavailable.
        """
        return await self._bridge.call(lambda: self._inner.forget_producer(stream, producer))

    async def commit_segments(
        self, stream: str, sink_id: str, batch_id: int, ledger_ids: Sequence[int]
    ) -> StreamMetadata:
        """Makes closed ledgers of stream entries segments of the stream, in this order.

        It does so once per (sink, batch), whatever the streams: committing the sink's last batch
        again has no effect. The ledgers' entries must count sequences from the begin of their
        segment. An active writer continues behind them. Raises CommitOutOfOrder for an older batch.
        """
        return await self._bridge.call(
            lambda: self._inner.commit_segments(stream, sink_id, batch_id, ledger_ids)
        )

    async def seal_stream(self, stream: str) -> StreamMetadata:
        """Takes the stream over and seals its open segment, without beginning another.

        A writer elsewhere can append nothing more. Raises NoSuchStream, RecoveryIncomplete.
        """
        return await self._bridge.call(lambda: self._inner.seal_stream(stream))

    @opening
    async def reader(
        self, stream: str, *, start: Start = EARLIEST, on_truncated: OnTruncated = "error"
    ) -> AsyncIterator[StreamReader]:
        """Reads a stream, or one partition ("clicks#2").

        Args:
            start: EARLIEST, LATEST, a Position, FromSequence, FromTime (when appended),
                FromEventTime, FromCursor or FromEnd.
            on_truncated: what to do when the requested record was truncated, at the start or later:
                "error" raises Truncated, "earliest" continues at the first available record,
                "latest" at the end. The records in between are then skipped; a warning is logged.

        Entering raises NoSuchStream, IsPartitioned, NoSuchCursor, Truncated.
        """
        bridge = self._bridge
        async with bridge.hold(
            lambda: bridged_reader(
                self._inner.reader(stream, start=start, on_truncated=on_truncated),
                bridge.post,
                bridge.wake,
            )
        ) as inner:
            yield StreamReader._of(bridge, inner)

    async def open_reader(
        self, stream: str, *, start: Start = EARLIEST, on_truncated: OnTruncated = "error"
    ) -> StreamReader:
        """Opens what `reader` opens, with its arguments and errors: `aclose` it."""
        return await self.reader(stream, start=start, on_truncated=on_truncated).open()

    async def read_last(self, stream: str, records: int) -> list[Record]:
        """Returns the last `records` records, in the order of the stream; all, if it has fewer.

        It needs memory for these records, and reads little else. Raises NoSuchStream,
        IsPartitioned, InvalidArgument for a negative number, what reading ledgers raises.
        """
        return await self._bridge.call(lambda: self._inner.read_last(stream, records))

    def backward_batches(self, stream: str, *, before: Position | None = None) -> BackwardBatches:
        """Returns batches of records from the end, or from before a position that was read, back to
        where the stream begins. It is an async iterator; use it in `async with` or close it.

        Within a batch records are in the order of the stream. Its calls raise NoSuchStream,
        IsPartitioned, what reading ledgers raises.
        """
        return BackwardBatches._of(
            self._bridge, self._inner.backward_batches(stream, before=before)
        )

    @opening
    async def merged_reader(
        self,
        streams: str | Sequence[str],
        *,
        start: Start | Mapping[str, Start] = EARLIEST,
        order_by: OrderBy = "event_time",
        lateness_ms: int = 0,
        idle_timeout_ms: int | None = 5000,
        on_truncated: OnTruncated = "error",
        follow: bool = True,
        buffer_bytes: int = 64 << 20,
    ) -> AsyncIterator[MergedReader]:
        """Reads several streams as one, in the order of time.

        Args:
            streams: names and patterns ("clicks", "clicks-*"); a partitioned stream stands for its
                partitions. Streams that are created later and match a pattern, and new partitions,
                join; they are read from their begin.
            start: as for `reader`, for each stream; or a mapping of streams to starts, such as
                `MergedReader.positions()` returned (those not in it begin at EARLIEST).
            order_by: "event_time" (a record without one has its append time) or "append_time".
            lateness_ms: how far a record may be behind the newest of its stream and still be put in
                order. Later ones are not dropped: they are returned with `is_late`.
            idle_timeout_ms: a stream that is at its end and has delivered nothing for this long is
                not waited for; None: always waited for.
            on_truncated: as for `reader`.
            follow: wait for more at the end; else iteration ends where the streams do now.
            buffer_bytes: bytes that may be buffered, over all streams. If order within
                `lateness_ms` needs more, records are returned before their turn, and those behind
                them are late.

        Entering raises NoSuchStream for a name that does not exist (a pattern may match nothing),
        InvalidArgument; at most 1000 streams.
        """
        bridge = self._bridge
        async with bridge.hold(
            lambda: bridged_merge(
                self._inner.merged_reader(
                    streams,
                    start=start,
                    order_by=order_by,
                    lateness_ms=lateness_ms,
                    idle_timeout_ms=idle_timeout_ms,
                    on_truncated=on_truncated,
                    follow=follow,
                    buffer_bytes=buffer_bytes,
                ),
                bridge.post,
                bridge.wake,
            )
        ) as inner:
            yield MergedReader._of(bridge, inner)

    async def open_merged_reader(
        self,
        streams: str | Sequence[str],
        *,
        start: Start | Mapping[str, Start] = EARLIEST,
        order_by: OrderBy = "event_time",
        lateness_ms: int = 0,
        idle_timeout_ms: int | None = 5000,
        on_truncated: OnTruncated = "error",
        follow: bool = True,
        buffer_bytes: int = 64 << 20,
    ) -> MergedReader:
        """Opens what `merged_reader` opens, with its arguments and errors: `aclose` it."""
        return await self.merged_reader(
            streams, start=start, order_by=order_by, lateness_ms=lateness_ms,
            idle_timeout_ms=idle_timeout_ms, on_truncated=on_truncated, follow=follow,
            buffer_bytes=buffer_bytes
        ).open()  # fmt: skip

    async def grow_stream(self, stream: str, *, partitions: int) -> PartitionedStream:
        """Gives a partitioned stream more partitions; its writers notice within a second or so.

        Of all keys the share of the new partitions moves, to new partitions only. Raises
        NoSuchStream, NotPartitioned, InvalidArgument for fewer than there are.
        """
        return await self._bridge.call(
            lambda: self._inner.grow_stream(stream, partitions=partitions)
        )

    async def partitions(self, stream: str) -> list[str]:
        """Returns the streams that hold the records: `clicks#0`, `clicks#1`, ... of a partitioned
        one, by number; else the stream itself. Raises NoSuchStream."""
        return await self._bridge.call(lambda: self._inner.partitions(stream))

    async def partitioned_info(self, stream: str) -> PartitionedInfo:
        """Returns where each partition begins and ends now. Raises NoSuchStream, NotPartitioned."""
        return await self._bridge.call(lambda: self._inner.partitioned_info(stream))

    async def truncate_partitions(
        self, stream: str, to: FromTime | Mapping[int, Position]
    ) -> dict[int, Position]:
        """Drops what was appended before a time, or what is before positions in partitions.

        Returns where each of these partitions begins now. Raises NoSuchStream, NotPartitioned,
        InvalidArgument (no such partition: nothing was done), PartitionsFailed.
        """
        return await self._bridge.call(lambda: self._inner.truncate_partitions(stream, to))

    @opening
    async def partitioned_writer(
        self,
        stream: str,
        *,
        own: Sequence[int] | None = None,
        create: int | None = None,
        options: WriterOptions | None = None,
    ) -> AsyncIterator[PartitionedWriter]:
        """Writes to the partitions of a stream, routed by key or in turn.

        Each partition is taken over with its first record; with `own`, these partitions are taken
        over at once and others never. With `create` the stream is created with this many partitions
        if it does not exist. `options` apply to all partitions together: what they may have
        unconfirmed is shared out, at least 256 KiB each. The end of the block seals the partitions.
        Raises NoSuchStream, NotPartitioned, InvalidArgument, PartitionsFailed.
        """
        bridge = self._bridge
        async with bridge.hold(
            lambda: bridged_partitioned_writer(
                self._inner.partitioned_writer(stream, own=own, create=create, options=options),
                bridge.post,
                bridge.wake,
                (options or self._inner.writer_options).pending_bytes_max,
            )
        ) as inner:
            yield PartitionedWriter._of(bridge, inner)

    async def open_partitioned_writer(
        self,
        stream: str,
        *,
        own: Sequence[int] | None = None,
        create: int | None = None,
        options: WriterOptions | None = None,
    ) -> PartitionedWriter:
        """Opens what `partitioned_writer` opens, with its arguments and errors: `close` it."""
        return await self.partitioned_writer(stream, own=own, create=create, options=options).open()

    @opening
    async def cursor(
        self,
        stream: str,
        name: str,
        *,
        start: Start = EARLIEST,
        commit_interval_ms: int = COMMIT_INTERVAL_MS,
    ) -> AsyncIterator[Cursor]:
        """Opens the durable position `name` in a stream or partition; a new one is at `start`.

        What is advanced is stored at most once per `commit_interval_ms`, and at the end of the
        block. Entering raises NoSuchStream, IsPartitioned, InvalidArgument, MetadataUnavailable;
        leaving CursorMoved if another client moved it, MetadataUnavailable.
        """
        bridge = self._bridge
        async with bridge.hold(
            lambda: self._inner.cursor(
                stream, name, start=start, commit_interval_ms=commit_interval_ms
            )
        ) as inner:
            yield Cursor._of(bridge, inner)

    async def open_cursor(
        self,
        stream: str,
        name: str,
        *,
        start: Start = EARLIEST,
        commit_interval_ms: int = COMMIT_INTERVAL_MS,
    ) -> Cursor:
        """Opens what `cursor` opens, with its arguments and errors: `close` it."""
        return await self.cursor(
            stream, name, start=start, commit_interval_ms=commit_interval_ms
        ).open()

    async def cursors(self, stream: str) -> list[CursorMetadata]:
        """Returns the cursors of a stream, sorted by name; also those of consumer groups.

        Raises NoSuchStream, IsPartitioned, MetadataCorrupt.
        """
        return await self._bridge.call(lambda: self._inner.cursors(stream))

    async def cursor_lag(self, stream: str, name: str) -> CursorLag:
        """Returns how far the stored position of a cursor is behind the end of its stream.

        Raises NoSuchStream, IsPartitioned, NoSuchCursor.
        """
        return await self._bridge.call(lambda: self._inner.cursor_lag(stream, name))

    async def set_cursor(self, stream: str, name: str, to: Start) -> CursorMetadata:
        """Moves a cursor forward or back, and creates it if there is none.

        Its user gets CursorMoved at the next commit; a consumer group continues from there. Raises
        NoSuchStream, IsPartitioned, NoSuchCursor, Truncated, MetadataUnavailable (may have moved).
        """
        return await self._bridge.call(lambda: self._inner.set_cursor(stream, name, to))

    async def delete_cursor(self, stream: str, name: str) -> None:
        """Deletes a cursor; its user gets CursorMoved.

        Raises NoSuchStream, IsPartitioned, NoSuchCursor.
        """
        await self._bridge.call(lambda: self._inner.delete_cursor(stream, name))

    @opening
    async def consumer(
        self,
        stream: str,
        group: str,
        *,
        member: str | None = None,
        start: Start = EARLIEST,
        auto_advance: bool = True,
        commit_interval_ms: int = COMMIT_INTERVAL_MS,
        hand_over_s: float = HAND_OVER_S,
        on_truncated: OnTruncated = "error",
    ) -> AsyncIterator[Consumer]:
        """Joins a consumer group: its members share the partitions of a stream.

        The group's position in each partition is the cursor of the group's name there.

        Args:
            stream: a partitioned stream, or a plain one, which counts as one partition.
            group: its name; a group begins with its first member.
            member: name of this process. With a name that survives restarts partitions return to
                it; None draws one.
            start: where the group begins in a partition when it is new; partitions that are added
                later are read from their begin.
            auto_advance: requesting the next records says that those before are handled; False:
                call `Consumer.advance`.
            commit_interval_ms: how often each partition is committed, at most.
            hand_over_s: how long a partition that moves to another member waits until delivered
                records are handled; then it moves, and they are handled again there. The same for
                all members of a group.
            on_truncated: as for `reader`.

        Entering raises NoSuchStream, InvalidArgument, MetadataUnavailable, and after 30 s
        MemberExists if another living process has this member name.
        """
        bridge = self._bridge
        async with bridge.hold(
            lambda: self._inner.consumer(
                stream,
                group,
                member=member,
                start=start,
                auto_advance=auto_advance,
                commit_interval_ms=commit_interval_ms,
                hand_over_s=hand_over_s,
                on_truncated=on_truncated,
            )
        ) as inner:
            yield Consumer._of(bridge, inner)

    async def open_consumer(
        self,
        stream: str,
        group: str,
        *,
        member: str | None = None,
        start: Start = EARLIEST,
        auto_advance: bool = True,
        commit_interval_ms: int = COMMIT_INTERVAL_MS,
        hand_over_s: float = HAND_OVER_S,
        on_truncated: OnTruncated = "error",
    ) -> Consumer:
        """Opens what `consumer` opens, with its arguments and errors: `close` it."""
        return await self.consumer(
            stream, group, member=member, start=start, auto_advance=auto_advance,
            commit_interval_ms=commit_interval_ms, hand_over_s=hand_over_s,
            on_truncated=on_truncated
        ).open()  # fmt: skip

    async def groups(self, stream: str) -> list[str]:
        """Returns the consumer groups of a stream, sorted. Raises NoSuchStream."""
        return await self._bridge.call(lambda: self._inner.groups(stream))

    async def group(self, stream: str, group: str) -> GroupInfo:
        """Returns who handles which partition, with its lag. Raises NoSuchStream, NoSuchGroup."""
        return await self._bridge.call(lambda: self._inner.group(stream, group))

    async def delete_group(self, stream: str, group: str) -> None:
        """Deletes an empty group and its positions. Raises NoSuchStream, NoSuchGroup, GroupBusy."""
        await self._bridge.call(lambda: self._inner.delete_group(stream, group))

    async def verify(
        self, stream: str, *, receipt: Receipt | None = None, on_progress: OnProgress | None = None
    ) -> StreamReport:
        """Reads every copy of every confirmed entry at every bookie and compares them; with a
        receipt, those of its entry, against what the receipt says. Changes nothing.

        The report distinguishes copies that are missing, wrong or unverified; `on_progress` is
        called now and then. Segments in the trash are not verified. Raises NoSuchStream,
        MetadataUnavailable; with a receipt Truncated, InvalidArgument for one of another stream.
        """
        relayed = self._bridge.relay(on_progress)
        return await self._bridge.call(
            lambda: self._inner.verify(stream, receipt=receipt, on_progress=relayed)
        )

    async def policy(self) -> NamespaceMetadata:
        """Returns how streams are written and kept. Raises NoSuchNamespace."""
        return await self._bridge.call(lambda: self._inner.policy())

    async def set_policy(
        self,
        *,
        dry_run: bool = False,
        allow_drop: bool = True,
        **settings: Unpack[NamespaceSettings],
    ) -> NamespaceMetadata:
        """Changes some settings; returns the policy as it then is. Running writers follow it.

        With `dry_run` nothing is stored. Without `allow_drop` a policy by which the next sweep of a
        janitor would drop or purge more than by the present one raises DataWouldBeDropped, and
        nothing is changed. Raises NoSuchNamespace, InvalidArgument (nothing is changed then).
        """
        return await self._bridge.call(
            lambda: self._inner.set_policy(dry_run=dry_run, allow_drop=allow_drop, **settings)
        )

    async def what_if(self, **settings: Unpack[NamespaceSettings]) -> list[RetentionPlan]:
        """Returns what the next sweep would do to each stream, and to those in the trash, with
        these settings changed; without any, by the present policy. Changes nothing.

        Raises NoSuchNamespace, InvalidArgument.
        """
        return await self._bridge.call(lambda: self._inner.what_if(**settings))

    async def explain_retention(self, stream: str) -> RetentionPlan:
        """Returns what is kept, dropped and purged of a stream, when and why. Changes nothing.

        Raises NoSuchStream; IsPartitioned: name a partition, such as `clicks#0`.
        """
        return await self._bridge.call(lambda: self._inner.explain_retention(stream))

    async def stream_metadata(self, stream: str) -> StreamMetadata:
        """Returns newest segments, epoch, truncation point. Raises NoSuchStream, IsPartitioned."""
        return await self._bridge.call(lambda: self._inner.stream_metadata(stream))

    async def segments(
        self, stream: str, *, since: int = 0, limit: int = SEGMENTS_LISTED_MAX
    ) -> list[Segment]:
        """Returns up to `limit` segments of a stream from number `since` on, in order, those in the
        trash included.

        Raises NoSuchStream, IsPartitioned, InvalidArgument for a limit below 0,
        MetadataCorrupt if a list of older segments is lost or damaged (it says which),
        MetadataUnavailable.
        """
        return await self._bridge.call(
            lambda: self._inner.segments(stream, since=since, limit=limit)
        )

    async def truncate(self, stream: str, position: Position) -> StreamMetadata:
        """Drops the records before `position` for readers; whole segments go to the trash.

        Moves forward only, see `untruncate`. Raises InvalidArgument for a position behind the end
        of the stream, NoSuchStream.
        """
        return await self._bridge.call(lambda: self._inner.truncate(stream, position))

    async def untruncate(self, stream: str, position: Position | None = None) -> StreamMetadata:
        """Restores truncated records from `position` on, or as many as are still in the trash
        (None).

        What the policy would drop is dropped again at the next sweep, and its time in the trash
        begins again: change the policy first. Raises NoSuchStream, IsPartitioned; InvalidArgument
        for a position that was purged.
        """
        return await self._bridge.call(lambda: self._inner.untruncate(stream, position))

    async def undelete_stream(self, stream: str, as_name: str | None = None) -> None:
        """Restores the stream of this name that was deleted last, with its cursors.

        With `as_name` it is restored under another name, without its cursors. Raises NotInTrash (it
        was purged, or never deleted), StreamExists if the name is in use, InvalidArgument for a
        partitioned stream that should change its name.
        """
        await self._bridge.call(lambda: self._inner.undelete_stream(stream, as_name))

    async def trash(self) -> list[TrashEntry]:
        """Returns everything that can be restored, by name and time. Raises NoSuchNamespace."""
        return await self._bridge.call(lambda: self._inner.trash())

    async def purge(self, stream: str) -> int:
        """Empties the trash of a stream now: truncated segments, and deleted streams of its name
        (of a partitioned stream: of all its partitions). It can no longer be restored. Returns how
        many ledgers were deleted. Raises NotInTrash."""
        return await self._bridge.call(lambda: self._inner.purge(stream))

    async def close(self) -> None:
        """Closes what was opened from it without a block, newest first, and then itself."""
        await self._leave()
