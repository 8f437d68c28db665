"""Encodes records as the payload of one stream entry: a header and Arrow-like columns.

Hot: the values-only form costs one offset and one pointer per record. The decoder is
core/entry/records.py, the layout is in docs/formats.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import cast

from ledger.errors import InvalidArgument
from stream.core.entry.compression import Compression, deflate
from stream.core.entry.format import (
    BODY_BYTES_MAX,
    FLAG_EVENT_TIME_VALIDITY,
    FLAG_EVENT_TIMES,
    FLAG_HEADER_VALIDITY,
    FLAG_HEADERS,
    FLAG_KEY_VALIDITY,
    FLAG_KEYS,
    FLAG_PRODUCERS_BEFORE,
    FLAG_SEQUENCE_IN_SEGMENT,
    FLAG_VALUE_VALIDITY,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    RECORDS_PER_ENTRY_MAX,
    VERSION,
)
from stream.core.entry.record_columns import HeaderPairs, NullablePairs

Headers = HeaderPairs | Mapping[str, bytes]
"""Headers as applications give them."""


class _Columns:
    """The pieces of a body in order; each buffer begins at a multiple of 8 bytes."""

    __slots__ = ("nbytes", "pieces")

    def __init__(self) -> None:
        # The first piece is reserved for the header, so that one join makes the payload.
        self.pieces: list[bytes] = [b""]
        self.nbytes = 0

    def _align(self) -> None:
        if padding := -self.nbytes % 8:
            self.pieces.append(bytes(padding))
            self.nbytes += padding

    def add_numbers(self, typecode: str, count: int, numbers: Iterable[int]) -> None:
        """Raises struct.error if one does not fit."""
        self._align()
        # Making an array from an iterator costs more than twice as much.
        column = struct.pack(f"<{count}{typecode}", *numbers)
        self.pieces.append(column)
        self.nbytes += len(column)

    def add_validity(self, items: Sequence[object | None]) -> None:
        self._align()
        bits = "".join(["0" if item is None else "1" for item in reversed(items)])
        size = (len(items) + 7) // 8
        self.pieces.append(int(bits, 2).to_bytes(size, "little"))
        self.nbytes += size

    def add_binary(self, items: Sequence[bytes]) -> None:
        try:
            self.add_numbers("i", len(items) + 1, accumulate(map(len, items), initial=0))
        except struct.error:
            raise InvalidArgument("the records of one entry are over 2 GiB") from None
        self._align()
        self.pieces += items
        self.nbytes += sum(map(len, items))

    def add_nullable(self, items: Sequence[bytes | None]) -> bool:
        """Adds items, and their validity if one is None; returns whether one is."""
        try:
            # That there is no None is not checked in advance: that would cost something per item.
            self.add_binary(cast("Sequence[bytes]", items))
        except TypeError:
            if None not in items:
                raise
            self.add_validity(items)
            self.add_binary([b"" if item is None else item for item in items])
            return True
        return False


def encode(
    values: Sequence[bytes | None],
    *,
    first_sequence: int = 0,
    append_time_ms: int = 0,
    keys: Sequence[bytes | None] | None = None,
    event_times: Sequence[int | None] | None = None,
    headers: Sequence[NullablePairs | None] | None = None,
    compression: Compression = Compression.NONE,
    is_sequence_in_segment: bool = False,
    producer_id: int = 0,
    producer_sequence: int = 0,
    has_producers_before: bool = False,
) -> bytes:
    """Returns the payload of one entry with these records.

    `keys`, `event_times` (ms) and `headers`, when given, have one item per value. A value, or a
    header's value, of None is stored as null. Compression is used only where it makes the entry
    smaller. `producer_id` is the producer of all records (0: none), `producer_sequence` the
    sequence of the first one. Raises InvalidArgument for too many records or bytes, or columns of
    different length; CompressionUnavailable.
    """
    count = len(values)
    if not 1 <= count <= RECORDS_PER_ENTRY_MAX:
        raise InvalidArgument(f"an entry holds 1 to {RECORDS_PER_ENTRY_MAX} records, not {count}")
    flags = is_sequence_in_segment * FLAG_SEQUENCE_IN_SEGMENT
    flags |= has_producers_before * FLAG_PRODUCERS_BEFORE
    event_min = event_max = -1
    columns = _Columns()
    flags |= columns.add_nullable(values) * FLAG_VALUE_VALIDITY
    if keys is not None:
        flags |= _add_keys(columns, keys, count)
    if event_times is not None:
        flags |= _add_event_times(columns, event_times, count)
        known = [time for time in event_times if time is not None]
        if known:
            event_min, event_max = min(known), max(known)
    if headers is not None:
        flags |= _add_headers(columns, headers, count)
    return put_together(
        columns.pieces, columns.nbytes, count, flags, compression,
        first_sequence=first_sequence, append_time_ms=append_time_ms,
        event_range_ms=(event_min, event_max),
        producer=(producer_id, producer_sequence),
    )  # fmt: skip


def put_together(
    pieces: list[bytes],
    body_bytes: int,
    count: int,
    flags: int,
    compression: Compression,
    *,
    first_sequence: int,
    append_time_ms: int,
    event_range_ms: tuple[int, int],
    producer: tuple[int, int] = (0, 0),
) -> bytes:
    """Returns the payload of an entry, header and body, compressed where that makes it smaller.

    `pieces` are the columns, in order and aligned, `body_bytes` together; the first piece is empty
    and reserved for the header. `producer` is its id and the sequence of its first record here.
    Raises as `encode`.
    """
    pieces, size = with_header(
        pieces, body_bytes, count, flags, compression,
        first_sequence=first_sequence, append_time_ms=append_time_ms,
        event_range_ms=event_range_ms, producer=producer,
    )  # fmt: skip
    payload = b"".join(pieces)
    if len(payload) != size:
        raise InvalidArgument("values, keys and headers must be bytes (len() must count bytes)")
    return payload


def with_header(
    pieces: list[bytes],
    body_bytes: int,
    count: int,
    flags: int,
    compression: Compression,
    *,
    first_sequence: int,
    append_time_ms: int,
    event_range_ms: tuple[int, int],
    producer: tuple[int, int] = (0, 0),
) -> tuple[list[bytes], int]:
    """Returns the pieces that `put_together` joins, and how many bytes that must be. Changes
    `pieces`."""
    stored_bytes = body_bytes
    if body_bytes > BODY_BYTES_MAX:
        raise InvalidArgument(
            f"{count} records make an entry of {body_bytes} bytes, limit {BODY_BYTES_MAX}"
        )
    if compression is not Compression.NONE:
        deflated = deflate(b"".join(pieces), compression)
        if len(deflated) < body_bytes:
            pieces, stored_bytes = [b"", deflated], len(deflated)
        else:
            compression = Compression.NONE
    pieces[0] = HEADER.pack(
        MAGIC, VERSION, compression, flags, count, HEADER_BYTES, 0, first_sequence,
        append_time_ms, *event_range_ms, *producer, body_bytes, stored_bytes,
    )  # fmt: skip
    return pieces, HEADER_BYTES + stored_bytes


def _check_length(column: Sequence[object], count: int, what: str) -> None:
    if len(column) != count:
        raise InvalidArgument(f"{len(column)} {what} for {count} values")


def _add_keys(columns: _Columns, keys: Sequence[bytes | None], count: int) -> int:
    _check_length(keys, count, "keys")
    if None not in keys:
        columns.add_binary([key for key in keys if key is not None])
        return FLAG_KEYS
    if all(key is None for key in keys):
        return 0
    columns.add_validity(keys)
    columns.add_binary([b"" if key is None else key for key in keys])
    return FLAG_KEYS | FLAG_KEY_VALIDITY


def _add_event_times(columns: _Columns, times: Sequence[int | None], count: int) -> int:
    _check_length(times, count, "event times")
    flags = FLAG_EVENT_TIMES
    if None in times:
        if all(time is None for time in times):
            return 0
        flags |= FLAG_EVENT_TIME_VALIDITY
        columns.add_validity(times)
    try:
        columns.add_numbers("q", count, [0 if time is None else time for time in times])
    except struct.error:
        raise InvalidArgument("an event time does not fit 64 bits; it is ms since 1970") from None
    return flags


def _add_headers(columns: _Columns, headers: Sequence[NullablePairs | None], count: int) -> int:
    _check_length(headers, count, "lists of headers")
    if not any(headers):
        return 0
    ends = accumulate((len(pairs or ()) for pairs in headers), initial=0)
    columns.add_numbers("i", count + 1, ends)
    flat = [pair for pairs in headers if pairs for pair in pairs]
    columns.add_binary([name.encode() for name, _ in flat])
    has_nulls = columns.add_nullable([value for _, value in flat])
    return FLAG_HEADERS | has_nulls * FLAG_HEADER_VALIDITY
