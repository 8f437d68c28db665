"""Small JSON documents of the metadata store: one kind, one version, bounded.

Unknown fields are refused rather than lost: a rewrite by an older release would drop them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Final

from ledger.errors import InvalidArgument, MetadataCorrupt

FORMAT_VERSION: Final = 1
DOCUMENT_BYTES_MAX: Final = 1_000_000
"""Below the 1 MiB that a ZooKeeper node takes; about 8,000 segments of a stream."""


def dump_document(
    kind: str, what: str, fields: Mapping[str, object], *, cure: str = "", room_bytes: int = 0
) -> bytes:
    """JSON of these fields. Raises InvalidArgument, which ends in `cure`, if it is so large that
    less than `room_bytes` would be left."""
    limit = DOCUMENT_BYTES_MAX - room_bytes
    document = {**fields, "kind": kind, "version": FORMAT_VERSION}
    data = json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
    if len(data) > limit:
        raise InvalidArgument(
            f"{what} would be {len(data)} bytes, limit {limit}{cure and f': {cure}'}"
        )
    return data


def read_document(what: str, data: bytes) -> tuple[str, dict[str, Any]]:
    """Which kind of ours it is, and all its other fields. Raises MetadataCorrupt."""
    if len(data) > DOCUMENT_BYTES_MAX:
        raise MetadataCorrupt(f"{what}: {len(data)} bytes, limit {DOCUMENT_BYTES_MAX}")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MetadataCorrupt(f"{what} is not JSON: {error}") from None
    kind = document.pop("kind", None) if isinstance(document, dict) else None
    if not isinstance(kind, str):
        raise MetadataCorrupt(f"{what} is not ours")
    version = document.pop("version", None)
    if version != FORMAT_VERSION:
        raise MetadataCorrupt(
            f"{what} has version {version!r}, this release reads {FORMAT_VERSION}"
        )
    return kind, document


def load_document(kind: str, what: str, names: Collection[str], data: bytes) -> dict[str, object]:
    """The fields, all of `names` and no others. Raises MetadataCorrupt."""
    found, document = read_document(what, data)
    if found != kind:
        raise MetadataCorrupt(f"{what} is not a {kind}")
    if document.keys() != set(names):
        differing = sorted(document.keys() ^ set(names))
        raise MetadataCorrupt(f"{what}: missing or unknown fields {differing[:5]}")
    return document


def whole(value: object, least: int = 0) -> int:
    """A whole number of 64 bits, `least` or more. Raises ValueError."""
    if type(value) is not int or not least <= value < 1 << 63:
        raise ValueError(f"{value!r} is not a whole number from {least} to 2^63-1")
    return value


def word(value: object) -> str:
    """Text. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text")  # noqa: TRY004 - as for numbers
    return value
