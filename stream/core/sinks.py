"""Sinks commit batches of ledgers that tasks wrote; the ledgers become segments of streams.

Pure. The node of a sink is the truth of "(sink, batch) is committed": it changes in one transaction
with all streams of the batch (stream/sinks/commit.py). Must never admit a batch twice.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

from ledger.core.bounded_json import parse_json
from ledger.errors import InvalidArgument, MetadataCorrupt
from stream.core.entry.format import RECORDS_PER_ENTRY_MAX
from stream.core.metadata.documents import dump_document, load_document, text_value, whole_number
from stream.core.metadata.streams import Interrupted, Segment, SegmentEnd, StreamMetadata
from stream.core.names import check_name
from stream.core.sink_owner import SinkOwner, owner_document, read_owner
from stream.errors import StreamBusy

STREAMS_REMEMBERED_MAX: Final = 1000
"""Streams of its last batch that the node of a sink lists one by one."""

_TAG_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class SinkTag:
    """A tag in the custom metadata of a ledger: for which batch of which sink it was made.

    Without a sink, a batch is committed once because its ledgers are. `attempt` names the task that
    made it, for people.
    """

    sink_id: str | None = None
    batch_id: int | None = None
    attempt: str = ""

    def encode(self) -> bytes:
        document = {"sink": self.sink_id, "batch": self.batch_id, "attempt": self.attempt}
        data = json.dumps(document, separators=(",", ":")).encode()
        if len(data) > _TAG_BYTES_MAX:
            raise InvalidArgument(f"the tag of a sink's ledger has {len(data)} bytes: shorten it")
        return data

    @classmethod
    def decode(cls, data: bytes) -> SinkTag:
        """Parses a tag. An unreadable tag says nothing: its ledger belongs to no sink."""
        try:
            document = parse_json(data)
            sink, batch = document["sink"], document["batch"]
            if sink is None or batch is None:
                return cls(attempt=text_value(document["attempt"]))
            return cls(text_value(sink), whole_number(batch), text_value(document["attempt"]))
        except (ValueError, KeyError, TypeError):
            return cls()


@dataclass(frozen=True, slots=True)
class SinkLedger:
    """A closed ledger that a task wrote for a stream; `end` holds the facts as the task knows them.

    Its entries count sequences from the begin of their segment (FLAG_SEQUENCE_IN_SEGMENT).
    """

    namespace: str
    stream: str
    ledger_id: int
    end: SegmentEnd

    def check(self) -> None:
        """Raises InvalidArgument for facts that no ledger can have."""
        end = self.end
        entries = end.last_entry + 1
        if entries < 0 or not entries <= end.records <= entries * RECORDS_PER_ENTRY_MAX:
            raise InvalidArgument(
                f"ledger {self.ledger_id} for {self.namespace}/{self.stream}: {end.records} "
                f"records in {entries} entries"
            )


@dataclass(frozen=True, slots=True)
class CommittedRange:
    """What one batch added to one stream: `segments` from number `first_segment` on, `records` from
    sequence `first_sequence` on, `nbytes` of payload."""

    stream: str
    """The stream with its namespace: "demo/clicks"."""
    first_segment: int
    segments: int
    first_sequence: int
    records: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkMetadata:
    """A sink: its last batch. `streams` are the first of the `stream_count` streams it was
    committed to; `records` and `nbytes` are of all of them. `origin` names what numbers the
    batches, "" if unknown; `owner` is its query, if one is known (order: sink_order.py)."""

    sink_id: str
    batch_id: int
    committed_ms: int
    streams: tuple[CommittedRange, ...] = ()
    stream_count: int = 0
    records: int = 0
    nbytes: int = 0
    origin: str = ""
    owner: SinkOwner | None = None

    def is_committed(self, batch_id: int) -> bool:
        """Whether this batch was committed; those before the last one were, too."""
        return batch_id <= self.batch_id


def check_batch(sink_id: str | None, batch_id: int | None) -> None:
    """Raises InvalidArgument unless both are given, and legal, or none of them."""
    if (sink_id is None) != (batch_id is None):
        raise InvalidArgument(
            f"sink {sink_id!r}, batch {batch_id}: give both, or none of them for a batch that is "
            f"committed once by its ledgers alone"
        )
    if sink_id is not None:
        check_name(sink_id, "sink")
    if batch_id is not None and not (type(batch_id) is int and 0 <= batch_id < 1 << 63):
        raise InvalidArgument(f"batch id {batch_id!r}: it must be a whole number from 0 to 2^63-1")


def committed_now(
    sink_id: str,
    batch_id: int,
    streams: Sequence[CommittedRange],
    now_ms: int,
    origin: str = "",
    owner: SinkOwner | None = None,
) -> SinkMetadata:
    """Returns the sink after it committed this batch to these streams."""
    return SinkMetadata(
        sink_id=sink_id,
        batch_id=batch_id,
        committed_ms=now_ms,
        streams=tuple(streams[:STREAMS_REMEMBERED_MAX]),
        stream_count=len(streams),
        records=sum(share.records for share in streams),
        nbytes=sum(share.nbytes for share in streams),
        origin=origin,
        owner=owner,
    )


# Ledgers of a batch


def by_stream(ledgers: Sequence[SinkLedger]) -> dict[tuple[str, str], list[SinkLedger]]:
    """Returns the streams that receive records, each with its ledgers. Raises InvalidArgument."""
    targets: dict[tuple[str, str], list[SinkLedger]] = {}
    seen: set[int] = set()
    for ledger in ledgers:
        ledger.check()
        if ledger.ledger_id in seen:
            raise InvalidArgument(f"ledger {ledger.ledger_id} is named twice")
        seen.add(ledger.ledger_id)
        if ledger.end.records > 0:
            targets.setdefault((ledger.namespace, ledger.stream), []).append(ledger)
    return targets


def are_all_committed(
    streams: Sequence[StreamMetadata], targets: Mapping[tuple[str, str], list[SinkLedger]]
) -> bool:
    """Whether the streams have every one of these ledgers, of which there is at least one. Raises
    PagesNeeded."""
    named = [
        stream.names(ledger.ledger_id)
        for stream, ledgers in zip(streams, targets.values(), strict=True)
        for ledger in ledgers
    ]
    return bool(named) and all(named)


# Changes of a stream


def interrupted(stream: StreamMetadata, end: SegmentEnd, now_ms: int) -> StreamMetadata:
    """Returns the stream after its open segment ended here, because a batch is committed behind it.

    Its writer stays the owner and continues in a segment of its own when it notices.
    """
    segment = stream.open_segment
    assert segment is not None, f"stream {stream.name!r} has no open segment"
    sealed = stream.sealed(stream.epoch, end, now_ms)
    return replace(sealed, interrupted=Interrupted(segment.ledger_id, end.last_entry))


def committed(
    stream: StreamMetadata, ends: Sequence[tuple[int, SegmentEnd]], now_ms: int
) -> StreamMetadata:
    """Returns the stream with whole closed ledgers as sealed segments, in this order; those without
    records are left out.

    Their append time is the time of the commit: it never goes back within a stream, and says when
    the records became readable. Raises StreamBusy while a segment is open, InvalidArgument for a
    ledger that the stream has already: it would be deleted with the first of its segments;
    PagesNeeded.
    """
    if stream.open_segment is not None:
        raise StreamBusy(
            f"stream {stream.name!r}: segment {stream.open_segment.number} is open; end it "
            f"before committing ledgers"
        )
    segments, number, sequence = list(stream.segments), stream.next_segment, stream.next_sequence
    time_ms = max(now_ms, stream.last_time_ms)
    known = set(stream.ledgers())
    for ledger_id, end in ends:
        if end.records <= 0:
            continue
        if ledger_id in known or stream.segment_on(ledger_id) is not None:
            raise InvalidArgument(
                f"stream {stream.name!r} has ledger {ledger_id} already: each batch must have "
                f"ledgers of its own"
            )
        known.add(ledger_id)
        timed = replace(end, first_time_ms=time_ms, last_time_ms=time_ms, producers=())
        fresh = Segment(number, ledger_id, sequence, now_ms).sealed(timed, now_ms)
        segments.append(fresh)
        number, sequence = number + 1, fresh.next_sequence
    return replace(stream, segments=tuple(segments), next_segment=number, next_sequence=sequence)


def added_range(
    namespace: str, before: StreamMetadata, ends: Sequence[tuple[int, SegmentEnd]]
) -> CommittedRange:
    """Returns what `committed` adds to this stream."""
    full = [end for _, end in ends if end.records > 0]
    return CommittedRange(
        stream=f"{namespace}/{before.name}",
        first_segment=before.next_segment,
        segments=len(full),
        first_sequence=before.next_sequence,
        records=sum(end.records for end in full),
        nbytes=sum(end.nbytes for end in full),
    )


def range_in_stream(
    namespace: str, stream: StreamMetadata, ledger_ids: Collection[int]
) -> CommittedRange | None:
    """Returns the range of these ledgers in the stream, which are adjacent there; None if there are
    none. Raises PagesNeeded."""
    found = [stream.segment_on(ledger_id) for ledger_id in ledger_ids]
    there = sorted((s for s in found if s is not None), key=lambda segment: segment.number)
    if not there:
        return None
    return CommittedRange(
        stream=f"{namespace}/{stream.name}",
        first_segment=there[0].number,
        segments=len(there),
        first_sequence=there[0].first_sequence,
        records=sum(segment.records for segment in there),
        nbytes=sum(segment.nbytes for segment in there),
    )


# Bytes

_FIELDS: Final = tuple(field.name for field in fields(SinkMetadata) if field.name != "owner")
_SHARE_FIELDS: Final = tuple(field.name for field in fields(CommittedRange))


def encode_sink(sink: SinkMetadata) -> bytes:
    """Returns the JSON of a sink's node."""
    document: Mapping[str, object] = {
        name: getattr(sink, name) for name in _FIELDS if name != "streams"
    }
    rows = [[getattr(share, name) for name in _SHARE_FIELDS] for share in sink.streams]
    document = {**document, "streams": rows}
    if sink.owner is not None:
        document = {**document, "owner": owner_document(sink.owner)}
    return dump_document("sink", f"metadata of sink {sink.sink_id!r}", document)


