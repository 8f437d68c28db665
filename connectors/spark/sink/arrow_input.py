"""Converts the columns that a sink receives to the Arrow types that are written.

Defines the types that a column may have, and reports errors with column, row and cure. Shares
buffers where possible. Must never run Python per row. arrow_write.py encodes the result.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from connectors.spark.schema import SPARK_TIME_MS_MAX
from ledger.errors import InvalidArgument

VALUE: Final = "value"
KEY: Final = "key"
EVENT_TIME: Final = "event_time"
HEADERS: Final = "headers"
STREAM: Final = "stream"
PARTITION: Final = "partition"

RECORD_COLUMNS: Final = (VALUE, KEY, EVENT_TIME, HEADERS)
INPUT_COLUMNS: Final = (*RECORD_COLUMNS, STREAM, PARTITION)

_PAIR: Final = pa.struct([("name", pa.string()), ("value", pa.binary())])


def input_rows(batch: pa.RecordBatch, first_row: int = 0) -> pa.RecordBatch:
    """Returns the columns of a batch, each converted to the type that is written.

    `value` and `key` become binary, `event_time` int64 (ms since 1970, rounded down), `headers`
    a list of (name, value) of which only values may be null, `stream` string, `partition` int32.
    Columns of Arrow's null type are left out, except `value`. Shares buffers where possible.
    `first_row` is the number of the first row in its task, for messages.

    Names are compared without regard to case, as by Spark. Raises InvalidArgument with column,
    type, row and cure.
    """
    columns: dict[str, Any] = {}
    for given, array in zip(batch.schema.names, batch.columns, strict=True):
        name = given.lower()
        make = _INPUTS.get(name)
        if make is None:
            raise InvalidArgument(
                f"column {given!r} is not part of a record; a sink accepts the columns "
                f"{', '.join(INPUT_COLUMNS)}. Cure: select() those"
            )
        if name in columns:
            raise InvalidArgument(f"column {given!r} is given twice. Cure: select() it once")
        if name == VALUE or not pa.types.is_null(array.type):
            columns[name] = make(name, array, first_row)
    if VALUE not in columns:
        raise InvalidArgument(
            "there is no column 'value' (binary or string), the payload of a record. Cure: "
            "selectExpr('to_json(struct(*)) AS value'), or another encoding"
        )
    _check_tombstones(columns[VALUE], columns.get(KEY), first_row)
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def _check_tombstones(values: pa.Array, keys: pa.Array | None, first_row: int) -> None:
    """Raises InvalidArgument for a row that has neither a value nor a key."""
    if not values.null_count:
        return
    wrong = pc.is_null(values)
    if keys is not None:
        wrong = pc.and_(wrong, pc.is_null(keys))
    count = pc.sum(wrong).as_py()
    if count:
        row = first_row + pc.index(wrong, True).as_py()
        raise InvalidArgument(
            f"column 'value' is null in row {row:,} of the task (and in {count - 1:,} more of this "
            "batch), and there is no key; a record with a null value is the tombstone of a key. "
            "Cure: where('value IS NOT NULL OR key IS NOT NULL'), or coalesce(value, lit(b''))"
        )


def _as_binary(name: str, array: pa.Array, first_row: int) -> pa.Array:
    kind = array.type
    if pa.types.is_binary(kind):
        return array
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        return _narrow_offsets(name, array)
    if pa.types.is_null(kind):
        return pa.nulls(len(array), pa.binary())
    if pa.types.is_dictionary(kind):
        return _as_binary(name, array.dictionary_decode(), first_row)
    if pa.types.is_run_end_encoded(kind):
        return _as_binary(name, pc.run_end_decode(array), first_row)
    if (
        pa.types.is_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    ):
        return array.cast(pa.binary())
    raise InvalidArgument(
        f"column {name!r} is {kind}; it must be binary or string. "
        f"Cure: CAST({name} AS STRING), to_json, to_avro, ..."
    )


def _narrow_offsets(name: str, array: pa.Array) -> pa.Array:
    """Converts 64-bit offsets to 32-bit offsets from 0; shares the bytes."""
    validity, offsets, data = array.buffers()
    count = len(array)
    if count == 0 or offsets is None:
        return pa.array([None] * count, pa.binary())
    wide = pa.Array.from_buffers(pa.int64(), count + 1, [None, offsets], offset=array.offset)
    low, high = wide[0].as_py(), wide[count].as_py()
    if high - low >= 1 << 31:
        raise InvalidArgument(
            f"column {name!r} has {high - low:,} bytes in {count:,} rows of one Arrow batch, limit "
            "2 GiB. Cure: set spark.sql.execution.arrow.maxRecordsPerBatch lower"
        )
    narrow = pc.subtract(wide, low).cast(pa.int32())
    if validity is not None and array.offset:
        validity = pc.is_valid(array).buffers()[1] if array.null_count else None
    data = pa.py_buffer(b"") if data is None else data.slice(low, high - low)
    return pa.Array.from_buffers(pa.binary(), count, [validity, narrow.buffers()[1], data])


def _event_time(name: str, array: pa.Array, first_row: int) -> pa.Array:
    kind = array.type
    if pa.types.is_integer(kind):
        return _milliseconds(name, array, first_row)
    if not pa.types.is_timestamp(kind):
        raise InvalidArgument(
            f"column {name!r} is {kind}; it must be a timestamp, or a long of milliseconds since "
            f"1970. Cure: CAST({name} AS TIMESTAMP)"
        )
    plain = array.view(pa.timestamp(kind.unit))
    if kind.unit in ("us", "ns"):
        # A cast alone rounds towards 1970.
        plain = pc.floor_temporal(plain, unit="millisecond")
    try:
        return plain.cast(pa.timestamp("ms")).view(pa.int64())
    except pa.ArrowInvalid as error:
        raise InvalidArgument(f"column {name!r}: {error}") from None


def _milliseconds(name: str, array: pa.Array, first_row: int) -> pa.Array:
    ends = pc.min_max(array)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    if low is None or -SPARK_TIME_MS_MAX <= low <= high <= SPARK_TIME_MS_MAX:
        return array.cast(pa.int64())
    time_ms = high if high > SPARK_TIME_MS_MAX else low
    row = pc.index(array, pa.scalar(time_ms, array.type)).as_py()
    raise InvalidArgument(
        f"column {name!r} is {time_ms:,} ms in row {first_row + row:,} of the task, which is "
        f"beyond Spark's timestamps, +-{SPARK_TIME_MS_MAX:,} ms. Cure: a timestamp, or "
        "milliseconds since 1970, not microseconds or nanoseconds"
    )


def _headers(name: str, array: pa.Array, first_row: int) -> pa.Array:
    kind = array.type
    if pa.types.is_map(kind):
        lists = _list_of_map(array)
    elif pa.types.is_list(kind):
        lists = array
    elif pa.types.is_large_list(kind):
        lists = array.cast(pa.list_(kind.value_type))
    else:
        raise _bad_headers(kind)
    pair = lists.type.value_type
    if not pa.types.is_struct(pair) or pair.num_fields != 2:
        raise _bad_headers(kind)
    if pair[0].name.lower() not in ("name", "key") or pair[1].name.lower() != "value":
        raise _bad_headers(kind)
    lengths = pc.list_value_length(lists)
    if lengths.null_count:
        lengths = pc.fill_null(lengths, 0)
    pairs = lists.flatten()
    names, values = pairs.flatten()
    for what, part in (("a header", pairs), ("the name of a header", names)):
        if part.null_count:
            raise InvalidArgument(
                f"column {name!r}: {what} is null in a row from {first_row:,} to "
                f"{first_row + len(array) - 1:,} of the task; only its value may be. Cure: "
                f"filter(headers, h -> h.{pair[0].name} IS NOT NULL)"
            )
    zero = pa.array([0], pa.int32())
    bounds = pa.concat_arrays([zero, pc.cumulative_sum(lengths.cast(pa.int32()))])
    try:
        texts = _as_binary(f"{name}.name", names, first_row).cast(pa.string())
    except pa.ArrowInvalid:
        raise InvalidArgument(
            f"column {name!r}: the name of a header is not UTF-8, in a row from {first_row:,} to "
            f"{first_row + len(array) - 1:,} of the task"
        ) from None
    content = _as_binary(f"{name}.value", values, first_row)
    return pa.ListArray.from_arrays(
        bounds, pa.StructArray.from_arrays([texts, content], fields=list(_PAIR))
    )


def _list_of_map(array: pa.MapArray) -> pa.Array:
    pairs = pa.StructArray.from_arrays([array.keys, array.items], ["name", "value"])
    buffers = array.buffers()[:2]
    kind = pa.list_(pairs.type)
    return pa.Array.from_buffers(kind, len(array), buffers, offset=array.offset, children=[pairs])


def _bad_headers(kind: pa.DataType) -> InvalidArgument:
    return InvalidArgument(
        f"column 'headers' is {kind}; it must be array<struct<name: string, value: binary>> or "
        "map<string, binary>. Cure: map_entries, transform, or leave it out"
    )


def _stream(name: str, array: pa.Array, first_row: int) -> pa.Array:
    kind = array.type
    if pa.types.is_dictionary(kind):
        array = array.dictionary_decode()
    elif not (
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    ):
        raise InvalidArgument(
            f"column 'stream' is {kind}; it must be a string, the full name: 'namespace/stream'"
        )
    return array.cast(pa.string())


def _partition(name: str, array: pa.Array, first_row: int) -> pa.Array:
    if not pa.types.is_integer(array.type):
        raise InvalidArgument(
            f"column 'partition' is {array.type}; it must be an int, the partition's number"
        )
    try:
        return array.cast(pa.int32())
    except pa.ArrowInvalid as error:
        raise InvalidArgument(f"column 'partition': {error}") from None


_INPUTS: Final = {
    VALUE: _as_binary,
    KEY: _as_binary,
    EVENT_TIME: _event_time,
    HEADERS: _headers,
    STREAM: _stream,
    PARTITION: _partition,
}
