"""Records, and batches of them as views on the payload of an entry.

`decode` checks the header and that every column is inside the payload; a column's own offsets are
checked when it is first read, so that no access reads outside and no bytes are checked twice. Every
damage is a RecordFormatError. The encoder is core/entry/encoder.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise, repeat
from typing import Any, Final, NamedTuple, cast

from stream.core.entry import arrow
from stream.core.entry.columns import BinaryColumn, _numbers
from stream.core.entry.compression import Buffer, inflate
from stream.core.entry.format import (
    FLAG_EVENT_TIME_VALIDITY,
    FLAG_EVENT_TIMES,
    FLAG_HEADER_VALIDITY,
    FLAG_HEADERS,
    FLAG_KEY_VALIDITY,
    FLAG_KEYS,
    FLAG_VALUE_VALIDITY,
    HEADER_BYTES,
    EntryHeader,
    read_header,
)
from stream.core.position import Position
from stream.errors import RecordFormatError

ARROW_COLUMNS: Final = ("value", "key", "event_time_ms", "headers")


class _Null(bytes):
    """The type of NULL. Copies and pickles of NULL are NULL itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NULL"

    def __reduce__(self) -> str:
        return "NULL"


NULL: Final[bytes] = _Null()
"""A value, or a header's value, that is null: it equals b"". Test it by `is NULL`."""


class Record(NamedTuple):
    """A record. `sequence` counts the records of the stream from 0 without gaps.

    A null value is NULL, which equals b"": the record is a tombstone of its key. The values of
    headers may be NULL, too. Spark's sink writes such records.

    It is a tuple because readers make one per record: a frozen dataclass costs four times as much.

    `event_time_ms` is given by the caller; `append_time_ms` is the writer's clock when the entry
    was made, or when a sink committed it; it never goes back within a stream.
    """

    position: Position
    sequence: int
    value: bytes
    key: bytes | None
    event_time_ms: int | None
    append_time_ms: int
    headers: tuple[tuple[str, bytes], ...] = ()

    @property
    def is_tombstone(self) -> bool:
        """Whether the value is null, not merely empty: what its key named before is deleted."""
        return self.value is NULL


_new = cast("Callable[[type[Any], tuple[Any, ...]], Any]", tuple.__new__)


class _Body:
    """Walks the buffers of a body and returns views inside it."""

    __slots__ = ("at", "base", "view")

    def __init__(self, view: memoryview, base: int) -> None:
        self.view = view
        self.at = 0
        self.base = base  # where the body begins in the payload, for messages

    def take(self, nbytes: int, what: str) -> memoryview:
        start = self.at + (-self.at % 8)
        if start + nbytes > len(self.view):
            raise RecordFormatError(
                self.base + start,
                f"{what} need {nbytes} bytes, {max(0, len(self.view) - start)} are left",
            )
        self.at = start + nbytes
        return self.view[start : self.at]

    def take_offsets(self, count: int, what: str) -> tuple[memoryview, int, int]:
        """Returns a view of count+1 offsets, the last offset, and their place in the payload."""
        view = self.take(4 * (count + 1), f"offsets of the {what}")
        offset = self.base + self.at - len(view)
        first = int.from_bytes(view[:4], "little", signed=True)
        last = int.from_bytes(view[-4:], "little", signed=True)
        if first != 0 or last < 0:
            raise RecordFormatError(offset, f"offsets of the {what} run from {first} to {last}")
        return view, last, offset

    def take_binary(self, count: int, what: str) -> BinaryColumn:
        offsets, nbytes, offset = self.take_offsets(count, what)
        return BinaryColumn(offsets, self.take(nbytes, what), count, offset, what)


