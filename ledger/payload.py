"""What may be the payload of an entry."""

from __future__ import annotations

from ledger.core.entry import DIGEST_BYTES
from ledger.core.entry import HEADER_BYTES as ENTRY_HEADER_BYTES
from ledger.errors import InvalidArgument
from ledger.wire.messages import FRAME_BYTES_MAX, Buffer

ENTRY_PAYLOAD_BYTES_MAX = FRAME_BYTES_MAX - 500
"""Largest payload of one entry: a frame less its headers (facts section 1)."""

ADD_START_BYTES = 28 + ENTRY_HEADER_BYTES
"""Of an add's frame before its digest: length, packet header and key, and the entry's header."""
FRAME_ROOM_BYTES = ADD_START_BYTES + max(DIGEST_BYTES.values())
"""What a frame needs before its payload, whatever the digest (`LedgerWriter.append_frame_nowait`).
"""


def as_bytes(payload: Buffer) -> memoryview:
    """Anything else than bytes, counted in bytes. Raises InvalidArgument."""
    try:
        return memoryview(payload).cast("B")
    except TypeError as error:
        raise InvalidArgument(
            f"a payload must be bytes or a contiguous buffer, not {type(payload).__name__}: {error}"
        ) from error


def check_size(size: int) -> None:
    """Raises InvalidArgument for more bytes than an entry can hold."""
    if size > ENTRY_PAYLOAD_BYTES_MAX:
        raise InvalidArgument(f"an entry of {size} bytes; the largest is {ENTRY_PAYLOAD_BYTES_MAX}")
