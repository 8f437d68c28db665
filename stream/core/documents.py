"""Small JSON documents of the metadata store: one kind, one version, bounded, nothing unknown.

Unknown fields are refused rather than lost: a rewrite by an older release would drop them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Final

from ledger.errors import InvalidArgument, MetadataCorrupt

FORMAT_VERSION: Final = 1
DOCUMENT_BYTES_MAX: Final = 1_000_000
"""Below the 1 MiB that a ZooKeeper node takes."""


def dump_document(kind: str, what: str, fields: Mapping[str, object]) -> bytes:
    """JSON of these fields. Raises InvalidArgument if it is too large."""
    document = {**fields, "kind": kind, "version": FORMAT_VERSION}
    data = json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
    if len(data) > DOCUMENT_BYTES_MAX:
        raise InvalidArgument(f"{what} would be {len(data)} bytes, limit {DOCUMENT_BYTES_MAX}")
    return data


def load_document(kind: str, what: str, names: Collection[str], data: bytes) -> dict[str, object]:
    """The fields, all of `names` and no others. Raises MetadataCorrupt."""
    if len(data) > DOCUMENT_BYTES_MAX:
        raise MetadataCorrupt(f"{what}: {len(data)} bytes, limit {DOCUMENT_BYTES_MAX}")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MetadataCorrupt(f"{what} is not JSON: {error}") from None
    if not isinstance(document, dict) or document.pop("kind", None) != kind:
        raise MetadataCorrupt(f"{what} is not a {kind}")
    version = document.pop("version", None)
    if version != FORMAT_VERSION:
        raise MetadataCorrupt(
            f"{what} has version {version!r}, this release reads {FORMAT_VERSION}"
        )
    if document.keys() != set(names):
        differing = sorted(document.keys() ^ set(names))
        raise MetadataCorrupt(f"{what}: missing or unknown fields {differing[:5]}")
    return document


def whole(value: object) -> int:
    """A whole number of 64 bits, 0 or more. Raises ValueError."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r} is not a whole number from 0 to 2^63-1")
    return value


def word(value: object) -> str:
    """Text. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text")  # noqa: TRY004 - as for numbers
    return value
