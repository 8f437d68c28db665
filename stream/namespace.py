"""Namespace: the facade of streams, with one short method per operation.

It creates, lists and deletes streams, and opens writers and readers. It keeps no state but its
addresses: any number of processes may use the same namespace. Each method only calls what does the
work. It never fences a writer unless it opens one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Unpack, overload

from ledger.client import LedgerClient
from ledger.credentials import Credentials
from ledger.errors import InvalidArgument
from ledger.options import ClientOptions
from ledger.runtime.opening import Closable, opened_by, opening_in_task
from stream.consuming import groups
from stream.consuming.consumer import Consumer
from stream.consuming.cursor import COMMIT_INTERVAL_MS, Cursor, open_cursor
from stream.consuming.groups import HAND_OVER_S, GroupInfo
from stream.core.entry.records import Record
from stream.core.metadata.cursors import CursorMetadata
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.partitioned import PartitionedStream
from stream.core.metadata.segments import Segment
from stream.core.metadata.streams import StreamInfo, StreamMetadata
from stream.core.names import check_name, check_new_name, parse_partition
from stream.core.position import EARLIEST, FromTime, Position, Start
from stream.core.receipt import Receipt
from stream.core.retention import RetentionPlan
from stream.core.sinks import SinkLedger
from stream.core.takeover import Takeover
from stream.errors import NamespaceExists, StreamExists
from stream.partitions import partitions as partitioning
from stream.partitions.partitions import PartitionedInfo
from stream.partitions.writer import PartitionedWriter, open_partitioned_writer
from stream.reading.backward import BackwardBatches, read_last
from stream.reading.lag import CursorLag, lag_of
from stream.reading.merge_options import MergeOptions, OrderBy
from stream.reading.merged_reader import MergedReader, open_merged_reader
from stream.reading.reader import OnTruncated, StreamReader
from stream.reading.seek import find, stream_info
from stream.reading.shared_tail import SharedTails
from stream.retention import policies, reclaim
from stream.retention.partitioned_trash import undelete_partitioned
from stream.retention.policies import NamespaceSettings as NamespaceSettings
from stream.retention.policies import create_namespace as create_namespace
from stream.retention.policies import delete_namespace as delete_namespace
from stream.retention.policies import list_namespaces as list_namespaces
from stream.retention.reclaim import truncate_stream
from stream.retention.trash import Trash, TrashEntry
from stream.retention.trash_listing import list_trash
from stream.scope import NamespaceScope
from stream.sinks.sinks import commit_batch, is_committed
from stream.store.cursors import CursorStore
from stream.store.pages import SEGMENTS_LISTED_MAX
from stream.store.partitions import PartitionStore
from stream.store.streams import StreamStore
from stream.takeover import StreamLedgers
from stream.verify import OnProgress, StreamReport, verify_stream
from stream.writing.open_segment import WriterOptions
from stream.writing.policy_watch import PolicyWatch
from stream.writing.writer import StreamWriter, open_writer

_TOMBSTONE_MS = 3_600_000
"""After this time no commit that was in flight when its cursor was deleted can still arrive."""


class Namespace(Closable):
    """The streams of one namespace, over a client that the caller keeps open.

    Args:
        client: of the cluster that holds the ledgers.
        name: of the namespace, which must exist (see `create_namespace`).
        writer_options: bounds of the writers opened here.
    """

    def __init__(
        self, client: LedgerClient, name: str, *, writer_options: WriterOptions | None = None
    ) -> None:
        self.client = client
        self.name = check_name(name, "namespace")
        self.store = StreamStore(client.store)
        self.scope = NamespaceScope(client, self.store, self.name)
        self.tails = SharedTails(client)
        self.writer_options = writer_options or WriterOptions()
        self._policy_watch = PolicyWatch(client, self.name)

    @classmethod
    @opening_in_task
    @asynccontextmanager
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
        async with LedgerClient.connect(
            cluster, options=options, credentials=credentials
        ) as client:
            namespace = cls(client, name, writer_options=writer_options)
            if create:
                await namespace.ensure()
            yield namespace

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
            writer_options=writer_options,
        )  # fmt: skip

    def _description(self) -> str:
        return f"{self.name!r} {self.client._description()}"

    async def ensure(self, **settings: Unpack[NamespaceSettings]) -> bool:
        """Creates the namespace if it does not exist; returns True if it was created.

        Settings apply only to a new one. Raises InvalidArgument, MetadataUnavailable.
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
        """Creates an empty stream; with `partitions` a partitioned one, even if it is only 1.

        A deleted stream of the name stays in the trash. Raises StreamExists, NoSuchNamespace,
        TooManyStreams, InvalidArgument.
        """
        if partitions is not None:
            return await partitioning.create(self.scope, stream, partitions)
        metadata = StreamMetadata(name=check_new_name(stream), created_ms=self.client.now_ms())
        return await self.store.create_stream(self.name, metadata)

    async def ensure_stream(self, stream: str, *, partitions: int | None = None) -> bool:
        """Creates the stream if it does not exist; returns True if it was created."""
        try:
            if partitions is None:
                await self.create_stream(stream)
            else:
                await self.create_stream(stream, partitions=partitions)
        except StreamExists:
            return False
        return True

    async def list_streams(self) -> list[str]:
        """Returns the names, sorted, without deleted ones. Raises NoSuchNamespace."""
        await self.policy()
        return partitioning.without_partitions(await self.store.list_streams(self.name))

    async def delete_stream(self, stream: str) -> None:
        """Moves a stream into the trash; its writer can confirm nothing more.

        `undelete_stream` restores it until the namespace's `trash_ms` have passed; then (with 0:
        now) the data is deleted. Raises NoSuchStream. If the call is interrupted, no client sees
        the stream any more, and the janitor completes the deletion.
        """
        if not await partitioning.delete(self.scope, check_new_name(stream)):
            await reclaim.delete_stream(self.client, self.store, self.name, stream)

    async def info(self, stream: str) -> StreamInfo:
        """Returns where the stream begins and ends now, asked of metadata and bookies."""
        return await self.store.consult(self.name, stream, partial(stream_info, self.client))

    # Writing

    @opening_in_task
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

        With `create` the stream is created if it does not exist. With `if_epoch` it is taken over
        only if it is still at that epoch (as in `StreamInfo.epoch`). With `hand_over_s` a writer
        elsewhere is asked first: it makes durable what it has accepted and seals the stream, so
        that no outcome becomes unknown; after this many seconds the stream is taken over all the
        same. The end of the block seals the segment. Raises NoSuchStream, EpochMismatch,
        NotEnoughBookies, RecoveryIncomplete.
        """
        if create:
            await self.ensure_stream(stream)
        ledgers = self._ledgers(stream)
        async with open_writer(
            ledgers, options or self.writer_options, self._policy_watch,
            if_epoch=if_epoch, hand_over_s=hand_over_s,
        ) as writer:  # fmt: skip
            yield writer

    open_writer = opened_by(writer)

    async def forget_producer(self, stream: str, producer: str) -> StreamMetadata:
        """Forgets an idempotent producer (of `StreamMetadata.producers`), so that another fits.

        Only for a producer that will not return: if it does, its numbers begin again at 0, and what
        it repeats is appended again. Raises NoSuchStream, MetadataUnavailable.
        """
        return await self.store.update_stream(
            self.name, stream, lambda present: present.without_producer(producer)
        )

    async def commit_segments(
        self, stream: str, sink_id: str, batch_id: int, ledger_ids: Sequence[int]
    ) -> StreamMetadata:
        """Makes closed ledgers of stream entries segments of the stream, in this order.

        It does so once per (sink, batch), whatever the streams: committing the sink's last batch
        again has no effect. The ledgers' entries must count sequences from the begin of their
        segment. An active writer continues behind them. Raises CommitOutOfOrder for an older batch.
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
        machine = Takeover(stream, self.client.now_ms(), begins_next=False)
        return await self._ledgers(stream).run(machine)

    def _ledgers(self, stream: str) -> StreamLedgers:
        return StreamLedgers(self.client, self.store, self.name, check_name(stream))

    # Reading

    def reader(
        self, stream: str, *, start: Start = EARLIEST, on_truncated: OnTruncated = "error"
    ) -> AbstractAsyncContextManager[StreamReader]:
        """Reads a stream, or one partition ("clicks#2").

        Args:
            start: EARLIEST, LATEST, a Position, FromSequence, FromTime (when appended),
                FromEventTime, FromCursor or FromEnd.
            on_truncated: what to do when the requested record was truncated, at the start or later:
                "error" raises Truncated, "earliest" continues at the first available record,
                "latest" at the end. The records in between are then skipped; a warning is logged.

        Entering raises NoSuchStream, IsPartitioned, NoSuchCursor, Truncated.
        """
        check_name(stream)
        return StreamReader(
            self.client, self.store, self.name, stream, start, on_truncated, self.tails
        )

    open_reader = opened_by(reader)

    async def read_last(self, stream: str, records: int) -> list[Record]:
        """Returns the last `records` records, in the order of the stream; all, if it has fewer.

        It needs memory for these records, and reads little else. Raises NoSuchStream,
        IsPartitioned, InvalidArgument for a negative number, what reading ledgers raises.
        """
        return await read_last(self.backward_batches(stream), records)

    def backward_batches(self, stream: str, *, before: Position | None = None) -> BackwardBatches:
        """Returns batches of records from the end, or from before a position that was read, back to
        where the stream begins. It is an async iterator; use it in `async with` or close it.

        Within a batch records are in the order of the stream. Its calls raise NoSuchStream,
        IsPartitioned, what reading ledgers raises.
        """
        check_name(stream)
        return BackwardBatches(self.client, self.store, self.name, stream, before)

    @opening_in_task
    def merged_reader(
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
    ) -> AbstractAsyncContextManager[MergedReader]:
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
        options = MergeOptions(
            start=start, order_by=order_by, lateness_ms=lateness_ms,
            idle_timeout_ms=idle_timeout_ms, on_truncated=on_truncated, follow=follow,
            buffer_bytes=buffer_bytes,
        )  # fmt: skip
        return open_merged_reader(MergedReader(self.scope, self.tails, streams, options))

    open_merged_reader = opened_by(merged_reader)

    # Partitioned streams

    async def grow_stream(self, stream: str, *, partitions: int) -> PartitionedStream:
        """Gives a partitioned stream more partitions; its writers notice within a second or so.

        Of all keys the share of the new partitions moves, to new partitions only. Raises
        NoSuchStream, NotPartitioned, InvalidArgument for fewer than there are.
        """
        return await partitioning.grow(self.scope, stream, partitions)

    async def partitions(self, stream: str) -> list[str]:
        """Returns the streams that hold the records: `clicks#0`, `clicks#1`, ... of a partitioned
        one, by number; else the stream itself. Raises NoSuchStream."""
        return await PartitionStore(self.client.store).partition_names(self.name, stream)

    async def partitioned_info(self, stream: str) -> PartitionedInfo:
        """Returns where each partition begins and ends now. Raises NoSuchStream, NotPartitioned."""
        return await partitioning.measure(self.scope, stream)

    async def truncate_partitions(
        self, stream: str, to: FromTime | Mapping[int, Position]
    ) -> dict[int, Position]:
        """Drops what was appended before a time, or what is before positions in partitions.

        Returns where each of these partitions begins now. Raises NoSuchStream, NotPartitioned,
        InvalidArgument (no such partition: nothing was done), PartitionsFailed.
        """
        return await partitioning.truncate(self.scope, stream, to)

    @opening_in_task
    @asynccontextmanager
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
        if create is not None:
            await self.ensure_stream(stream, partitions=create)
        options = options or self.writer_options
        async with open_partitioned_writer(
            self.scope, self._policy_watch, stream, options, own
        ) as writer:
            yield writer

    open_partitioned_writer = opened_by(partitioned_writer)

    # Cursors and consumer groups

    @opening_in_task
    def cursor(
        self,
        stream: str,
        name: str,
        *,
        start: Start = EARLIEST,
        commit_interval_ms: int = COMMIT_INTERVAL_MS,
    ) -> AbstractAsyncContextManager[Cursor]:
        """Opens the durable position `name` in a stream or partition; a new one is at `start`.

        What is advanced is stored at most once per `commit_interval_ms`, and at the end of the
        block. Entering raises NoSuchStream, IsPartitioned, InvalidArgument, MetadataUnavailable;
        leaving CursorMoved if another client moved it, MetadataUnavailable.
        """
        return open_cursor(
            self.client, self.store, self.name, stream, name,
            start=start, commit_interval_ms=commit_interval_ms,
        )  # fmt: skip

    open_cursor = opened_by(cursor)

    async def cursors(self, stream: str) -> list[CursorMetadata]:
        """Returns the cursors of a stream, sorted by name; also those of consumer groups.

        Raises NoSuchStream, IsPartitioned, MetadataCorrupt.
        """
        present = await self.store.read_living_stream(self.name, stream)
        return await CursorStore(self.client.store).list(self.name, present)

    async def cursor_lag(self, stream: str, name: str) -> CursorLag:
        """Returns how far the stored position of a cursor is behind the end of its stream.

        Raises NoSuchStream, IsPartitioned, NoSuchCursor.
        """
        present = await self.store.read_living_stream(self.name, stream)
        cursor, _ = await CursorStore(self.client.store).read(self.name, present, name)
        return await lag_of(self.client, self.name, present, cursor.position)

    async def set_cursor(self, stream: str, name: str, to: Start) -> CursorMetadata:
        """Moves a cursor forward or back, and creates it if there is none.

        Its user gets CursorMoved at the next commit; a consumer group continues from there. Raises
        NoSuchStream, IsPartitioned, NoSuchCursor, Truncated, MetadataUnavailable (may have moved).
        """
        present = await self.store.read_living_stream(self.name, stream)
        position = await find(self.client, present, to, self.name)
        cursors, now_ms = CursorStore(self.client.store), self.client.now_ms()
        moved = await cursors.move(self.name, present, name, position, now_ms)
        await groups.note_reset(self.client, self.name, stream, name)
        return moved

    async def delete_cursor(self, stream: str, name: str) -> None:
        """Deletes a cursor; its user gets CursorMoved.

        Raises NoSuchStream, IsPartitioned, NoSuchCursor.
        """
        present = await self.store.read_living_stream(self.name, stream)
        cursors, now_ms = CursorStore(self.client.store), self.client.now_ms()
        await cursors.delete(self.name, present, name, now_ms)
        await cursors.forget_deleted(self.name, present, now_ms - _TOMBSTONE_MS)

    @opening_in_task
    def consumer(
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
    ) -> AbstractAsyncContextManager[Consumer]:
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

        def open_reader(
            partition: str, position: Position
        ) -> AbstractAsyncContextManager[StreamReader]:
            return self.reader(partition, start=position, on_truncated=on_truncated)

        return groups.open_consumer(
            self.client, self.name, stream, group,
            member=member, start=start, auto_advance=auto_advance,
            commit_interval_ms=commit_interval_ms, hand_over_s=hand_over_s,
            open_reader=open_reader,
        )  # fmt: skip

    open_consumer = opened_by(consumer)

    async def groups(self, stream: str) -> list[str]:
        """Returns the consumer groups of a stream, sorted. Raises NoSuchStream."""
        return await groups.group_names(self.client, self.name, stream)

    async def group(self, stream: str, group: str) -> GroupInfo:
        """Returns who handles which partition, with its lag. Raises NoSuchStream, NoSuchGroup."""
        return await groups.describe_group(self.client, self.name, stream, group)

    async def delete_group(self, stream: str, group: str) -> None:
        """Deletes an empty group and its positions. Raises NoSuchStream, NoSuchGroup, GroupBusy."""
        await groups.delete_group(self.client, self.name, stream, group)

    # Verification

    async def verify(
        self,
        stream: str,
        *,
        receipt: Receipt | None = None,
        on_progress: OnProgress | None = None,
    ) -> StreamReport:
        """Reads every copy of every confirmed entry at every bookie and compares them; with a
        receipt, those of its entry, against what the receipt says. Changes nothing.

        The report distinguishes copies that are missing, wrong or unverified; `on_progress` is
        called now and then. Segments in the trash are not verified. Raises NoSuchStream,
        MetadataUnavailable; with a receipt Truncated, InvalidArgument for one of another stream.
        """
        return await verify_stream(self.scope, stream, receipt=receipt, on_progress=on_progress)

    # Policy

    async def policy(self) -> NamespaceMetadata:
        """Returns how streams are written and kept. Raises NoSuchNamespace."""
        return await self.scope.policy()

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
        return await policies.set_policy(
            self.client, self.name, settings, dry_run=dry_run, allow_drop=allow_drop
        )

    async def what_if(self, **settings: Unpack[NamespaceSettings]) -> list[RetentionPlan]:
        """Returns what the next sweep would do to each stream, and to those in the trash, with
        these settings changed; without any, by the present policy. Changes nothing.

        Raises NoSuchNamespace, InvalidArgument.
        """
        policy = policies.with_settings(await self.policy(), settings)
        return await policies.plans(self.client, policy)

    async def explain_retention(self, stream: str) -> RetentionPlan:
        """Returns what is kept, dropped and purged of a stream, when and why. Changes nothing.

        Raises NoSuchStream; IsPartitioned: name a partition, such as `clicks#0`.
        """
        return await policies.plan_of(self.client, await self.policy(), check_name(stream))

    async def stream_metadata(self, stream: str) -> StreamMetadata:
        """Returns newest segments, epoch, truncation point. Raises NoSuchStream, IsPartitioned."""
        return await self.scope.stream_metadata(stream)

    async def segments(
        self, stream: str, *, since: int = 0, limit: int = SEGMENTS_LISTED_MAX
    ) -> list[Segment]:
        """Returns up to `limit` segments of a stream from number `since` on, in order, those in the
        trash included.

        Raises NoSuchStream, IsPartitioned, InvalidArgument for a limit below 0,
        MetadataCorrupt if a list of older segments is lost or damaged (it says which),
        MetadataUnavailable.
        """
        listed = partial(self.store.pages.listed, since=since, limit=limit)
        return await self.store.consult(self.name, stream, listed)

    # Truncation and trash

    async def truncate(self, stream: str, position: Position) -> StreamMetadata:
        """Drops the records before `position` for readers; whole segments go to the trash.

        Moves forward only, see `untruncate`. Raises InvalidArgument for a position behind the end
        of the stream, NoSuchStream.
        """
        return await truncate_stream(self.client, self.store, self.name, stream, position)

    async def untruncate(self, stream: str, position: Position | None = None) -> StreamMetadata:
        """Restores truncated records from `position` on, or as many as are still in the trash
        (None).

        What the policy would drop is dropped again at the next sweep, and its time in the trash
        begins again: change the policy first. Raises NoSuchStream, IsPartitioned; InvalidArgument
        for a position that was purged.
        """
        return await Trash(self.client, self.name).untruncate(check_name(stream), position)

    async def undelete_stream(self, stream: str, as_name: str | None = None) -> None:
        """Restores the stream of this name that was deleted last, with its cursors.

        With `as_name` it is restored under another name, without its cursors. Raises NotInTrash (it
        was purged, or never deleted), StreamExists if the name is in use, InvalidArgument for a
        partitioned stream that should change its name.
        """
        new = None if as_name is None else check_new_name(as_name)
        if new is None and (partition := parse_partition(stream)) is not None:
            raise InvalidArgument(
                f"{stream!r} is a partition: restore all of {partition.stream!r}, or this one "
                f"as a stream of its own (as_name)"
            )
        if not await undelete_partitioned(self.client, self.name, check_name(stream), new):
            await Trash(self.client, self.name).undelete(stream, as_name=new)

    async def trash(self) -> list[TrashEntry]:
        """Returns everything that can be restored, by name and time. Raises NoSuchNamespace."""
        return await list_trash(self.client, self.name)

    async def purge(self, stream: str) -> int:
        """Empties the trash of a stream now: truncated segments, and deleted streams of its name
        (of a partitioned stream: of all its partitions). It can no longer be restored. Returns how
        many ledgers were deleted. Raises NotInTrash."""
        return await Trash(self.client, self.name).purge_all_of(check_name(stream))
