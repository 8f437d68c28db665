"""What may be the payload of an entry."""

from __future__ import annotations

from ledger.errors import InvalidArgument
from ledger.wire.messages import FRAME_BYTES_MAX, Buffer

ENTRY_PAYLOAD_BYTES_MAX = FRAME_BYTES_MAX - 500
"""Largest payload of one entry: a frame less its headers (facts section 1)."""


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
