"""Spark's input partitions: what one task reads, and how it reads this into Arrow batches.

A partition is pickled and complete: a worker needs no metadata store to read it. Its rows depend
on the partition alone, however often and wherever it is read, so that late or repeated tasks are
harmless. Must never skip an entry silently.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from connectors.spark.client.client_cache import cached_cluster
from connectors.spark.client.quickack import set_quickack
from connectors.spark.core.cluster_access import ClusterAccess
from connectors.spark.core.filters import NO_BOUNDS, Bounds
from connectors.spark.core.planner import ReplicaBalancer, SegmentRange, Task
from connectors.spark.error_messages import errors_without_traceback
from connectors.spark.source.arrow_read import ArrowBuilder
from connectors.spark.source.merged_segments import made_on_of, merged_since
from connectors.spark.source.planning_cache import cache_of
from ledger.client import LedgerClient
from ledger.core import metadata_format
from ledger.core.entry import DigestType, Entry
from ledger.core.metadata import LedgerMetadata
from ledger.errors import MetadataUnavailable, NoSuchEntry, NoSuchLedger
from stream.core.entry.records import RecordBatch, decode
from stream.core.position import Position, Truncated
from stream.errors import NoSuchStream, RecordFormatError

if TYPE_CHECKING:
    from stream.core.metadata.segments import Segment

_log = logging.getLogger(__name__)

READ_AHEAD_BYTES = 16 << 20
"""Bytes per task of entries that are requested or in flight."""
BUFFERED_BYTES = 8 << 20
"""Bytes per task of entries that are buffered for Spark, not counting one more response."""


@dataclass(frozen=True, slots=True)
class EntryRange:
    """Records of one ledger: entries `first_entry` to `last_entry`, both included.

    Entries count from the begin of the segment, which is at `base_entry` of the ledger. The range
    begins at `first_slot` of the first entry and ends before `end_slot` of the last one (None: at
    its end). `committed_ms` is the append time of entries that a sink wrote before it
    committed them; -1 if the segment does not record it.
    """

    stream: str
    """The full name, "ns/clicks", or "ns/clicks#2" for a partition."""
    segment: int
    ledger_id: int
    first_sequence: int
    """The first sequence of the segment."""
    committed_ms: int
    first_entry: int
    first_slot: int
    last_entry: int
    end_slot: int | None
    metadata: bytes = field(repr=False)
    """The metadata of the ledger, in its stored form; with the ledger's own password only if its
    digests need it."""
    rotation: int = 0
    """The replica that is read first, so that tasks are spread over all of them."""
    base_entry: int = 0
    made_on: int = -1
    """The ledger on which the segment was made: it identifies the segment forever."""

    def is_before(self, other: EntryRange) -> bool:
        """Whether the entries of `other` follow those of this range in the same ledger."""
        end = self.base_entry + self.last_entry + 1
        return self.ledger_id == other.ledger_id and end == other.base_entry + other.first_entry

    @property
    def name(self) -> str:
        """The base stream, without the partition, as in the column `stream`."""
        return self.stream.partition("#")[0]

    @property
    def partition(self) -> int:
        return int(self.stream.partition("#")[2] or 0)


@dataclass(frozen=True)
class LedgerPartition(InputPartition):
    """The ranges that one task reads, in order.

    Args:
        named_by_address: bookies whose id is the address at which they listen.
        is_loss_error: whether deleted records are an error.
    """

    cluster: ClusterAccess
    ranges: tuple[EntryRange, ...]
    rows_per_batch: int
    named_by_address: tuple[str, ...] = ()
    bounds: Bounds = field(default=NO_BOUNDS)
    is_loss_error: bool = True


async def make_partitions(
    client: LedgerClient,
    cluster: ClusterAccess,
    tasks: Sequence[Task],
    *,
    rows_per_batch: int,
    bounds: Bounds = NO_BOUNDS,
    is_loss_error: bool = True,
    known: Mapping[int, LedgerMetadata] | None = None,
) -> list[LedgerPartition]:
    """Makes one partition per task. For `ClusterClient.run`, on the driver's side.

    Reads the metadata of each ledger once per process, unless it is among the `known`, a bounded
    number of them at a time.
    """
    cache = cache_of(client)
    ids = dict.fromkeys(each.segment.ledger_id for task in tasks for each in task)
    ledgers = await cache.ledgers(client, list(ids), known or {})
    named = await cache.named_by_address(client, _bookies_of(ledgers.values()))
    balancer = ReplicaBalancer()
    stored = {one: _stored(metadata) for one, metadata in ledgers.items()}
    partitions = []
    for number, task in enumerate(tasks):
        ranges, named_by_address = [], dict[str, None]()
        for each in task:
            metadata = ledgers[each.segment.ledger_id]
            named_by_address |= {one: None for one in _bookies_of([metadata]) if one in named}
            at = each.segment.base_entry + each.first_entry
            replica = balancer.choose(metadata, at, each.nbytes, number)
            ranges.append(_entry_range(each, stored[metadata.ledger_id], replica))
        partitions.append(
            LedgerPartition(
                cluster,
                tuple(ranges),
                rows_per_batch,
                tuple(named_by_address),
                bounds,
                is_loss_error,
            )
        )
    return partitions


def _bookies_of(ledgers: Iterable[LedgerMetadata]) -> dict[str, None]:
    return {
        bookie: None
        for metadata in ledgers
        for fragment in metadata.fragments
        for bookie in fragment.bookies
    }


def _entry_range(each: SegmentRange, metadata: bytes, rotation: int) -> EntryRange:
    segment = each.segment
    return EntryRange(
        stream=each.stream,
        segment=segment.number,
        ledger_id=segment.ledger_id,
        first_sequence=segment.first_sequence,
        committed_ms=segment.last_time_ms,
        first_entry=each.first_entry,
        first_slot=each.first_slot,
        last_entry=each.last_entry,
        end_slot=each.end_slot,
        metadata=metadata,
        rotation=rotation,
        base_entry=segment.base_entry,
        made_on=made_on_of(segment),
    )


def _stored(metadata: LedgerMetadata) -> bytes:
    """Returns what a task needs to read: the password of a ledger admits to writing it, too."""
    if metadata.has_own_key and metadata.digest_type is not DigestType.HMAC:
        metadata = replace(metadata, password=b"")
    return metadata_format.encode(metadata)


@errors_without_traceback
class ExecutorReader:
    """What Spark pickles for executors in place of a reader: they need not import what plans."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LedgerPartition):
            return iter(())  # Spark invents a partition if there is nothing to read
        return read_partition(partition, self._schema)