class RecordBatch:
    """The records of one entry, or adjacent ones of them, as columns.

    Values are read from the payload on demand; the batch keeps the payload alive. Its records are
    those from `first_slot` to before `stop_slot`; `first_sequence` is the sequence of the first.
    """

    __slots__ = (
        "_base_sequence", "_event_times", "_event_times_validity", "_header_list",
        "_header_list_offset", "_header_names", "_header_validity", "_header_values",
        "_key_column", "_key_validity", "_shared_records", "_value_column", "_value_validity",
        "append_time_ms", "entry", "first_slot", "header", "nbytes", "segment", "stop_slot",
    )  # fmt: skip

    def __repr__(self) -> str:
        return (
            f"<RecordBatch of {len(self)} records, {self.first_position} to {self.last_position}>"
        )

    def __init__(
        self, payload: Buffer, segment: int, entry: int, base_sequence: int, committed_ms: int,
        with_columns: bool = True,
    ) -> None:  # fmt: skip
        header = read_header(payload)
        self.header: EntryHeader = header
        self.segment = segment
        self.entry = entry
        self.first_slot = 0
        self.stop_slot = header.count
        self.append_time_ms = header.append_time_ms
        self.nbytes = len(payload)
        self._shared_records: tuple[Record, ...] | None = None
        self._base_sequence = header.first_sequence
        if header.is_sequence_in_segment:
            self._base_sequence += base_sequence
            if committed_ms >= 0:
                self.append_time_ms = committed_ms
        if not with_columns:
            return
        stored = memoryview(payload).toreadonly()[HEADER_BYTES:]
        body = _Body(
            memoryview(inflate(stored, header.compression, header.body_bytes, HEADER_BYTES)),
            HEADER_BYTES,
        )
        count, flags = header.count, header.flags
        self._value_validity: memoryview | None = None
        if flags & FLAG_VALUE_VALIDITY:
            self._value_validity = body.take((count + 7) // 8, "validity of the values")
        self._value_column = body.take_binary(count, "values")
        self._key_column: BinaryColumn | None = None
        self._key_validity: memoryview | None = None
        self._event_times: memoryview | None = None
        self._event_times_validity: memoryview | None = None
        self._header_list: memoryview | None = None
        self._header_validity: memoryview | None = None
        if flags & FLAG_KEYS:
            if flags & FLAG_KEY_VALIDITY:
                self._key_validity = body.take((count + 7) // 8, "validity of the keys")
            self._key_column = body.take_binary(count, "keys")
        if flags & FLAG_EVENT_TIMES:
            if flags & FLAG_EVENT_TIME_VALIDITY:
                self._event_times_validity = body.take((count + 7) // 8, "validity of event times")
            self._event_times = body.take(8 * count, "event times")
        if flags & FLAG_HEADERS:
            self._header_list, pairs, self._header_list_offset = body.take_offsets(count, "headers")
            self._header_names = body.take_binary(pairs, "header names")
            if flags & FLAG_HEADER_VALIDITY:
                self._header_validity = body.take((pairs + 7) // 8, "validity of header values")
            self._header_values = body.take_binary(pairs, "header values")
        if body.at != len(body.view):
            raise RecordFormatError(
                body.base + body.at, f"{len(body.view) - body.at} bytes behind the last column"
            )

    def __len__(self) -> int:
        return self.stop_slot - self.first_slot

    @property
    def first_sequence(self) -> int:
        return self._base_sequence + self.first_slot

    @property
    def first_position(self) -> Position:
        return Position(self.segment, self.entry, self.first_slot)

    @property
    def last_position(self) -> Position:
        return Position(self.segment, self.entry, self.stop_slot - 1)

    @property
    def after(self) -> Position:
        """Where to resume when all of this batch has been handled."""
        if self.stop_slot < self.header.count:
            return Position(self.segment, self.entry, self.stop_slot)
        return Position(self.segment, self.entry + 1, 0)

    def since(self, slot: int) -> RecordBatch:
        """Returns the same records without those before `slot`; may be empty. Copies nothing."""
        assert slot >= 0, f"slot {slot} is negative"
        return self.between(max(slot, self.first_slot), self.stop_slot)

    def between(self, first_slot: int, stop_slot: int) -> RecordBatch:
        """Returns the records whose slots are from `first_slot` to before `stop_slot`; may be
        empty. Copies nothing."""
        other = object.__new__(RecordBatch)
        for name in self.__slots__:
            if hasattr(self, name):
                object.__setattr__(other, name, getattr(self, name))
        other.stop_slot = min(stop_slot, self.stop_slot)
        other.first_slot = min(max(first_slot, self.first_slot), other.stop_slot)
        other._shared_records = None
        return other

    @property
    def value_column(self) -> BinaryColumn:
        """Views on offsets and bytes of all values of the entry, not only those of this batch."""
        return self._value_column

    @property
    def key_column(self) -> BinaryColumn | None:
        """Views on the keys of the entry (see `value_column`); None if no record has one."""
        return self._key_column

    def values(self) -> list[bytes]:
        """Returns the values; one that is null is NULL. Raises RecordFormatError."""
        values = self._value_column.items(self.first_slot, self.stop_slot)
        if self._value_validity is None:
            return values
        return _nulls_in(values, self._valid(self._value_validity))

    def keys(self) -> Sequence[bytes | None]:
        """Returns one key or None per record. Raises RecordFormatError."""
        if self._key_column is None:
            return [None] * len(self)
        keys = self._key_column.items(self.first_slot, self.stop_slot)
        if self._key_validity is None:
            return keys
        return [
            key if is_valid else None
            for key, is_valid in zip(keys, self._valid(self._key_validity), strict=True)
        ]

    def event_times(self) -> Sequence[int | None]:
        """Returns one event time (ms) or None per record."""
        if self._event_times is None:
            return [None] * len(self)
        times = _numbers(self._event_times[8 * self.first_slot : 8 * self.stop_slot], "q")
        if self._event_times_validity is None:
            return times
        return [
            time if is_valid else None
            for time, is_valid in zip(times, self._valid(self._event_times_validity), strict=True)
        ]

    def headers(self) -> list[tuple[tuple[str, bytes], ...]]:
        """Returns the headers of each record, in the order they were given; the value of one
        that is null is NULL. Raises RecordFormatError."""
        if self._header_list is None:
            return [()] * len(self)
        bounds = _numbers(self._header_list, "i")
        if sorted(bounds) != bounds:
            raise RecordFormatError(self._header_list_offset, "offsets of the headers decrease")
        try:
            names = [name.decode() for name in self._header_names.items()]
        except UnicodeDecodeError as error:
            raise RecordFormatError(
                self._header_names.offset, f"a header name is not UTF-8: {error.reason}"
            ) from None
        values = self._header_values.items()
        if self._header_validity is not None:
            values = _nulls_in(values, _bits(self._header_validity, 0, len(values)))
        pairs = list(zip(names, values, strict=True))
        return [
            tuple(pairs[start:end])
            for start, end in pairwise(islice(bounds, self.first_slot, self.stop_slot + 1))
        ]

    def records(self) -> list[Record]:
        """Returns the records as objects. Raises RecordFormatError."""
        return list(self)

    def shared_records(self) -> tuple[Record, ...]:
        """Returns the same as `records`, made once for all readers of this batch."""
        if self._shared_records is None:
            self._shared_records = tuple(self)
        return self._shared_records

    def __iter__(self) -> Iterator[Record]:
        first, stop = self.first_slot, self.stop_slot
        base = self._base_sequence
        positions = map(
            _new,
            repeat(Position),
            zip(repeat(self.segment), repeat(self.entry), range(first, stop), strict=False),
        )
        fields = zip(
            positions,
            range(base + first, base + stop),
            self.values(),
            self.keys() if self._key_column is not None else repeat(None),
            self.event_times() if self._event_times is not None else repeat(None),
            repeat(self.append_time_ms),
            self.headers() if self._header_list is not None else repeat(()),
            strict=False,
        )
        # No Python code runs per record: all of this is one chain of iterators.
        return map(_new, repeat(Record), fields)

    def to_arrow(self) -> Any:
        """Returns a pyarrow.RecordBatch: value, key (binary), event_time_ms (int64), headers (list
        of struct name, value). Buffers are shared, not copied.

        Raises RecordFormatError; ImportError if pyarrow is not installed.
        """
        pa = arrow.arrow()
        made = {name: self.arrow_column(name) for name in ARROW_COLUMNS}
        kinds = {
            "value": pa.binary(), "key": pa.binary(), "event_time_ms": pa.int64(),
            "headers": arrow.plain_pair_lists(),
        }  # fmt: skip
        columns = [
            pa.nulls(self.header.count, kinds[name]) if column is None else column
            for name, column in made.items()
        ]
        batch = pa.RecordBatch.from_arrays(columns, list(made))
        count = self.header.count
        return batch if len(self) == count else batch.slice(self.first_slot, len(self))

    def arrow_column(self, name: str, kind: Any = None) -> Any:
        """Returns one column of `to_arrow`, of the whole entry whichever part this batch shows;
        None if no record has such a value. `kind` is another Arrow type of the same layout.

        Raises RecordFormatError; ImportError if pyarrow is not installed.
        """
        if name == "value":
            return arrow.binary_array(self._value_column, kind, self._value_validity)
        if name == "key":
            if self._key_column is None:
                return None
            return arrow.binary_array(self._key_column, kind, self._key_validity)
        if name == "event_time_ms":
            if self._event_times is None:
                return None
            return arrow.times_array(
                self._event_times, self.header.count, self._event_times_validity
            )
        assert name == "headers", f"no column {name!r}; there are {', '.join(ARROW_COLUMNS)}"
        if self._header_list is None:
            return None
        return arrow.pair_lists_array(
            self._header_list, self.header.count, self._header_list_offset,
            self._header_names, self._header_values, kind, self._header_validity,
        )  # fmt: skip

    def _valid(self, bitmap: memoryview) -> Iterator[bool]:
        return _bits(bitmap, self.first_slot, self.stop_slot)


def _bits(bitmap: memoryview, first: int, stop: int) -> Iterator[bool]:
    bits = bin(int.from_bytes(bitmap, "little") | 1 << (8 * len(bitmap)))[:2:-1]
    return (bit == "1" for bit in islice(bits, first, stop))


def _nulls_in(values: list[bytes], valid: Iterator[bool]) -> list[bytes]:
    return [value if is_valid else NULL for value, is_valid in zip(values, valid, strict=True)]


def decode(
    payload: Buffer,
    *,
    segment: int = 0,
    entry: int = 0,
    base_sequence: int = 0,
    committed_ms: int = -1,
    with_columns: bool = True,
) -> RecordBatch:
    """Returns a view of the records in an entry's payload.

    `segment` and `entry` are where it was read from. Entries that count from the begin of their
    segment were written before their place in the stream was known: `base_sequence` is the
    segment's first sequence, `committed_ms` its time (`last_time_ms`), which is theirs too; -1 if
    it is not known. Without `with_columns` nothing but the header is decompressed and checked, and
    the batch has no columns. Raises RecordFormatError, CompressionUnavailable.
    """
    return RecordBatch(payload, segment, entry, base_sequence, committed_ms, with_columns)
