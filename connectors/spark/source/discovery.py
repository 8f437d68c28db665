"""Finds the streams of a selection, and the offsets of the positions that options give.

Reads from the metadata store and, to find offsets, from bookies. Keeps no state: all that is known
of a stream is in its `StreamIndex`. Must never fence a writer.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace

from connectors.spark.core.offsets import StreamOffset
from connectors.spark.options.options import Positions, Selection
from connectors.spark.source.data_loss import DataLossLog, LostRange, truncation_reason
from connectors.spark.source.stream_index import StreamIndex
from ledger.client import LedgerClient
from ledger.errors import InvalidArgument
from ledger.metastore.base import Node
from ledger.runtime.concurrency import map_bounded
from stream.core.metadata.format import decode_stream
from stream.core.metadata.streams import StreamMetadata
from stream.core.position import EARLIEST, LATEST, FromEnd, FromSequence, Position, Start, Truncated
from stream.core.stream_patterns import StreamPatterns
from stream.errors import IsPartitioned, NoSuchStream
from stream.reading.seek import find
from stream.reading.selected_streams import find_streams
from stream.scope import NamespaceScope
from stream.store.streams import StreamStore


@dataclass(frozen=True, slots=True)
class SelectedStreams:
    """The streams of a selection: the names of those that exist, and the errors of the others.

    Names are full names of streams and partitions.
    """

    names: list[str]
    missing: dict[str, NoSuchStream]

    def check(self, may_be_gone: Container[str] = ()) -> None:
        """Raises NoSuchStream if a named stream is missing and not in `may_be_gone`."""
        for name, error in self.missing.items():
            if name not in may_be_gone and f"{name}#0" not in may_be_gone:
                raise error


async def discover(client: LedgerClient, selection: Selection) -> SelectedStreams:
    """Returns the streams of a selection that exist now. Raises NoSuchNamespace."""
    found: dict[str, None] = {}
    missing: dict[str, NoSuchStream] = {}
    for name, patterns in selection.by_namespace().items():
        scope = NamespaceScope(client, StreamStore(client.store), name)
        for selected in (*patterns.names, *patterns.patterns):
            try:
                streams = await find_streams(scope, StreamPatterns(selected))
            except NoSuchStream as error:
                await scope.policy()  # if the namespace is missing, that is the better error
                missing[f"{name}/{selected}"] = error
            else:
                found |= {f"{name}/{stream}": None for stream in streams}
    return SelectedStreams(list(found), missing)


def is_selected(selection: Selection, name: str) -> bool:
    """Returns whether a selection includes the stream of this full name, should it exist."""
    namespace, _, stream = name.partition("/")
    patterns = selection.by_namespace().get(namespace)
    return patterns is not None and bool(patterns.select([stream]))


async def read_metadata(client: LedgerClient, name: str) -> StreamMetadata | None:
    """Returns the current metadata of the stream of this full name; None if it does not exist."""
    namespace, _, stream = name.partition("/")
    try:
        return await StreamStore(client.store).read_living_stream(namespace, stream)
    except (NoSuchStream, IsPartitioned):
        return None


def decode_live(name: str, node: Node) -> StreamMetadata | None:
    """Returns the stream, or None if it is deleted or a partitioned stream has its name.

    Partitions have names of their own.
    """
    try:
        stream = decode_stream(name, node.data)
    except IsPartitioned:
        return None
    return None if stream.is_deleted else stream


async def open_streams(client: LedgerClient, selection: Selection) -> dict[str, StreamIndex]:
    """Returns an index of each selected stream, up to its current end.

    Raises NoSuchStream, NoSuchNamespace, and what reading ledgers raises.
    """

    async def open_one(name: str) -> StreamIndex | None:
        metadata = await read_metadata(client, name)
        if metadata is None:
            return None  # it was deleted just now
        index = StreamIndex(client, name, metadata)
        await index.read_end()
        return index

    found = await discover(client, selection)
    found.check()
    opened = await map_bounded(found.names, open_one)
    return {index.name: index for index in opened if index is not None}


async def starting_offset(
    index: StreamIndex, positions: Positions, losses: DataLossLog
) -> StreamOffset:
    """Returns the offset where reading a stream begins.

    Raises InvalidArgument for a position after the end, DataLoss for a truncated one,
    NoSuchCursor.
    """
    start = positions.of(index.name)
    try:
        found = await offset_at(index, start)
    except Truncated:
        found = await index.first()
        first = start.sequence if isinstance(start, FromSequence) else found.sequence
        behind = found.sequence if isinstance(start, FromSequence) else None
        reason = (
            f"option startingPosition is {_text(start)}; {await truncation_reason(index, found)}"
        )
        losses.record(LostRange(index.name, found.created_ms, first, behind, reason))
    return replace(found, begin=found.sequence)


async def ending_offset(index: StreamIndex, positions: Positions) -> StreamOffset:
    """Returns the offset of the first record that is not read; never after the current end.

    Raises InvalidArgument for a position after the end. For a truncated position this is the
    first available record, so that nothing is read.
    """
    try:
        return await offset_at(index, positions.of(index.name))
    except Truncated:
        return await index.first()


async def offset_at(index: StreamIndex, start: Start) -> StreamOffset:
    """Returns the offset of a position. Raises Truncated, InvalidArgument, NoSuchCursor."""
    end = index.end
    if start is LATEST:
        return end
    if start is EARLIEST:
        return await index.first()
    if isinstance(start, FromEnd):
        # Counted from the end as known here: appends move the end all the time.
        first = await index.first()
        wanted = await index.sequence_before(end, start.records)
        return first if wanted <= first.sequence else await index.at_sequence(wanted)
    position = await find(index.client, index.metadata, start, index.namespace)
    found = await index.at(position)
    is_behind = isinstance(start, FromSequence) and start.sequence > found.sequence
    if isinstance(start, Position) and found.sequence == end.sequence:
        stream = index.metadata
        is_next = stream.open_segment is None and start == (stream.next_segment, 0, 0)
        is_behind = start > end.position and not is_next
    if is_behind:
        raise InvalidArgument(
            f"stream {index.name!r} ends at {end.position} (sequence {end.sequence}); "
            f"{_text(start)} is after that, and nothing can be read there"
        )
    return found


def _text(start: Start) -> str:
    return str(start) if isinstance(start, Position) else repr(start)
