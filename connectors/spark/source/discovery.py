"""Which streams are read, and where in them the places lie that options name.

Asks the metadata store and, for places, bookies. Keeps nothing: what was learned of a stream is in
its `StreamPlaces`. Never fences a writer.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace

from connectors.spark.core.offsets import StreamOffset
from connectors.spark.options.options import Positions, Selection
from connectors.spark.source.data_loss import Loss, LossLog, why_truncated
from connectors.spark.source.stream_offsets import StreamPlaces
from ledger.client import LedgerClient
from ledger.errors import InvalidArgument
from ledger.runtime.concurrency import for_each
from stream.core.metadata.streams import StreamMetadata
from stream.core.position import EARLIEST, LATEST, FromEnd, FromSequence, Position, Start, Truncated
from stream.core.stream_patterns import StreamPatterns
from stream.errors import IsPartitioned, NoSuchStream
from stream.reading.merged_feeds import find_streams
from stream.reading.seek import find
from stream.scope import NamespaceScope
from stream.store.streams import StreamStore


@dataclass(frozen=True, slots=True)
class Discovered:
    """Full names of the streams and partitions that are meant and there, and of those that are
    named and not there, with the error that says so."""

    names: list[str]
    missing: dict[str, NoSuchStream]

    def check(self, may_be_gone: Container[str] = ()) -> None:
        """Raises NoSuchStream if one that is named is missing, and may not be gone."""
        for name, error in self.missing.items():
            if name not in may_be_gone and f"{name}#0" not in may_be_gone:
                raise error


async def discover(client: LedgerClient, selection: Selection) -> Discovered:
    """The streams that are meant, as they are now. Raises NoSuchNamespace."""
    found: dict[str, None] = {}
    missing: dict[str, NoSuchStream] = {}
    for name, patterns in selection.by_namespace().items():
        scope = NamespaceScope(client, StreamStore(client.store), name)
        for word in (*patterns.names, *patterns.patterns):
            try:
                streams = await find_streams(scope, StreamPatterns(word))
            except NoSuchStream as error:
                await scope.policy()  # a namespace that is not there is the better reason
                missing[f"{name}/{word}"] = error
            else:
                found |= {f"{name}/{stream}": None for stream in streams}
    return Discovered(list(found), missing)


def is_meant(selection: Selection, name: str) -> bool:
    """Whether a stream of this full name is one of the selection, if it is there."""
    namespace, _, stream = name.partition("/")
    patterns = selection.by_namespace().get(namespace)
    return patterns is not None and bool(patterns.select([stream]))


async def read_metadata(client: LedgerClient, name: str) -> StreamMetadata | None:
    """The stream of this full name as it is now; None if it is not there (any more)."""
    namespace, _, stream = name.partition("/")
    try:
        return await StreamStore(client.store).read_living_stream(namespace, stream)
    except (NoSuchStream, IsPartitioned):
        return None


async def open_streams(client: LedgerClient, selection: Selection) -> dict[str, StreamPlaces]:
    """The streams that are meant, each known to its end of now.

    Raises NoSuchStream, NoSuchNamespace, and what reading ledgers raises.
    """

    async def open_one(name: str) -> StreamPlaces | None:
        metadata = await read_metadata(client, name)
        if metadata is None:
            return None  # it went a moment ago
        places = StreamPlaces(client, name, metadata)
        await places.look()
        return places

    found = await discover(client, selection)
    found.check()
    opened = await for_each(found.names, open_one)
    return {places.name: places for places in opened if places is not None}


async def starting_offset(
    places: StreamPlaces, positions: Positions, losses: LossLog
) -> StreamOffset:
    """Where reading a stream begins; the offset begins there.

    Raises InvalidArgument for a place behind the end, DataLoss for one that was truncated,
    NoSuchCursor.
    """
    start = positions.of(places.name)
    try:
        found = await place_of(places, start)
    except Truncated:
        found = await places.first()
        first = start.sequence if isinstance(start, FromSequence) else found.sequence
        behind = found.sequence if isinstance(start, FromSequence) else None
        reason = f"option startingPosition is {_text(start)}; {await why_truncated(places, found)}"
        losses.meet(Loss(places.name, found.created_ms, first, behind, reason))
    return replace(found, begin=found.sequence)


async def ending_offset(places: StreamPlaces, positions: Positions) -> StreamOffset:
    """The first record that is not read any more, as known now: nothing that comes later.

    Raises InvalidArgument for a place behind the end. One that was truncated is where the stream
    begins: nothing is read.
    """
    try:
        return await place_of(places, positions.of(places.name))
    except Truncated:
        return await places.first()


async def place_of(places: StreamPlaces, start: Start) -> StreamOffset:
    """The offset of a place in words. Raises Truncated, InvalidArgument, NoSuchCursor."""
    end = places.end
    if start is LATEST:
        return end
    if start is EARLIEST:
        return await places.first()
    if isinstance(start, FromEnd):
        # Of the end as known here: that of the next moment may be so much further.
        first = await places.first()
        wanted = end.sequence - start.records
        return first if wanted <= first.sequence else await places.at_sequence(wanted)
    position = await find(places.client, places.metadata, start, places.namespace)
    found = await places.at(position)
    is_behind = isinstance(start, FromSequence) and start.sequence > found.sequence
    if isinstance(start, Position) and found.sequence == end.sequence:
        stream = places.metadata
        is_next = stream.open_segment is None and start == (stream.next_segment, 0, 0)
        is_behind = start > end.position and not is_next
    if is_behind:
        raise InvalidArgument(
            f"stream {places.name!r} ends at {end.position} (sequence {end.sequence}); "
            f"{_text(start)} is behind that, and nothing can be read there"
        )
    return found


def _text(start: Start) -> str:
    return str(start) if isinstance(start, Position) else repr(start)
