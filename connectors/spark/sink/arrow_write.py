"""Encodes Arrow rows as payloads of stream entries; columns are copied as buffers.

Produces the same bytes as `stream.core.entry.encoder` for the same records, and decides how rows
are cut into entries. Must never run Python per row. arrow_input.py prepares the rows;
source/arrow_read.py is the counterpart for reading.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from connectors.spark.sink.arrow_input import EVENT_TIME, HEADERS, KEY, VALUE
from ledger.core.entry import FRAME_ROOM_BYTES
from ledger.errors import InvalidArgument
from stream.core.entry.compression import Compression
from stream.core.entry.encoder import with_header
from stream.core.entry.format import (
    FLAG_EVENT_TIME_VALIDITY,
    FLAG_EVENT_TIMES,
    FLAG_HEADER_VALIDITY,
    FLAG_HEADERS,
    FLAG_KEY_VALIDITY,
    FLAG_KEYS,
    FLAG_SEQUENCE_IN_SEGMENT,
    FLAG_VALUE_VALIDITY,
    RECORDS_PER_ENTRY_MAX,
)
from stream.core.entry.sizes import RECORD_OVERHEAD_BYTES

# ---- sizes


def _offsets(array: pa.Array) -> memoryview:
    """Returns the offsets of an array of variable length, from its first item on."""
    if not len(array):
        return memoryview(bytes(4)).cast("i")
    return memoryview(array.buffers()[1]).cast("i")[array.offset :]


class RowSizes:
    """Computes how many bytes rows take in an entry, in constant time for any range of rows."""

    __slots__ = ("_binaries", "_headers", "_row_bytes", "count")

    def __init__(self, rows: pa.RecordBatch) -> None:
        self.count: int = rows.num_rows
        names = set(rows.schema.names)
        self._binaries = [_offsets(rows.column(name)) for name in (VALUE, KEY) if name in names]
        # An offset or a time, and a whole byte for its validity bit.
        self._row_bytes = 4 + 5 * (KEY in names) + 9 * (EVENT_TIME in names)
        self._headers: tuple[memoryview, ...] | None = None
        if HEADERS in names:
            lists = rows.column(HEADERS)
            pairs = lists.values
            self._headers = (
                _offsets(lists), _offsets(pairs.field(0)), _offsets(pairs.field(1)),
            )  # fmt: skip
            self._row_bytes += 4

    def between(self, first: int, stop: int) -> int:
        """Returns the bytes of these rows' columns, without padding."""
        return self.records_between(first, stop) + self._row_bytes * (stop - first)

    def records_between(self, first: int, stop: int) -> int:
        """Returns the bytes of these records, counted as by `stream.core.entry.sizes`."""
        size = 0
        for offsets in self._binaries:
            size += offsets[stop] - offsets[first]
        if self._headers is not None:
            bounds, names, values = self._headers
            low, high = bounds[first], bounds[stop]
            size += names[high] - names[low] + values[high] - values[low]
            size += RECORD_OVERHEAD_BYTES * (high - low)
        return size

    def first_over(self, first: int, stop: int, bytes_max: int) -> int | None:
        """Returns the first of these rows whose record is larger than `bytes_max`, or None."""
        if self.records_between(first, stop) <= bytes_max:
            return None
        # Rows are checked one by one only if together they exceed the limit of one record.
        between = self.records_between
        return next((row for row in range(first, stop) if between(row, row + 1) > bytes_max), None)

    def cuts(self, entry_bytes: int) -> Iterator[tuple[int, int]]:
        """Yields ranges of rows for entries of similar size: at most `entry_bytes`, or one row."""
        first, count = 0, self.count
        while first < count:
            left = self.between(first, count)
            entries = max(-(-left // entry_bytes), -(-(count - first) // RECORDS_PER_ENTRY_MAX))
            if entries == 1:
                stop = count
            else:
                wanted = left // entries
                begin = first
                candidates = range(first + 1, min(count, first + RECORDS_PER_ENTRY_MAX) + 1)
                at = bisect_left(candidates, wanted, key=lambda row: self.between(begin, row))
                stop = candidates[min(at, len(candidates) - 1)]
                if stop > first + 1 and self.between(first, stop) > entry_bytes:
                    stop -= 1
            yield first, stop
            first = stop


# ---- entries


class _BodyBuffers:
    """The buffers of a body in order, each aligned to 8 bytes."""

    __slots__ = ("nbytes", "pieces")

    def __init__(self) -> None:
        self.pieces: list[Any] = [b""]  # reserved for the header
        self.nbytes = 0

    def add(self, piece: Any) -> None:
        if padding := -self.nbytes % 8:
            self.pieces.append(bytes(padding))
            self.nbytes += padding
        self.pieces.append(piece)
        self.nbytes += len(piece)

    def add_offsets(self, array: pa.Array, count: int) -> tuple[int, int]:
        """Adds count + 1 offsets, shifted to begin at 0; returns the first and last original."""
        offsets = _offsets(array)
        low, high = offsets[0], offsets[count]
        if low == 0:
            self.add(offsets[: count + 1].cast("B"))
        else:
            numbers = pa.Array.from_buffers(
                pa.int32(), count + 1, [None, array.buffers()[1]], offset=array.offset
            )
            self.add(
                memoryview(pc.subtract(numbers, pa.scalar(low, pa.int32())).buffers()[1])[
                    : 4 * (count + 1)
                ]
            )
        return low, high

    def add_binary(self, array: pa.Array) -> None:
        low, high = self.add_offsets(array, len(array))
        data = array.buffers()[2] if high > low else None
        self.add(b"" if data is None else memoryview(data)[low:high])

    def add_validity(self, array: pa.Array) -> None:
        count = len(array)
        bits = pc.is_valid(array)
        packed = bytearray(memoryview(bits.buffers()[1])[: (count + 7) // 8])
        if count % 8:
            packed[-1] &= (1 << count % 8) - 1
        self.add(packed)

    def add_nullable(self, array: pa.Array) -> bool:
        """Adds an array, after its validity if it has nulls; returns whether it has."""
        if not array.null_count:
            self.add_binary(array)
            return False
        self.add_validity(array)
        self.add_binary(pc.fill_null(array, b""))
        return True

    def add_keys(self, keys: pa.Array) -> int:
        if keys.null_count == len(keys):
            return 0
        return FLAG_KEYS | self.add_nullable(keys) * FLAG_KEY_VALIDITY

    def add_event_times(self, times: pa.Array) -> tuple[int, int, int]:
        """Adds the times; returns the flags, the lowest and the highest time."""
        nulls = times.null_count
        if nulls == len(times):
            return 0, -1, -1
        flags = FLAG_EVENT_TIMES
        ends = pc.min_max(times)
        if nulls:
            flags |= FLAG_EVENT_TIME_VALIDITY
            self.add_validity(times)
            times = pc.fill_null(times, 0)
        begin = 8 * times.offset
        self.add(memoryview(times.buffers()[1])[begin : begin + 8 * len(times)])
        return flags, ends["min"].as_py(), ends["max"].as_py()

    def add_headers(self, lists: pa.Array) -> int:
        offsets = _offsets(lists)
        first, stop = offsets[0], offsets[len(lists)]
        if first == stop:
            return 0
        self.add_offsets(lists, len(lists))
        pairs = lists.values
        self.add_binary(pairs.field(0).slice(first, stop - first))
        has_nulls = self.add_nullable(pairs.field(1).slice(first, stop - first))
        return FLAG_HEADERS | has_nulls * FLAG_HEADER_VALIDITY


def encode_rows(
    rows: pa.RecordBatch,
    *,
    first_sequence: int,
    append_time_ms: int,
    compression: Compression = Compression.NONE,
) -> bytes:
    """Returns the payload of one entry that holds all these rows, which `input_rows` made.

    Sequences count from the beginning of the segment. The bytes are those that
    `stream.core.entry.encoder.encode` makes of the same records. Raises InvalidArgument for too
    many rows or bytes; CompressionUnavailable.
    """
    return b"".join(_payload_parts(rows, first_sequence, append_time_ms, compression))


def encode_frame(
    rows: pa.RecordBatch,
    *,
    first_sequence: int,
    append_time_ms: int,
    compression: Compression = Compression.NONE,
) -> bytearray:
    """Returns the same payload after FRAME_ROOM_BYTES, for `LedgerWriter.append_frame_nowait`.

    This is the only copy of the rows between Spark and the sockets.
    """
    pieces = _payload_parts(rows, first_sequence, append_time_ms, compression)
    return bytearray().join([bytes(FRAME_ROOM_BYTES), *pieces])


def _payload_parts(
    rows: pa.RecordBatch, first_sequence: int, append_time_ms: int, compression: Compression
) -> list[bytes]:
    count = rows.num_rows
    if not 1 <= count <= RECORDS_PER_ENTRY_MAX:
        raise InvalidArgument(f"an entry holds 1 to {RECORDS_PER_ENTRY_MAX} records, not {count}")
    flags = FLAG_SEQUENCE_IN_SEGMENT
    event_min = event_max = -1
    body = _BodyBuffers()
    names: Sequence[str] = rows.schema.names
    flags |= body.add_nullable(rows.column(VALUE)) * FLAG_VALUE_VALIDITY
    if KEY in names:
        flags |= body.add_keys(rows.column(KEY))
    if EVENT_TIME in names:
        more, event_min, event_max = body.add_event_times(rows.column(EVENT_TIME))
        flags |= more
    if HEADERS in names:
        flags |= body.add_headers(rows.column(HEADERS))
    pieces, size = with_header(
        body.pieces, body.nbytes, count, flags, compression,
        first_sequence=first_sequence, append_time_ms=append_time_ms,
        event_range_ms=(event_min, event_max),
    )  # fmt: skip
    assert sum(map(len, pieces)) == size, f"the parts of an entry are not its {size} bytes"
    return pieces