def decode_sink(sink_id: str, data: bytes) -> SinkMetadata:
    """Returns the sink in these bytes. Raises MetadataCorrupt."""
    what = f"metadata of sink {sink_id!r}"
    document = load_document("sink", what, _FIELDS, data, optional=("owner",))
    try:
        if document["sink_id"] != sink_id:
            raise ValueError(f"it is the metadata of {document['sink_id']!r}")
        rows = document["streams"]
        if not isinstance(rows, list) or len(rows) > STREAMS_REMEMBERED_MAX:
            raise ValueError("streams is not a short list")
        shares = []
        for stream, *numbers in rows:
            if len(numbers) != len(_SHARE_FIELDS) - 1:
                raise ValueError(f"a stream has {len(numbers)} numbers")
            shares.append(CommittedRange(text_value(stream), *map(whole_number, numbers)))
        owner = document.get("owner")
        return SinkMetadata(
            sink_id=sink_id,
            batch_id=whole_number(document["batch_id"]),
            committed_ms=whole_number(document["committed_ms"]),
            streams=tuple(shares),
            stream_count=whole_number(document["stream_count"]),
            records=whole_number(document["records"]),
            nbytes=whole_number(document["nbytes"]),
            origin=text_value(document["origin"]),
            owner=None if owner is None else read_owner(owner, STREAMS_REMEMBERED_MAX),
        )
    except (ValueError, TypeError) as error:
        raise MetadataCorrupt(f"{what}: {error}") from None