def executor_reader(schema: pa.Schema) -> ExecutorReader:
    """Returns the reader of a task, when it is unpickled."""
    set_quickack()
    return ExecutorReader(schema)


def read_partition(partition: LedgerPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a partition, in order, in batches of this schema.

    Raises Truncated (records were deleted while the query ran), RecordFormatError, and what
    reading ledgers raises.
    """
    builder: ArrowBuilder | None = None
    current = -1
    fetched = cached_cluster(partition.cluster).iterate(
        _entries, _size_of, BUFFERED_BYTES, partition
    )
    try:
        for number, base_entry, entries in fetched:
            each = partition.ranges[number]
            if builder is None or partition.ranges[current].stream != each.stream:
                if builder is not None:
                    yield from builder.finish()
                builder = ArrowBuilder(schema, each.name, each.partition, partition.rows_per_batch)
            current = number
            for entry in entries:
                yield from _rows(
                    each, entry.entry_id - base_entry, entry, partition.bounds, builder
                )
        if builder is not None:
            yield from builder.finish()
    finally:
        fetched.close()


def _rows(
    each: EntryRange, entry_id: int, entry: Entry, bounds: Bounds, builder: ArrowBuilder
) -> Iterator[pa.RecordBatch]:
    decoded = partial(
        decode, entry.payload, segment=each.segment, entry=entry_id,
        base_sequence=each.first_sequence,
    )  # fmt: skip
    try:
        # What no column needs, or what bounds may exclude, is not decompressed.
        with_columns = builder.reads_columns and not bounds.bounds_entries
        batch = decoded(with_columns=with_columns)
        append_time_ms = _append_time_ms(each, batch)
        if entry_id == each.first_entry or entry_id == each.last_entry:
            first = each.first_slot if entry_id == each.first_entry else 0
            stop = each.end_slot if entry_id == each.last_entry else None
            batch = batch.between(first, batch.stop_slot if stop is None else stop)
        if bounds.bounds_entries:
            if not bounds.may_be_in_entry(batch.header, append_time_ms):
                return
            first, stop = bounds.slots(batch.first_sequence, len(batch))
            batch = batch.between(batch.first_slot + first, batch.first_slot + stop)
            if builder.reads_columns and len(batch):
                batch = decoded().between(batch.first_slot, batch.stop_slot)
        yield from builder.add(batch, append_time_ms)
    except RecordFormatError as error:
        raise RecordFormatError(
            error.offset,
            f"entry {entry_id} of segment {each.segment} of stream {each.stream!r} (ledger "
            f"{each.ledger_id}): {error.cause}",
        ) from None


def _append_time_ms(each: EntryRange, batch: RecordBatch) -> int:
    if batch.header.is_sequence_in_segment and each.committed_ms >= 0:
        return each.committed_ms
    return batch.append_time_ms


def _size_of(fetched: tuple[int, int, list[Entry]]) -> int:
    return sum(len(entry.payload) for entry in fetched[2])


async def _entries(
    client: LedgerClient, partition: LedgerPartition
) -> AsyncIterator[tuple[int, int, list[Entry]]]:
    """Yields the entries of all ranges, with the number of their range, and the entry of the ledger
    at which its segment begins. Runs on the loop."""
    for bookie in partition.named_by_address:
        client.addresses.note_id_is_address(bookie, True)
    ranges, number = list(partition.ranges), 0
    while number < len(ranges):
        each = ranges[number]
        last = number
        while last + 1 < len(ranges) and ranges[last].is_before(ranges[last + 1]):
            last += 1
        metadata = metadata_format.decode(each.ledger_id, each.metadata)
        # A derived password is not in the partition.
        reader = client.reader_of(client.ledgers.keys.completed(metadata), rotation=each.rotation)
        # All entries of the partition were confirmed when it was planned.
        end = ranges[last].base_entry + ranges[last].last_entry
        reader.note_confirmed(end)
        reader.read_ahead_bytes = READ_AHEAD_BYTES
        seen = each.base_entry + each.first_entry
        try:
            async with reader, aclosing(reader.entries(seen, end)) as lists:
                async for entries in lists:
                    while entries:
                        behind = each.base_entry + each.last_entry + 1
                        count = max(0, behind - entries[0].entry_id)
                        if count == 0:
                            number += 1
                            each = ranges[number]
                            continue
                        some, entries = entries[:count], entries[count:]
                        seen = some[-1].entry_id + 1
                        yield number, each.base_entry, some
        except (NoSuchLedger, NoSuchEntry) as error:
            left = replace(each, first_entry=seen - each.base_entry)
            if left.first_entry > each.last_entry:
                number += 1  # the next one of the same ledger
                continue
            moved = await _merged_since(client, partition, each)
            if moved is not None:
                ranges[number] = replace(
                    left, ledger_id=moved.ledger_id, base_entry=moved.base_entry,
                    metadata=_stored(await client.ledger_metadata(moved.ledger_id)),
                )  # fmt: skip
                continue
            if partition.is_loss_error:
                await _raise_cause(client, each, left.first_entry, error)
                raise
            if await _may_have_moved(client, each, reader.metadata):
                raise
            _log.warning(
                "stream=%s: entries %d..%d of segment %d were deleted and are not read: %s",
                each.stream, left.first_entry, each.last_entry, each.segment, error,
            )  # fmt: skip
        number += 1


async def _merged_since(
    client: LedgerClient, partition: LedgerPartition, each: EntryRange
) -> Segment | None:
    """Returns the segment of a range if it was merged after it was planned.

    Raises MetadataUnavailable unless a loss is an error anyway: then that is raised.
    """
    place = each.segment, each.ledger_id, each.made_on
    try:
        return await merged_since(client, each.stream, *place)
    except MetadataUnavailable:
        if not partition.is_loss_error:
            raise
        return None


async def _may_have_moved(client: LedgerClient, each: EntryRange, known: LedgerMetadata) -> bool:
    """Returns whether the entries may be on bookies that are not in the metadata `known`.

    Raises MetadataUnavailable: an unknown state is no reason to skip the entries.
    """
    try:
        return (await client.ledger_metadata(each.ledger_id)).fragments != known.fragments
    except NoSuchLedger:
        return False


async def _raise_cause(client: LedgerClient, each: EntryRange, entry: int, error: Any) -> None:
    """Raises a better error than `error` if the stream's metadata shows the cause."""
    from stream.reading.seek import first_available
    from stream.store.streams import StreamStore

    namespace, _, name = each.stream.partition("/")
    try:
        stream, _ = await StreamStore(client.store).read_stream(namespace, name)
    except MetadataUnavailable as unavailable:
        _log.info("stream=%s: cannot read why entries are missing: %s", each.stream, unavailable)
        return
    if stream.is_deleted:
        raise NoSuchStream(f"stream {each.stream!r} was deleted while it was read") from error
    at = Position(each.segment, entry, 0)
    if at < stream.truncated_to:
        begin = await first_available(client, stream)
        raise Truncated(each.stream, at, begin) from error
