"""Small JSON documents of the metadata store: each has a kind and a version, and is bounded.

Large ones, of streams with many segments, are deflated (RFC 1950: the first byte of JSON is never
that of zlib). Unknown fields are rejected rather than lost: a rewrite by an older release would
drop them.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Mapping
from typing import Any, Final

from ledger.core.bounded_json import CONTAINERS_MAX, ELEMENTS_MAX, parse_json
from ledger.errors import InvalidArgument, MetadataCorrupt

FORMAT_VERSION: Final = 1
PAGED_VERSION: Final = 2
"""Of the document of a stream whose older segments are in pages."""
DOCUMENT_BYTES_MAX: Final = 1_000_000
"""Size as stored: below the 1 MiB limit of a ZooKeeper node."""
JSON_BYTES_MAX: Final = 16_000_000
"""A reader inflates no more than this, and parses no more than `ledger.core.bounded_json` says."""
DEFLATED_FROM_BYTES: Final = 64 * 1024
_NOT_READ: Final = (
    f"; it would be more than {JSON_BYTES_MAX} bytes of JSON, {ELEMENTS_MAX} elements or "
    f"{CONTAINERS_MAX} lists and objects, which no reader takes"
)
_ZLIB_BEGIN: Final = 0x78
_ZLIB_LEVEL: Final = 1
"""Higher levels take several times as long and save a tenth."""


def dump_document(
    kind: str,
    what: str,
    fields: Mapping[str, object],
    *,
    cure: str = "",
    reserve_bytes: int = 0,
    version: int = FORMAT_VERSION,
) -> bytes:
    """Returns the JSON of these fields, deflated if it is long, or of a later version.

    Raises InvalidArgument, whose message ends in `cure`, if less than `reserve_bytes` would be
    left.
    """
    limit = DOCUMENT_BYTES_MAX - reserve_bytes
    document = {**fields, "kind": kind, "version": version}
    data = json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
    is_legal = (
        len(data) <= JSON_BYTES_MAX
        and data.count(b",") < ELEMENTS_MAX
        and data.count(b"[") + data.count(b"{") <= CONTAINERS_MAX
    )
    if len(data) >= DEFLATED_FROM_BYTES or version > FORMAT_VERSION:
        data = deflated(data)
    if len(data) > limit or not is_legal:
        raise InvalidArgument(
            f"{what} would be {len(data)} bytes, limit {limit}{'' if is_legal else _NOT_READ}"
            f"{cure and f': {cure}'}"
        )
    return data


def deflated(data: bytes) -> bytes:
    """Returns JSON as it is stored if it is to be small."""
    return zlib.compress(data, _ZLIB_LEVEL)


def read_document(what: str, data: bytes) -> tuple[str, dict[str, Any]]:
    """Returns the kind of the document and all its other fields. Raises MetadataCorrupt."""
    if len(data) > DOCUMENT_BYTES_MAX:
        raise MetadataCorrupt(f"{what}: {len(data)} bytes, limit {DOCUMENT_BYTES_MAX}")
    try:
        document = parse_json(_inflated(what, data))
    except ValueError as error:
        raise MetadataCorrupt(f"{what} cannot be read as JSON: {error}") from None
    kind = document.pop("kind", None) if isinstance(document, dict) else None
    if not isinstance(kind, str):
        raise MetadataCorrupt(f"{what} is not a document of ledgerstream")
    version = document.pop("version", None)
    # What a later version adds is a field that the others do not have.
    newest = PAGED_VERSION if kind == "stream" and "pages" in document else FORMAT_VERSION
    if version != newest or type(version) is not int:
        raise MetadataCorrupt(f"{what} has version {version!r}, this release reads {newest}")
    return kind, document


def _inflated(what: str, data: bytes) -> bytes:
    if data[:1] != bytes([_ZLIB_BEGIN]):
        return data
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(data, JSON_BYTES_MAX)
    except zlib.error as error:
        raise MetadataCorrupt(f"{what} cannot be inflated: {error}") from None
    if not inflater.eof or inflater.unused_data:
        raise MetadataCorrupt(
            f"{what} is cut off, has trailing bytes, or inflates to over {JSON_BYTES_MAX} bytes"
        )
    return text


def load_document(
    kind: str, what: str, names: Collection[str], data: bytes, *, optional: Collection[str] = ()
) -> dict[str, object]:
    """Returns the fields: all of `names`, any of `optional`, and no others. Raises
    MetadataCorrupt."""
    found, document = read_document(what, data)
    if found != kind:
        raise MetadataCorrupt(f"{what} is not a {kind}")
    differing = sorted((document.keys() ^ set(names)) - (document.keys() & set(optional)))
    if differing:
        raise MetadataCorrupt(f"{what}: missing or unknown fields {differing[:5]}")
    return document


def whole_number(value: object, least: int = 0) -> int:
    """Returns a whole number of 64 bits, `least` or more. Raises ValueError."""
    if type(value) is not int or not least <= value < 1 << 63:
        raise ValueError(f"{value!r} is not a whole number from {least} to 2^63-1")
    return value


def text_value(value: object) -> str:
    """Returns a text. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text")  # noqa: TRY004 - as for numbers
    return value
