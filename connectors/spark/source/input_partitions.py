"""Pieces: what one Spark task reads, and reading it into Arrow batches.

A piece is pickled and says all there is to know: a worker asks no metadata store to read it. What
it yields is decided by the piece alone, however often and wherever it is read; a task that is late
or runs twice harms nothing. Must never leave out an entry in silence.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
import trio
from pyspark.sql.datasource import InputPartition

from connectors.spark.client.client_cache import kept
from connectors.spark.core.filters import NO_BOUNDS, Bounds
from connectors.spark.core.planner import ReplicaTurns, SegmentRange, Task
from connectors.spark.source.arrow_read import ArrowBuilder
from ledger.client import LedgerClient
from ledger.core import metadata_format
from ledger.core.entry import Entry
from ledger.core.metadata import LedgerMetadata
from ledger.errors import LedgerError, MetadataUnavailable, NoSuchEntry, NoSuchLedger
from stream.core.entry.records import RecordBatch, decode
from stream.core.position import Position, Truncated
from stream.errors import NoSuchStream, RecordFormatError
from stream.store.streams import StreamStore

_log = logging.getLogger(__name__)

READ_AHEAD_BYTES = 16 << 20
"""Of a task: entries asked for or on their way."""
WAITING_BYTES = 8 << 20
"""Of a task: entries that are there and wait for Spark, but for one answer more."""
_METADATA_KEPT_MAX = 10_000
NAMED_SO_S = 60.0
"""Whoever plans asks anew where a bookie listens: one may move while a query runs for days."""


@dataclass(frozen=True, slots=True)
class PieceRange:
    """Entries of one ledger: `first_entry` to `last_entry`, both included.

    Of the first entry those from `first_slot` on, of the last those before `end_slot` (None: all).
    `committed_ms` is the append time of entries that a sink wrote before it committed them; -1
    where the segment does not tell.
    """

    stream: str
    """ "ns/clicks", of a partition "ns/clicks#2"."""
    segment: int
    ledger_id: int
    first_sequence: int
    """Of the segment."""
    committed_ms: int
    first_entry: int
    first_slot: int
    last_entry: int
    end_slot: int | None
    metadata: bytes
    """Of the ledger, as it is stored."""
    rotation: int = 0
    """Which replica is asked first, so that tasks are spread over all of them."""

    @property
    def name(self) -> str:
        """The stream without its partition: what the column `stream` shows."""
        return self.stream.partition("#")[0]

    @property
    def partition(self) -> int:
        return int(self.stream.partition("#")[2] or 0)


@dataclass(frozen=True)
class Piece(InputPartition):
    """What one task reads, in order.

    Args:
        named_so: bookies that listen at the address that is their name.
        is_loss_error: whether records that are gone are an error.
    """

    cluster: str
    ranges: tuple[PieceRange, ...]
    rows_per_batch: int
    named_so: tuple[str, ...] = ()
    bounds: Bounds = field(default=NO_BOUNDS)
    is_loss_error: bool = True


async def make_pieces(
    client: LedgerClient,
    cluster: str,
    tasks: Sequence[Task],
    *,
    rows_per_batch: int,
    bounds: Bounds = NO_BOUNDS,
    is_loss_error: bool = True,
    known: Mapping[int, LedgerMetadata] | None = None,
) -> list[Piece]:
    """One piece per task. For `KeptCluster.run`, on the driver's side.

    Reads the metadata of each ledger once per process, unless it is among the `known`.
    """
    remembered = _known_of.setdefault(client, _Known())
    turns = ReplicaTurns()
    pieces = []
    for number, task in enumerate(tasks):
        ranges, named_so = [], dict[str, None]()
        for each in task:
            metadata = await remembered.metadata(client, each.segment.ledger_id, known or {})
            for fragment in metadata.fragments:
                for bookie in fragment.bookies:
                    if await remembered.is_named_so(client, bookie):
                        named_so[bookie] = None
            turn = turns.turn(metadata, each.first_entry, each.nbytes, number)
            ranges.append(_piece_range(each, metadata, turn))
        pieces.append(
            Piece(
                cluster, tuple(ranges), rows_per_batch, tuple(named_so), bounds, is_loss_error
            )
        )  # fmt: skip
    return pieces


def _piece_range(each: SegmentRange, metadata: LedgerMetadata, rotation: int) -> PieceRange:
    segment = each.segment
    return PieceRange(
        stream=each.stream,
        segment=segment.number,
        ledger_id=segment.ledger_id,
        first_sequence=segment.first_sequence,
        committed_ms=segment.last_time_ms,
        first_entry=each.first_entry,
        first_slot=each.first_slot,
        last_entry=each.last_entry,
        end_slot=each.end_slot,
        metadata=metadata_format.encode(metadata),
        rotation=rotation,
    )


class _Known:
    """What a driver's process remembers of the ledgers and bookies of one client."""

    def __init__(self) -> None:
        self._metadata: dict[int, LedgerMetadata] = {}
        self._named_so: dict[str, tuple[bool, float]] = {}
        """Whether bookies are, and until when that is believed without asking."""

    async def metadata(
        self, client: LedgerClient, ledger_id: int, known: Mapping[int, LedgerMetadata]
    ) -> LedgerMetadata:
        found = known.get(ledger_id) or self._metadata.get(ledger_id)
        if found is None:
            found = await client.ledger_metadata(ledger_id)
            if len(self._metadata) >= _METADATA_KEPT_MAX:
                self._metadata.clear()
            # Of an open ledger, too: a reader whose replicas fail reads it anew.
            self._metadata[ledger_id] = found
        return found

    async def is_named_so(self, client: LedgerClient, bookie: str) -> bool:
        now_s = trio.current_time()
        found, until_s = self._named_so.get(bookie, (False, 0.0))
        if now_s >= until_s:
            try:
                host, port = await client.bookies.address(bookie)
            except LedgerError:
                return False  # whoever reads asks for itself
            found = bookie == f"{host}:{port}"
            self._named_so[bookie] = found, now_s + NAMED_SO_S
        return found


