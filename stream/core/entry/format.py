"""The fixed header of a stream entry, and the limits of an entry (docs/formats.md).

It can be read without the columns. The numbers here are stored on disks: they may never change; a
new layout gets a new version. Columns: core/entry/encoder.py and core/entry/records.py.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from stream.core.entry.compression import Buffer, Compression
from stream.errors import RecordFormatError

MAGIC: Final = b"LSEN"
VERSION: Final = 1

# magic, version, compression, flags; count, header bytes, zero; first sequence; append time;
# lowest and highest event time; producer id and sequence; body bytes, stored bytes
HEADER: Final = struct.Struct("<4sBBHIHHqqqqqqII")
HEADER_BYTES: Final = HEADER.size

_STAMP: Final = struct.Struct("<qq")
_STAMP_OFFSET: Final = 16

FLAG_KEYS: Final = 1
FLAG_KEY_VALIDITY: Final = 2
FLAG_EVENT_TIMES: Final = 4
FLAG_EVENT_TIME_VALIDITY: Final = 8
FLAG_HEADERS: Final = 16
FLAG_SEQUENCE_IN_SEGMENT: Final = 32
FLAG_PRODUCERS_BEFORE: Final = 64
FLAG_VALUE_VALIDITY: Final = 128
FLAG_HEADER_VALIDITY: Final = 256
_FLAGS_KNOWN: Final = 511
_FLAGS_NEEDED: Final = (
    (FLAG_KEY_VALIDITY, FLAG_KEYS),
    (FLAG_EVENT_TIME_VALIDITY, FLAG_EVENT_TIMES),
    (FLAG_HEADER_VALIDITY, FLAG_HEADERS),
)
_COMPRESSIONS: Final = tuple(sorted(Compression))

RECORDS_PER_ENTRY_MAX: Final = 65_536
RECORD_BYTES_MAX: Final = 1 << 20
"""Value, key and headers of one record together."""
BODY_BYTES_MAX: Final = 4 << 20
"""Columns of one entry before compression; a reader inflates no more than this."""


@dataclass(slots=True)
class EntryHeader:
    """The header of an entry. Times are ms since the Unix epoch, -1 if there is none.

    Nobody changes one. Readers make one per entry, and a frozen one costs six times as much.
    """

    flags: int
    compression: Compression
    count: int
    header_bytes: int
    first_sequence: int
    append_time_ms: int
    event_time_min_ms: int
    event_time_max_ms: int
    producer_id: int
    producer_sequence: int
    body_bytes: int
    stored_bytes: int

    @property
    def is_sequence_in_segment(self) -> bool:
        """Whether `first_sequence` counts from the begin of the segment, not of the stream."""
        return bool(self.flags & FLAG_SEQUENCE_IN_SEGMENT)

    @property
    def has_event_times(self) -> bool:
        """Whether any record has an event time; if not, the range says nothing."""
        return bool(self.flags & FLAG_EVENT_TIMES)

    @property
    def has_producers_before(self) -> bool:
        """Whether the segment may hold entries of another producer before this one. If not, all
        earlier entries of producers in it are of this producer."""
        return bool(self.flags & FLAG_PRODUCERS_BEFORE)


def read_header(payload: Buffer) -> EntryHeader:
    """Returns the header of a whole entry payload, checked against its size.

    Raises RecordFormatError naming the first wrong field and its offset.
    """
    size = len(payload)
    if size < HEADER_BYTES:
        raise RecordFormatError(size, f"{size} bytes, the header alone is {HEADER_BYTES}")
    (
        magic, version, compression, flags, count, header_bytes, zero, first_sequence,
        append_time_ms, event_min, event_max, producer_id, producer_sequence, body, stored,
    ) = HEADER.unpack_from(payload)  # fmt: skip
    if magic != MAGIC:
        raise RecordFormatError(0, f"magic is {bytes(magic)!r}, not {MAGIC!r}")
    if version != VERSION:
        raise RecordFormatError(4, f"version {version}; this release reads version {VERSION}")
    if compression >= len(_COMPRESSIONS):
        raise RecordFormatError(5, f"unknown compression {compression}")
    if flags & ~_FLAGS_KNOWN:
        raise RecordFormatError(6, f"unknown flags {flags & ~_FLAGS_KNOWN:#x}")
    for dependent, needed in _FLAGS_NEEDED:
        if flags & dependent and not flags & needed:
            raise RecordFormatError(6, f"flags {flags:#x} name a validity without its column")
    if not 1 <= count <= RECORDS_PER_ENTRY_MAX:
        raise RecordFormatError(8, f"{count} records; 1 to {RECORDS_PER_ENTRY_MAX} are legal")
    if header_bytes != HEADER_BYTES or zero:
        raise RecordFormatError(12, f"header of {header_bytes} bytes, not {HEADER_BYTES}")
    if not 0 <= first_sequence <= (1 << 63) - 1 - count:
        raise RecordFormatError(16, f"first sequence {first_sequence}")
    if producer_id < 0:
        raise RecordFormatError(48, f"producer {producer_id}")
    if not 0 <= producer_sequence <= (1 << 63) - 1 - count:
        raise RecordFormatError(56, f"producer {producer_id} at sequence {producer_sequence}")
    if body > BODY_BYTES_MAX:
        raise RecordFormatError(64, f"claims {body} bytes of columns, limit {BODY_BYTES_MAX}")
    if stored != size - HEADER_BYTES:
        raise RecordFormatError(68, f"claims {stored} stored bytes, {size - HEADER_BYTES} follow")
    if compression == Compression.NONE and stored != body:
        raise RecordFormatError(68, f"not compressed, but {stored} bytes stored for {body}")
    return EntryHeader(
        flags, _COMPRESSIONS[compression], count, header_bytes, first_sequence, append_time_ms,
        event_min, event_max, producer_id, producer_sequence, body, stored,
    )  # fmt: skip


def restamped(payload: bytes, first_sequence: int, append_time_ms: int) -> bytes:
    """Returns the same entry with another sequence and append time: it is stored elsewhere than it
    was made for."""
    stamp = _STAMP.pack(first_sequence, append_time_ms)
    return b"".join((payload[:_STAMP_OFFSET], stamp, payload[_STAMP_OFFSET + _STAMP.size :]))
