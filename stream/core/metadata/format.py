"""The JSON of stream and namespace metadata; bounded, and strict when it is decoded.

Unknown fields are rejected rather than lost: a rewrite by an older release would drop them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, asdict, fields
from operator import attrgetter
from typing import Any, Final

from ledger.errors import LedgerError, MetadataCorrupt
from stream.core.metadata.documents import dump_document, read_document, text_value, whole_number
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.streams import (
    Interrupted,
    ProducerState,
    Segment,
    SegmentState,
    StreamMetadata,
)
from stream.core.position import Position
from stream.core.retention import TRASH_SEGMENTS_MAX
from stream.errors import IsPartitioned

# Segments are rows, not objects: field names would be most of the bytes.
_SEGMENT_COLUMNS: Final = [field.name for field in fields(Segment)]
_DEFAULTS: Final = {
    field.name: field.default.value if isinstance(field.default, SegmentState) else field.default
    for field in fields(Segment)
    if field.default is not MISSING
}
_COLUMNS_OF: Final = attrgetter(*_SEGMENT_COLUMNS)
_STATE: Final = _SEGMENT_COLUMNS.index("state")
_STATES: Final = {state.value: state for state in SegmentState}
_LATER_SETTINGS: Final = ("placement_policy", "placement_min", "placement_enforce")
_NAMESPACE_DEFAULTS: Final = {field.name: field.default for field in fields(NamespaceMetadata)}
_NUMBER_END: Final = 1 << 63

_MARK_BYTES: Final = 11
"""How much a row grows when its `dropped_ms` changes from -1 to a time of 13 digits."""
_RESERVE_BYTES: Final = 256


def _load(data: bytes, kind: str, what: str) -> dict[str, Any]:
    found, document = read_document(what, data)
    if found != kind:
        if kind != "stream" or found != "partitioned":
            raise MetadataCorrupt(f"{what} is not that of a {kind}")
        if document.get("is_deleted") is not True:
            raise IsPartitioned(str(document.get("name")), document.get("partitions"))
    return document


def encode_stream(stream: StreamMetadata) -> bytes:
    """Returns the JSON of a stream. Raises InvalidArgument if it is too large."""
    document: dict[str, Any] = {
        field.name: getattr(stream, field.name) for field in fields(StreamMetadata)
    }
    document |= {
        "truncated_to": str(stream.truncated_to),
        "producers": {
            producer: [state.producer_id, state.last_sequence, state.segment]
            for producer, state in stream.producers.items()
        },
        "segment_columns": _SEGMENT_COLUMNS,
        "segments": [_row(segment) for segment in stream.segments],
    }
    if not stream.restores:
        del document["restores"]
    if stream.interrupted is None:
        del document["interrupted"]
    else:
        document["interrupted"] = [stream.interrupted.ledger_id, stream.interrupted.last_entry]
    cure = "truncate, set a retention, or roll later (roll_bytes, roll_ms)"
    return dump_document(
        "stream",
        _what("stream", stream.name),
        document,
        cure=cure,
        reserve_bytes=_reserve_bytes(stream),
    )


def _reserve_bytes(stream: StreamMetadata) -> int:
    """Returns the bytes that must stay free so that truncating and deleting never fail for a full
    document.

    Truncated segments are marked with a time, and so is a deleted stream.
    """
    if stream.is_deleted:
        return 0
    marked = sum(segment.dropped_ms >= 0 for segment in stream.segments)
    unmarked = len(stream.segments) - marked
    return _RESERVE_BYTES + _MARK_BYTES * max(0, min(unmarked, TRASH_SEGMENTS_MAX - marked))


def decode_stream(name: str, data: bytes) -> StreamMetadata:
    """Returns the stream in these bytes. Raises MetadataCorrupt; IsPartitioned."""
    what = _what("stream", name)
    document = _load(data, "stream", what)
    if document.get("partitions") is not None:
        return _tombstone(name, document)
    try:
        columns = document.pop("segment_columns")
        document["segments"] = tuple(_segments(columns, document["segments"]))
        document["producers"] = {
            text_value(producer): ProducerState(*map(_whole, row))
            for producer, row in document.get("producers", {}).items()
        }
        _whole(document.get("deleted_ms", -1))
        _whole(document.get("producers_made", 0))
        _whole(document.get("restores", 0))
        document["truncated_to"] = Position.parse(document["truncated_to"])
        document["garbage"] = tuple(_whole(ledger) for ledger in document["garbage"])
        for number in ("created_ms", "epoch", "next_segment", "next_sequence"):
            _whole(document[number])
        if document["prepared"] is not None:
            _whole(document["prepared"])
        document.pop("commits", None)  # written by a release that stored sinks here
        if "interrupted" in document:
            document["interrupted"] = Interrupted(*map(_whole, document["interrupted"]))
        if not all(isinstance(document.get(f, False), bool) for f in ("is_deleted", "is_purged")):
            raise ValueError("is_deleted and is_purged are true or false")
        if document["name"] != name:
            raise ValueError(f"it is the metadata of {document['name']!r}")
        return StreamMetadata(**document)
    except MetadataCorrupt:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, LedgerError) as error:
        raise MetadataCorrupt(f"{what}: {type(error).__name__}: {error}") from None


def _tombstone(name: str, document: dict[str, Any]) -> StreamMetadata:
    """Returns a deleted partitioned stream as a deleted stream: its name may be used again."""
    try:
        return StreamMetadata(
            name=name, created_ms=_whole(document["created_ms"]), epoch=_whole(document["epoch"]),
            is_deleted=True, deleted_ms=_whole(document["deleted_ms"]),
        )  # fmt: skip
    except (KeyError, ValueError) as error:
        raise MetadataCorrupt(f"{_what('stream', name)}: {error}") from None


def _whole(value: object) -> int:
    """Returns a whole number; -1 means "none" or "unknown"."""
    return whole_number(value, -1)


def _segments(columns: list[str], rows: list[list[Any]]) -> Iterator[Segment]:
    """Decodes segments from plain columns, checked by row: a long stream has thousands."""
    width = len(columns)
    if unknown := [column for column in columns if column not in _SEGMENT_COLUMNS]:
        raise ValueError(f"segments have unknown columns {unknown}")
    for row in rows:
        if len(row) != width:
            raise ValueError(f"a segment has {len(row)} columns, not {width}")
        if columns != _SEGMENT_COLUMNS:
            # Columns that an earlier release did not write take their defaults.
            named = _DEFAULTS | dict(zip(columns, row, strict=True))
            row = [named[name] for name in _SEGMENT_COLUMNS]
        state, row[_STATE] = row[_STATE], 0
        for value in row:
            if type(value) is not int or not -1 <= value < _NUMBER_END:
                raise ValueError(f"{value!r} is not a whole number of 64 bits")
        row[_STATE] = _STATES[state]
        yield Segment(*row)


def _row(segment: Segment) -> list[int | str]:
    row = list(_COLUMNS_OF(segment))
    row[_STATE] = segment.state.value
    return row


def _what(kind: str, name: str) -> str:
    return f"metadata of {kind} {name!r}"


def encode_namespace(namespace: NamespaceMetadata) -> bytes:
    """Returns the JSON of a namespace. Settings of a later release are left out while they have
    their default: earlier releases refuse fields that they do not know."""
    document = asdict(namespace)
    for name in _LATER_SETTINGS:
        if document[name] == _NAMESPACE_DEFAULTS[name]:
            del document[name]
    return dump_document("namespace", _what("namespace", namespace.name), document)


def decode_namespace(name: str, data: bytes) -> NamespaceMetadata:
    """Returns the namespace in these bytes. Raises MetadataCorrupt."""
    what = _what("namespace", name)
    document = _load(data, "namespace", what)
    try:
        if document["name"] != name:
            raise ValueError(f"it is the metadata of {document['name']!r}")
        if "retention_cursors" in document:
            document["retention_cursors"] = tuple(document["retention_cursors"])
        return NamespaceMetadata(**document)
    except (KeyError, TypeError, ValueError, LedgerError) as error:
        raise MetadataCorrupt(f"{what}: {error}") from None