_known_of: WeakKeyDictionary[LedgerClient, _Known] = WeakKeyDictionary()


def read_piece(piece: Piece, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a piece, in order, in batches of this schema.

    Raises Truncated (records were deleted while the query ran), RecordFormatError, and what
    reading ledgers raises.
    """
    builder: ArrowBuilder | None = None
    current = -1
    fetched = kept(piece.cluster).iterate(_entries, _size_of, WAITING_BYTES, piece)
    try:
        for number, entries in fetched:
            each = piece.ranges[number]
            if builder is None or piece.ranges[current].stream != each.stream:
                if builder is not None:
                    yield from builder.finish()
                builder = ArrowBuilder(schema, each.name, each.partition, piece.rows_per_batch)
            current = number
            for entry in entries:
                yield from _rows(each, entry, piece.bounds, builder)
        if builder is not None:
            yield from builder.finish()
    finally:
        fetched.close()


def _rows(
    each: PieceRange, entry: Entry, bounds: Bounds, builder: ArrowBuilder
) -> Iterator[pa.RecordBatch]:
    entry_id = entry.entry_id
    try:
        batch = decode(
            entry.payload,
            segment=each.segment,
            entry=entry_id,
            base_sequence=each.first_sequence,
        )
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
        yield from builder.add(batch, append_time_ms)
    except RecordFormatError as error:
        raise RecordFormatError(
            error.offset,
            f"entry {entry_id} of segment {each.segment} of stream {each.stream!r} (ledger "
            f"{each.ledger_id}): {error.cause}",
        ) from None


def _append_time_ms(each: PieceRange, batch: RecordBatch) -> int:
    if batch.header.is_sequence_in_segment and each.committed_ms >= 0:
        return each.committed_ms
    return batch.append_time_ms


def _size_of(fetched: tuple[int, list[Entry]]) -> int:
    return sum(len(entry.payload) for entry in fetched[1])


async def _entries(client: LedgerClient, piece: Piece) -> AsyncIterator[tuple[int, list[Entry]]]:
    """The entries of all ranges, with the number of their range. On the loop."""
    for bookie in piece.named_so:
        client.addresses.note_named_so(bookie, True)
    for number, each in enumerate(piece.ranges):
        reader = client.reader_of(
            metadata_format.decode(each.ledger_id, each.metadata), rotation=each.rotation
        )
        # Whoever planned the piece knew that these are confirmed.
        reader.note_confirmed(each.last_entry)
        reader.read_ahead_bytes = READ_AHEAD_BYTES
        seen = each.first_entry
        try:
            async with reader, aclosing(reader.entries(each.first_entry, each.last_entry)) as lists:
                async for entries in lists:
                    seen = entries[-1].entry_id + 1
                    yield number, entries
        except (NoSuchLedger, NoSuchEntry) as error:
            if piece.is_loss_error:
                await _explain(client, each, seen, error)
                raise
            if await _is_elsewhere(client, each, reader.metadata):
                raise
            _log.warning(
                "stream=%s: entries %d..%d of segment %d are gone and were not read: %s",
                each.stream, seen, each.last_entry, each.segment, error,
            )  # fmt: skip


async def _is_elsewhere(client: LedgerClient, each: PieceRange, known: LedgerMetadata) -> bool:
    """Whether the entries may be on bookies that whoever found none did not know of.

    Raises MetadataUnavailable: doubt is no reason to leave them out.
    """
    try:
        return (await client.ledger_metadata(each.ledger_id)).fragments != known.fragments
    except NoSuchLedger:
        return False


async def _explain(client: LedgerClient, each: PieceRange, entry: int, error: Any) -> None:
    """Raises a better error than `error` if the stream's metadata tells what happened."""
    namespace, _, name = each.stream.partition("/")
    try:
        stream, _ = await StreamStore(client.store).read_stream(namespace, name)
    except MetadataUnavailable as unavailable:
        _log.info("stream=%s: nobody can tell why entries are gone: %s", each.stream, unavailable)
        return
    if stream.is_deleted:
        raise NoSuchStream(f"stream {each.stream!r} was deleted while it was read") from error
    at = Position(each.segment, entry, 0)
    if at < stream.truncated_to:
        raise Truncated(each.stream, at, stream.first_available) from error
