"""How far a position is behind the end of a stream: in records, in stored bytes, in seconds.

Reads metadata and at most two ledgers; never fences, never reads past the confirmed end.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledger.client import LedgerClient
from ledger.errors import NoSuchLedger
from stream.core.entry.format import EntryHeader, read_header
from stream.core.metadata.segments import Run, Segment
from stream.core.metadata.streams import StreamMetadata
from stream.core.position import Position
from stream.errors import NoSuchStream
from stream.store.pages import PageLost, PageStore
from stream.store.streams import StreamStore


@dataclass(frozen=True, slots=True)
class CursorLag:
    """The distance between a cursor and the end of its stream.

    `records` are those not handled. `bytes` are their stored size; an entry handled in part counts
    as a whole. `seconds` is the age of the first of them by the local clock, 0.0 if there is none,
    or if it is stamped ahead of that clock (`ledgerstream retention explain` says so). Truncated
    records no longer count.
    """

    records: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Reach:
    """The end of a segment as it is now."""

    entries: int
    next_sequence: int
    nbytes: int


async def measure_lag(
    client: LedgerClient, stream: StreamMetadata, position: Position, now_ms: int
) -> CursorLag:
    """Returns the lag of `position`. Raises NoSuchLedger if the stream was truncated meanwhile."""
    at, first, following, nbytes = await PageStore(client.store).resolve(
        stream, lambda known: _behind(known, position)
    )
    if first is None:
        return CursorLag(0, 0, 0.0)
    reaches = {first.number: await _reach(client, first)}
    last = stream.segments[-1]
    if last.number not in reaches:
        reaches[last.number] = await _reach(client, last)
        nbytes += reaches[last.number].nbytes
    reach = reaches[first.number]
    entry = at.entry if at.segment == first.number else 0
    slot = at.slot if at.segment == first.number else 0
    end_sequence = reaches[last.number].next_sequence
    if entry >= reach.entries:
        # The first segment is handled; the lag begins with the next one.
        seconds = 0.0
        if end_sequence > reach.next_sequence:
            assert following is not None, "records without a segment"
            first_header, _ = await _read_entry_header(client, following, 0)
            seconds = _age_s(following, first_header, now_ms)
        return CursorLag(max(0, end_sequence - reach.next_sequence), nbytes, seconds)
    header, bytes_before = await _read_entry_header(client, first, entry)
    if slot >= header.count:  # behind the last record of its entry
        return await measure_lag(client, stream, Position(first.number, entry + 1, 0), now_ms)
    return CursorLag(
        records=max(0, end_sequence - first.sequence_of(header) - slot),
        bytes=nbytes + reach.nbytes - bytes_before,
        seconds=_age_s(first, header, now_ms),
    )


def _behind(
    stream: StreamMetadata, position: Position
) -> tuple[Position, Segment | None, Segment | None, int]:
    """Returns where the lag begins, its first two segments, and the bytes behind the first one
    without those of the last segment."""
    at = max(position, stream.first_available)
    first = stream.segment_at(at)
    if first is None:
        return at, None, None, 0
    number = first.number
    following = stream.first_where(lambda span: span.last_number > number)

    def is_mixed(run: Run) -> bool:
        return run.number <= number < run.last_number

    nbytes = sum(
        part.nbytes
        for span in stream.listed_spans[:-1]
        if span.last_number > number
        for part in stream.pages.split(span, is_mixed)
        if part.number > number
    )
    return at, first, following, nbytes


async def lag_of(
    client: LedgerClient, namespace: str, stream: StreamMetadata, position: Position
) -> CursorLag:
    """Returns the lag in exactly this stream. Raises NoSuchStream if it was deleted, even if its
    name is in use again."""
    store = StreamStore(client.store)
    for is_last in (False, False, True):
        present = await store.read_living_stream(namespace, stream.name)
        if present.created_ms != stream.created_ms:
            raise NoSuchStream(f"stream {stream.name!r} was deleted and created again")
        try:
            return await measure_lag(client, present, position, client.now_ms())
        except (NoSuchLedger, PageLost):
            if is_last:
                raise
            # Retention deleted the segment between the two reads.
    raise AssertionError("the last try returns or raises")


async def _reach(client: LedgerClient, segment: Segment) -> _Reach:
    if not segment.is_open:
        return _Reach(segment.last_entry + 1, segment.next_sequence, segment.nbytes)
    async with client.open_ledger(segment.ledger_id, recover=False) as reader:
        last = await reader.read_last_confirmed()
        if last < 0:
            return _Reach(0, segment.first_sequence, 0)
        entry = (await reader.read(last, last))[0]
    header = read_header(entry.payload)
    return _Reach(last + 1, segment.sequence_of(header) + header.count, entry.length)


async def _read_entry_header(
    client: LedgerClient, segment: Segment, entry_id: int
) -> tuple[EntryHeader, int]:
    """Returns the header of a confirmed entry, and the bytes stored before it in its segment."""
    at = segment.base_entry + entry_id
    async with client.open_ledger(segment.ledger_id, recover=False) as reader:
        if segment.is_open:
            reader.note_confirmed(at)
        entry = (await reader.read(at, at))[0]
    return read_header(entry.payload), entry.length - len(entry.payload) - segment.base_bytes


def _age_s(segment: Segment, header: EntryHeader, now_ms: int) -> float:
    return max(0, now_ms - segment.time_of(header)) / 1000
