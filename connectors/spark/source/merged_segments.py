"""Finds a segment again that was merged after a query has read where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stream.core.position import Position
from stream.errors import NoSuchStream

if TYPE_CHECKING:
    from ledger.client import LedgerClient
    from stream.core.metadata.segments import Segment


async def merged_since(
    client: LedgerClient, name: str, number: int, ledger_id: int, made_on: int
) -> Segment | None:
    """Returns segment `number` of the stream "ns/clicks" as it is now, if its entries are not on
    this ledger any more; None if nothing else is known of it. `made_on` identifies the segment.

    Raises PageLost, MetadataUnavailable.
    """
    from stream.store.streams import StreamStore  # tasks seldom need it

    namespace, _, stream = name.partition("/")
    streams = StreamStore(client.store)
    try:
        present, _ = await streams.read_stream(namespace, stream)
    except NoSuchStream:
        return None
    place = Position(number, 0, 0)
    found = await streams.pages.resolve(present, lambda known: known.segment_at(place))
    if found is None or found.number != number or made_on_of(found) != made_on:
        return None
    return None if found.ledger_id == ledger_id else found


def made_on_of(segment: Segment) -> int:
    """Returns the ledger that the segment was written to, which identifies it forever."""
    return segment.made_on if segment.is_merged else segment.ledger_id
