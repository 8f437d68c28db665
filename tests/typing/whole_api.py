"""A program that uses all of the public API of streams, for type checkers; nobody runs it.

Told in asyncio; test_whole_api.py makes trio's and the blocking one of it, as the faces are made,
and has them checked: what a user touches has a type, and it is not Any.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledger.errors import InvalidArgument, LedgerClosed, LedgerError, LedgerFenced
from ledger.options import ClientOptions
from stream.aio import (
    EARLIEST,
    LATEST,
    NULL,
    BackwardBatches,
    CommitOutOfOrder,
    Compression,
    CompressionUnavailable,
    Consumer,
    CopyFault,
    CopyState,
    CopyVerdict,
    Cursor,
    CursorLag,
    CursorMetadata,
    CursorMoved,
    DataWouldBeDropped,
    Delivery,
    Edge,
    EpochMismatch,
    FromCursor,
    FromEnd,
    FromEventTime,
    FromSequence,
    FromTime,
    GroupBusy,
    GroupInfo,
    GroupPartition,
    HandedOver,
    IsPartitioned,
    Janitor,
    LedgerClient,
    LedgerReport,
    MemberExists,
    MergedBatch,
    MergedReader,
    MergedRecord,
    MergeReport,
    Namespace,
    NamespaceExists,
    NamespaceMetadata,
    NamespaceNotEmpty,
    NamespaceSettings,
    NoSuchCursor,
    NoSuchGroup,
    NoSuchNamespace,
    NoSuchStream,
    NotInTrash,
    NotPartitioned,
    OnTruncated,
    OrderBy,
    PartitionedInfo,
    PartitionedStream,
    PartitionedWriter,
    PartitionedWriterStatistics,
    PartitionLost,
    PartitionPosition,
    PartitionsFailed,
    PartitionTicket,
    Position,
    PositionLost,
    Producer,
    ProducerGap,
    ProducerState,
    Receipt,
    ReceiptAck,
    Record,
    RecordBatch,
    RecordDelivery,
    RecordFormatError,
    RetentionPlan,
    Segment,
    SegmentPlan,
    SegmentReport,
    SegmentState,
    SequenceMismatch,
    Start,
    StreamBusy,
    StreamExists,
    StreamInfo,
    StreamMetadata,
    StreamReader,
    StreamReport,
    StreamWriter,
    StreamWriterStatistics,
    SweepReport,
    TakenOver,
    Ticket,
    TooManyProducers,
    TooManyStreams,
    TrashEntry,
    Truncated,
    Verdict,
    VerifyProgress,
    WouldBlock,
    WriterOptions,
    create_namespace,
    decode,
    delete_namespace,
    encode,
    list_namespaces,
    parse_start,
    partition_of,
)

ERRORS: tuple[type[LedgerError], ...] = (
    CommitOutOfOrder, CompressionUnavailable, CursorMoved, DataWouldBeDropped, EpochMismatch,
    GroupBusy, HandedOver, IsPartitioned, MemberExists, NamespaceExists, NamespaceNotEmpty,
    NoSuchCursor, NoSuchGroup, NoSuchNamespace, NoSuchStream, NotInTrash, NotPartitioned,
    PartitionLost, PartitionsFailed, ProducerGap, RecordFormatError, SequenceMismatch,
    StreamBusy, StreamExists, TakenOver, TooManyProducers, TooManyStreams, PositionLost, Truncated,
)  # fmt: skip


def use(*_what: object) -> None:
    """Takes what has been given a type."""


def starts(position: Position) -> list[Start]:
    use(parse_start("time=17"))
    edge: Edge = LATEST
    times: list[Start] = [FromTime(17), FromEventTime(17), FromEnd(5)]
    return [edge, *times, FromSequence(5), FromCursor("mailer"), position, position.after]


def columns(batch: RecordBatch) -> int:
    values: list[bytes] = batch.values()
    keys: Sequence[bytes | None] = batch.keys()
    times: Sequence[int | None] = batch.event_times()
    headers: list[tuple[tuple[str, bytes], ...]] = batch.headers()
    places: list[Position] = [batch.first_position, batch.last_position, batch.after]
    rest: RecordBatch = batch.since(1).between(0, 1)
    views = (batch.value_column, batch.key_column)
    numbers: list[int] = [batch.first_sequence, batch.append_time_ms, batch.segment, batch.entry]
    seen: list[Record] = [*batch, *batch.records()]
    use(values, keys, times, headers, places, rest, views, numbers, seen)
    return len(batch)


async def without_a_block(uri: str) -> None:
    await (await LedgerClient.open(uri)).close()
    namespace: Namespace = await Namespace.open(uri, "demo", create=True)
    writer: StreamWriter = await namespace.open_writer("s", create=True)
    partitioned: PartitionedWriter = await namespace.open_partitioned_writer("p", create=2)
    reader: StreamReader = await namespace.open_reader("s", start=EARLIEST)
    merged: MergedReader = await namespace.open_merged_reader("s")
    cursor: Cursor = await namespace.open_cursor("s", "c")
    consumer: Consumer = await namespace.open_consumer("p", "g")
    await merged.aclose()
    await reader.aclose()
    for opened in (consumer, cursor, partitioned, writer, namespace):
        await opened.close()


def fields(record: Record) -> bytes:
    position: Position = record.position
    segment: int = position.segment + position.entry + position.slot
    names: list[str] = [name for name, _ in record.headers]
    event: int | None = record.event_time_ms
    use(Position.parse(str(position)), segment, names, event)
    return record.key or (NULL if record.is_tombstone else record.value)


def bytes_of_entries() -> RecordBatch:
    payload: bytes = encode([b"v"], keys=[None], event_times=[17], compression=Compression.ZSTD)
    return decode(payload, segment=1, entry=0, base_sequence=0)


async def write(namespace: Namespace) -> Position | None:
    options: WriterOptions = WriterOptions(pending_bytes_max=1 << 20, repair_timeout_s=5.0)
    async with namespace.writer(
        "s", create=True, options=options, if_epoch=0, hand_over_s=1.0
    ) as writer:
        opened: StreamWriter = writer
        first: Position = await opened.append(b"v", b"k", 17, [("h", b"1")])
        receipt: Receipt = await opened.append(b"v", expected_sequence=1, receipt=True)
        acks: tuple[ReceiptAck, ...] = receipt.acks
        kept: str = Receipt.from_json(receipt.to_json()).to_json() + acks[0].bookie
        pair: tuple[Position, Position] = await opened.append_many(
            [b"a", b"b"], [b"k", None], [17, None], expected_sequence=2
        )
        try:
            ticket: Ticket = opened.append_nowait(b"v", key=b"k", expected_sequence=4)
        except WouldBlock:
            await opened.wait_room()
            return None
        confirmed: bool = ticket.is_confirmed
        at: Position | None = ticket.position
        await ticket.wait()
        await opened.flush()
        producer: Producer = await opened.producer("loader-7")
        known: Position | None = await producer.append(b"v", 0, key=b"k", event_time_ms=1)
        more: tuple[Position, Position] | None = await producer.append_many([b"v"], 1)
        numbers: list[int] = [producer.last_sequence, producer.next_sequence]
        numbers += [opened.epoch, opened.next_sequence, ticket.sequence]
        counted: StreamWriterStatistics = opened.statistics()
        error: LedgerError | None = opened.error
        name: str = opened.stream + producer.name + kept
        use(confirmed, at, known, more, numbers, error, name, pair, opened.has_room)
        await opened.close()
        return first if counted.records else at


async def read(namespace: Namespace, policy: OnTruncated) -> list[bytes]:
    found: list[bytes] = []
    async with namespace.reader("s", start=EARLIEST, on_truncated=policy) as reader:
        opened: StreamReader = reader
        async for record in opened:
            found.append(fields(record))
            break
        batch: RecordBatch = await opened.next_batch()
        async for some in opened.batches():
            columns(some)
            break
        async for some in opened.read_to_end():
            found += some.values()
        end: Position = await opened.end_position()
        last: RecordBatch | None = await opened.next_batch_before(end)
        resume: Position = opened.position
        use(batch, last, resume, opened.stream)
        await opened.aclose()
    tail: list[Record] = await namespace.read_last("s", 10)
    backward: BackwardBatches = namespace.backward_batches("s", before=end)
    async with backward as batches:
        async for some in batches:
            found += some.values()
        before: Position | None = batches.position
        use(before, batches.stream, tail)
        await batches.aclose()
    return found


async def merge(namespace: Namespace, order: OrderBy) -> dict[str, Position]:
    async with namespace.merged_reader(
        ["clicks", "views-*"],
        start={"clicks": LATEST},
        order_by=order,
        lateness_ms=100,
        idle_timeout_ms=None,
        follow=False,
    ) as merged:
        reader: MergedReader = merged
        async for each in reader:
            one: MergedRecord = each
            use(one.stream, one.record.value, one.is_late)
        batch: MergedBatch = await reader.next_batch()
        async for batch in reader.batches():
            columns(batch.batch)
        watermark: int | None = reader.watermark_ms
        names: list[str] = reader.streams
        use(watermark, names, batch.stream, batch.is_late, reader.buffered_bytes)
        return reader.positions()


async def follow(namespace: Namespace) -> CursorLag:
    async with namespace.cursor("s", "mailer", start=EARLIEST, commit_interval_ms=100) as cursor:
        opened: Cursor = cursor
        opened.advance(opened.position)
        stored: Position = await opened.commit()
        await opened.check()
        lag: CursorLag = await opened.lag()
        error: LedgerError | None = opened.error
        use(stored, opened.committed, error, opened.name, opened.stream)
    cursors: list[CursorMetadata] = await namespace.cursors("s")
    moved: CursorMetadata = await namespace.set_cursor("s", "mailer", LATEST)
    behind: CursorLag = await namespace.cursor_lag("s", moved.name)
    await namespace.delete_cursor("s", cursors[0].name)
    use(behind.records, behind.bytes)
    return lag


async def consume(namespace: Namespace) -> dict[str, Position]:
    async with namespace.consumer(
        "p", "billing", member="m", start=LATEST, auto_advance=False, hand_over_s=1.0
    ) as consumer:
        member: Consumer = consumer
        async for delivery in member:
            one: Delivery = delivery
            member.advance(one)
            use(one.partition, columns(one.batch), one.epoch)
            break
        single: RecordDelivery = await member.next_record()
        async for single in member.records():
            member.advance(single)
            break
        held: list[str] = member.partitions
        use(held, member.group, member.member, member.stream, single.record.value)
        committed: dict[str, Position] = await member.commit()
    groups: list[str] = await namespace.groups("p")
    group: GroupInfo = await namespace.group("p", groups[0])
    parts: Sequence[GroupPartition] = group.partitions
    await namespace.delete_group("p", group.name)
    return {part.partition: committed[part.partition] for part in parts}


async def partition(namespace: Namespace) -> PartitionedWriterStatistics:
    made: PartitionedStream = await namespace.create_stream("p", partitions=4)
    grown: PartitionedStream = await namespace.grow_stream("p", partitions=made.partitions + 1)
    async with namespace.partitioned_writer("p", own=[0, 1], create=5) as writer:
        opened: PartitionedWriter = writer
        place: PartitionPosition = await opened.append(b"v", b"k", 17, [("h", b"1")])
        ticket: PartitionTicket = opened.append_nowait(b"v", partition=1)
        where: PartitionPosition = await ticket.wait()
        many: dict[int, tuple[Position, Position]] = await opened.append_many([b"v"], [b"k"])
        numbers: list[int] = [opened.partitions, opened.partition_of(b"k"), ticket.partition]
        numbers += [place.partition, where.position.entry, partition_of(b"k", grown.partitions)]
        await opened.wait_room()
        await opened.flush()
        await opened.reopen(1)
        use(many, numbers, opened.stream, ticket.is_confirmed)
        await opened.close()
        counted: PartitionedWriterStatistics = opened.statistics()
    info: PartitionedInfo = await namespace.partitioned_info("p")
    begins: dict[int, Position] = await namespace.truncate_partitions("p", FromTime(17))
    names: list[str] = await namespace.partitions("p")
    use(info.records, begins, names)
    return counted


async def keep(namespace: Namespace, settings: NamespaceSettings) -> list[RetentionPlan]:
    metadata: StreamMetadata = await namespace.create_stream("s")
    was_made: bool = await namespace.ensure_stream("t", partitions=2)
    streams: list[str] = await namespace.list_streams()
    info: StreamInfo = await namespace.info("s")
    metadata = await namespace.stream_metadata("s")
    segments: list[Segment] = [s for s in metadata.segments if s.state is SegmentState.SEALED]
    producers: list[ProducerState] = list(metadata.producers.values())
    metadata = await namespace.truncate("s", info.end_position)
    metadata = await namespace.untruncate("s", metadata.first_available)
    metadata = await namespace.seal_stream("s")
    metadata = await namespace.commit_segments("s", "sink", 7, [1, 2])
    metadata = await namespace.forget_producer("s", "loader-7")
    await namespace.delete_stream("s")
    trash: list[TrashEntry] = await namespace.trash()
    await namespace.undelete_stream("s", as_name="u")
    deleted: int = await namespace.purge("s")
    policy: NamespaceMetadata = await namespace.policy()
    policy = await namespace.set_policy(dry_run=True, allow_drop=False, linger_ms=policy.linger_ms)
    policy = await namespace.set_policy(**settings)
    plan: RetentionPlan = await namespace.explain_retention("s")
    reasons: list[str] = [why.reason for why in plan.segments if why.verdict is Verdict.KEEP]
    why: SegmentPlan = plan.segments[0]
    use(was_made, streams, segments, producers, trash, deleted, policy, reasons, why)
    return await namespace.what_if(retention_ms=60_000, retention_cursors=("mailer",))


async def verify(namespace: Namespace, receipt: Receipt) -> bool:
    def on_progress(progress: VerifyProgress) -> None:
        assert progress.entries

    report: StreamReport = await namespace.verify("s", receipt=receipt, on_progress=on_progress)
    parts: Sequence[SegmentReport] = report.segments
    ledgers: list[LedgerReport] = [part.ledger for part in parts if part.ledger is not None]
    faults: list[CopyFault] = [fault for ledger in ledgers for fault in ledger.faults]
    missing = [fault for fault in faults if fault.state is CopyState.MISSING]
    return report.verdict is CopyVerdict.WHOLE and not missing


async def clean(client: LedgerClient) -> tuple[SweepReport, MergeReport]:
    made: NamespaceMetadata = await create_namespace(client, "demo", ensemble_size=3)
    names: list[str] = await list_namespaces(client)
    namespace: Namespace = Namespace(client, made.name, writer_options=WriterOptions())
    janitor: Janitor = Janitor(client, namespace.name, orphan_age_ms=60_000)
    reports = (await janitor.sweep(), await janitor.merge(limit_s=30.0))
    await janitor.run(60.0)
    await delete_namespace(client, names[0], purge=True)
    return reports


async def connect(cluster: str) -> int:
    """Everything from the address of a cluster."""
    options: ClientOptions = ClientOptions(read_timeout_s=1.0)
    async with LedgerClient.connect(cluster, options=options) as client:
        await clean(client)
    async with Namespace.connect(cluster, "demo", create=True, options=options) as namespace:
        was_made: bool = await namespace.ensure(retention_ms=60_000, digest_type="CRC32C")
        try:
            position: Position | None = await write(namespace)
        except TakenOver as error:
            return error.our_epoch
        except SequenceMismatch as mismatch:
            return mismatch.retry_is_safe
        except (InvalidArgument, LedgerFenced, LedgerClosed):
            return 0
        found: list[bytes] = await read(namespace, "earliest")
        assert position is not None
        use(starts(position))
        return len(found) + was_made
