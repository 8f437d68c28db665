"""The JSON of stream and namespace metadata; bounded, and strict when it is decoded.

Unknown fields are rejected rather than lost: a rewrite by an older release would drop them.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any, Final

from ledger.errors import LedgerError, MetadataCorrupt
from stream.core.metadata.documents import (
    FORMAT_VERSION,
    PAGED_VERSION,
    dump_document,
    read_document,
    text_value,
    whole_number,
)
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.page_format import (
    SEGMENT_COLUMNS,
    pages_document,
    read_pages,
    segment_row,
    segments,
)
from stream.core.metadata.streams import Interrupted, ProducerState, StreamMetadata
from stream.core.position import Position
from stream.errors import IsPartitioned

_LATER_SETTINGS: Final = ("placement_policy", "placement_min", "placement_enforce")
_NAMESPACE_DEFAULTS: Final = {field.name: field.default for field in fields(NamespaceMetadata)}
_KEPT_MAX, _KEPT_BYTES_MAX, _KEPT_ROWS_MAX = 64, 64 * 1024, 1000
"""Decoded streams that are kept, and the largest one: a reader reads its stream at each segment
that it enters, a query at each micro-batch, and mostly it has not changed."""
_RESERVE_BYTES: Final = 256
"""Free bytes with which a document that is full can still be truncated and deleted."""


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
        "segment_columns": SEGMENT_COLUMNS,
        "segments": [segment_row(segment) for segment in stream.segments],
    }
    version = FORMAT_VERSION
    if stream.pages.folder:
        document["pages"], version = pages_document(stream.pages), PAGED_VERSION
    else:
        del document["pages"]
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
        reserve_bytes=0 if stream.is_deleted else _RESERVE_BYTES,
        version=version,
    )


def decode_stream(name: str, data: bytes) -> StreamMetadata:
    """Returns the stream in these bytes. Raises MetadataCorrupt; IsPartitioned."""
    if len(data) > _KEPT_BYTES_MAX:
        return _decode(name, data)
    try:
        return _decode_kept(name, data)
    except _NotKept as large:
        return large.stream


def forget_streams() -> None:
    """Forgets decoded streams, as a new process would not know them."""
    _decode_kept.cache_clear()


class _NotKept(Exception):
    """A stream that is too large to be kept, though its document is small."""

    def __init__(self, stream: StreamMetadata) -> None:
        super().__init__(stream.name)
        self.stream = stream


@lru_cache(_KEPT_MAX)
def _decode_kept(name: str, data: bytes) -> StreamMetadata:
    stream = _decode(name, data)
    pages = stream.pages
    runs = sum(map(len, pages.levels)) + len(pages.replaced) + len(pages.marks)
    if len(stream.segments) + len(stream.garbage) + len(stream.producers) + runs > _KEPT_ROWS_MAX:
        raise _NotKept(stream)
    return stream


def _decode(name: str, data: bytes) -> StreamMetadata:
    what = _what("stream", name)
    document = _load(data, "stream", what)
    if document.get("partitions") is not None:
        return _tombstone(name, document)
    try:
        columns = document.pop("segment_columns")
        document["segments"] = segments(columns, document["segments"])
        if "pages" in document:
            document["pages"] = read_pages(document["pages"])
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
