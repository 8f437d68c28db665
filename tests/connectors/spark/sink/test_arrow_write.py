"""Arrow rows are encoded as the entries that the ordinary encoder makes of the same records."""

from __future__ import annotations

import datetime
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.spark.schema import SPARK_TIME_MS_MAX
from connectors.spark.sink.arrow_input import input_rows
from connectors.spark.sink.arrow_write import RowSizes, encode_frame, encode_rows
from ledger.errors import InvalidArgument
from ledger.writing.frames import FRAME_ROOM_BYTES
from stream.core.entry.compression import Compression
from stream.core.entry.encoder import encode
from stream.core.entry.format import BODY_BYTES_MAX, RECORDS_PER_ENTRY_MAX
from stream.core.entry.records import NULL, decode
from stream.core.entry.sizes import RECORD_OVERHEAD_BYTES

_BYTES = st.binary(max_size=12)
_TEXTS = st.text(max_size=6).map(str.encode)
_BINARY_TYPES = [
    pa.binary(), pa.large_binary(), pa.binary_view(), pa.string(), pa.large_string(),
    pa.string_view(), pa.dictionary(pa.int32(), pa.binary()),
    pa.dictionary(pa.int8(), pa.large_string()),
]  # fmt: skip
_MICROSECONDS = st.integers(-(10**15), 4 * 10**15)
_HEADER = st.tuples(st.text(max_size=4), st.none() | _BYTES)


def _is_text(kind: pa.DataType) -> bool:
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    return any(
        is_kind(inner)
        for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    )


def _binary_array(items: list[bytes | None], kind: pa.DataType) -> pa.Array:
    if _is_text(kind):
        texts = [None if item is None else item.decode() for item in items]
        if pa.types.is_dictionary(kind):
            return pa.array(texts, kind.value_type).dictionary_encode()
        return pa.array(texts, kind)
    if pa.types.is_dictionary(kind):
        return pa.array(items, kind.value_type).dictionary_encode()
    return pa.array(items, kind)


@st.composite
def _binaries(draw: st.DrawFn, count: int, *, nulls: bool) -> pa.Array:
    kind = draw(st.sampled_from(_BINARY_TYPES))
    item = _TEXTS if _is_text(kind) else _BYTES
    items = draw(st.lists(st.none() | item if nulls else item, min_size=count, max_size=count))
    return _binary_array(items, kind)


@st.composite
def _times(draw: st.DrawFn, count: int) -> pa.Array:
    kind = draw(
        st.sampled_from(
            [pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.timestamp("ms"),
             pa.timestamp("s", "Europe/Berlin"), pa.timestamp("ns"), pa.int64(), pa.int32()]
        )
    )  # fmt: skip
    bound = {"ns": 9 * 10**18, "s": 10**12}.get(getattr(kind, "unit", ""), 4 * 10**15)
    if kind == pa.int32():
        bound = 2**31 - 1
    item = st.none() | st.integers(-bound, bound)
    numbers = draw(st.lists(item, min_size=count, max_size=count))
    if kind in (pa.int64(), pa.int32()):
        return pa.array(numbers, kind)
    return pa.array(numbers, pa.int64()).view(kind)


@st.composite
def _header_lists(draw: st.DrawFn, count: int) -> pa.Array:
    kind = draw(
        st.sampled_from(
            [pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])),
             pa.list_(pa.struct([("key", pa.string()), ("value", pa.large_binary())])),
             pa.large_list(pa.struct([("name", pa.large_string()), ("value", pa.binary())])),
             pa.map_(pa.string(), pa.binary())]
        )
    )  # fmt: skip
    lists = draw(
        st.lists(st.none() | st.lists(_HEADER, max_size=3), min_size=count, max_size=count)
    )
    if pa.types.is_map(kind):
        return pa.array(lists, kind)
    first = kind.value_type[0].name
    rows = [
        None if pairs is None else [{first: name, "value": value} for name, value in pairs]
        for pairs in lists
    ]
    return pa.array(rows, kind)


@st.composite
def _batches(draw: st.DrawFn) -> pa.RecordBatch:
    count = draw(st.integers(1, 24))
    kind = draw(st.sampled_from(["no key", "some keys", "all keys"]))
    columns = {"value": draw(_binaries(count, nulls=kind == "all keys"))}
    if kind != "no key":
        columns["key"] = draw(_binaries(count, nulls=kind == "some keys"))
    if draw(st.booleans()):
        columns["event_time"] = draw(_times(count))
    if draw(st.booleans()):
        columns["headers"] = draw(_header_lists(count))
    names = draw(st.permutations(list(columns)))
    batch = pa.RecordBatch.from_arrays([columns[name] for name in names], names)
    first = draw(st.integers(0, count - 1))
    return batch.slice(first, draw(st.integers(1, count - first)))


def _as_bytes(item: Any) -> Any:
    return item.encode() if isinstance(item, str) else item


def _milliseconds(array: pa.Array) -> list[int | None]:
    if pa.types.is_integer(array.type):
        return list(array.to_pylist())
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[array.type.unit]
    return [
        None if number is None else number * 1000 // per_second
        for number in array.view(pa.int64()).to_pylist()
    ]


class _Twin:
    """Returns the records of a batch, converted row by row in Python."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        names = batch.schema.names
        self.values = [_as_bytes(item) for item in batch.column("value").to_pylist()]
        self.keys = self.event_times = self.headers = None
        if "key" in names:
            self.keys = [_as_bytes(item) for item in batch.column("key").to_pylist()]
        if "event_time" in names:
            self.event_times = _milliseconds(batch.column("event_time"))
        if "headers" in names:
            self.headers = [
                [tuple(p.values()) if isinstance(p, dict) else p for p in pairs or ()]
                for pairs in batch.column("headers").to_pylist()
            ]

    def encoded(self, first: int, stop: int, **more: Any) -> bytes:
        def cut(column: list[Any] | None) -> list[Any] | None:
            return None if column is None else column[first:stop]

        return encode(
            self.values[first:stop], keys=cut(self.keys), event_times=cut(self.event_times),
            headers=cut(self.headers), is_sequence_in_segment=True, **more,
        )  # fmt: skip


@settings(deadline=None)
@given(_batches(), st.sampled_from(Compression), st.data())
def test_entries_are_what_the_ordinary_encoder_makes(
    batch: pa.RecordBatch, compression: Compression, data: st.DataObject
) -> None:
    rows, twin = input_rows(batch), _Twin(batch)
    first = data.draw(st.integers(0, rows.num_rows - 1))
    stop = data.draw(st.integers(first + 1, rows.num_rows))
    about: dict[str, Any] = {"first_sequence": 5, "append_time_ms": 99, "compression": compression}
    made = encode_rows(rows.slice(first, stop - first), **about)
    assert made == twin.encoded(first, stop, **about)
    frame = encode_frame(rows.slice(first, stop - first), **about)
    assert frame[FRAME_ROOM_BYTES:] == made
    decoded = decode(made)
    assert [None if value is NULL else value for value in decoded.values()] == twin.values[
        first:stop
    ]
    assert decoded.first_sequence == 5


@settings(deadline=None)
@given(_batches(), st.data())
def test_selected_and_concatenated_rows_are_encoded_alike(
    batch: pa.RecordBatch, data: st.DataObject
) -> None:
    rows, twin = input_rows(batch), _Twin(batch)
    picks = data.draw(st.lists(st.integers(0, rows.num_rows - 1), min_size=1, max_size=30))
    joined = pa.concat_batches([rows.take(pa.array(picks[:1])), rows.take(pa.array(picks))])
    numbers = [picks[0], *picks]
    again = [twin.encoded(number, number + 1) for number in numbers]
    made = decode(encode_rows(joined, first_sequence=0, append_time_ms=0))
    expected = [decode(each).records()[0] for each in again]
    assert [record[2:] for record in made.records()] == [record[2:] for record in expected]


@settings(deadline=None)
@given(_batches(), st.integers(1, 200))
def test_cuts_cover_all_rows_in_order_within_the_size(batch: pa.RecordBatch, limit: int) -> None:
    rows, twin = input_rows(batch), _Twin(batch)
    sizes = RowSizes(rows)
    cuts = list(sizes.cuts(limit))
    assert cuts[0][0] == 0
    assert cuts[-1][1] == rows.num_rows
    assert all(one[1] == other[0] for one, other in pairwise(cuts))
    for first, stop in cuts:
        assert stop > first
        assert stop == first + 1 or sizes.between(first, stop) <= limit
        body = len(twin.encoded(first, stop)) - 72
        assert body <= sizes.between(first, stop) + 8 * 12


@settings(deadline=None)
@given(_batches(), st.integers(0, 60))
def test_the_first_record_that_is_too_large_is_found(batch: pa.RecordBatch, limit: int) -> None:
    twin = _Twin(batch)

    def size(row: int) -> int:
        found = len(twin.values[row] or b"")
        if twin.keys is not None:
            found += len(twin.keys[row] or b"")
        for name, value in twin.headers[row] if twin.headers is not None else ():
            found += len(name.encode()) + len(value or b"") + RECORD_OVERHEAD_BYTES
        return found

    large = [row for row in range(batch.num_rows) if size(row) > limit]
    sizes = RowSizes(input_rows(batch))
    assert sizes.first_over(0, batch.num_rows, limit) == (large[0] if large else None)


def test_an_ordinary_batch_of_spark_is_one_entry() -> None:
    # 10,000 rows (spark.sql.execution.arrow.maxRecordsPerBatch), the default of entryBytes.
    rows = input_rows(pa.record_batch({"value": pa.array([bytes(100)] * 10_000)}))
    assert list(RowSizes(rows).cuts(1 << 20)) == [(0, 10_000)]


def test_more_rows_than_an_entry_holds_become_several() -> None:
    count = 2 * RECORDS_PER_ENTRY_MAX + 1
    rows = input_rows(pa.record_batch({"value": pa.array([b""] * count)}))
    cuts = list(RowSizes(rows).cuts(BODY_BYTES_MAX))
    assert cuts[-1][1] == count
    assert max(stop - first for first, stop in cuts) <= RECORDS_PER_ENTRY_MAX


def test_the_bytes_of_a_null_key_are_left_out() -> None:
    offsets, data = pa.array([0, 3, 6], pa.int32()).buffers()[1], pa.py_buffer(b"abcdef")
    key = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\x02"), offsets, data])
    rows = input_rows(pa.record_batch({"value": pa.array([b"x", b"y"]), "key": key}))
    made = encode_rows(rows, first_sequence=0, append_time_ms=0)
    assert decode(made).keys() == [None, b"def"]
    assert b"abc" not in made


def test_a_slice_of_a_large_array_after_two_gibibytes_keeps_its_rows() -> None:
    offsets = pa.array([1 << 33, (1 << 33) + 2, (1 << 33) + 3], pa.int64())
    # The buffer is never accessed before the first offset.
    large = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), 2, [None, offsets.buffers()[1], pa.foreign_buffer(1, 1 << 34)]
    )
    rows = input_rows(pa.record_batch({"value": large}))
    assert RowSizes(rows).records_between(0, 2) == 3


def test_a_column_of_nothing_but_nulls_is_left_out() -> None:
    batch = pa.record_batch(
        {"value": pa.array(["x"]), "key": pa.nulls(1), "headers": pa.nulls(1, pa.null())}
    )
    assert input_rows(batch).schema.names == ["value"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"value": pa.array([b"a", None, b"c"])}, r"'value' is null in row 101 .*Cure:"),
        (
            {"value": pa.array([None, None, None]), "key": pa.array([b"k", None, None])},
            r"'value' is null in row 101 of the task \(and in 1 more .*coalesce",
        ),
        ({"value": pa.array([1, 2])}, r"column 'value' is int64; .*binary or string"),
        ({"key": pa.array([b"k"])}, "no column 'value'"),
        ({"value": pa.array([b"a"]), "offset": pa.array([1])}, "column 'offset' is not part"),
        ({"value": pa.array([b"a"]), "event_time": pa.array(["now"])}, "'event_time' is string"),
        (
            {"value": pa.array([b"a"]), "event_time": pa.array([datetime.date(2020, 1, 1)])},
            r"CAST\(event_time AS TIMESTAMP\)",
        ),
        (
            {"value": pa.array([b"a"] * 3), "event_time": pa.array([None, 5, 17 * 10**17])},
            r"1,700,000,000,000,000,000 ms in row 102 .*Cure: .*not microseconds or nanoseconds",
        ),
        (
            {"value": pa.array([b"a"]), "event_time": pa.array([-SPARK_TIME_MS_MAX - 1])},
            r"-9,223,372,036,854,776 ms in row 100 .*\+-9,223,372,036,854,775 ms",
        ),
        (
            {"value": pa.array([b"a"]), "event_time": pa.array([(1 << 64) - 1], pa.uint64())},
            r"18,446,744,073,709,551,615 ms in row 100 .*beyond Spark's timestamps",
        ),
        ({"value": pa.array([b"a"]), "headers": pa.array([["x"]])}, "'headers' is list"),
        (
            {"value": pa.array([b"a"]), "headers": pa.array([[{"key": None, "value": b"v"}]])},
            r"the name of a header is null in a row from 100 to 100 .*h -> h.key IS NOT NULL",
        ),
        (
            {"value": pa.array([b"a"]), "headers": pa.array([[None, {"name": "n", "value": b""}]])},
            "a header is null in a row from 100 to 100",
        ),
        (
            {"value": pa.array([b"a"]), "headers": pa.array([[(b"\xff", b"v")]],
                pa.map_(pa.binary(), pa.binary()))},
            "is not UTF-8",
        ),
        ({"value": pa.array([b"a"]), "partition": pa.array(["1"])}, "'partition' is string"),
        ({"value": pa.array([b"a"]), "partition": pa.array([1 << 40])}, "'partition'"),
        ({"value": pa.array([b"a"]), "stream": pa.array([1])}, "'stream' is int64"),
    ],
)  # fmt: skip
def test_a_wrong_column_is_named(columns: dict[str, pa.Array], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        input_rows(pa.record_batch(columns), 100)


def test_a_null_value_with_a_key_is_a_tombstone() -> None:
    """Also if all values of a batch are null, whatever their type."""
    key = pa.array(["k", "l"])
    header = pa.array([[("n", None), ("o", b"")], []], pa.map_(pa.string(), pa.binary()))
    for value in (pa.nulls(2), pa.nulls(2, pa.string()), pa.array([None, b"v"])):
        rows = input_rows(pa.record_batch({"value": value, "key": key, "headers": header}))
        assert RowSizes(rows).records_between(0, 2) >= 2
        first, second = decode(encode_rows(rows, first_sequence=0, append_time_ms=0))
        assert first.is_tombstone
        assert second.is_tombstone == (value[1].as_py() is None)
        assert [content is NULL for _, content in first.headers] == [True, False]


def test_the_bytes_of_a_null_value_are_left_out() -> None:
    offsets, data = pa.array([0, 3, 6], pa.int32()).buffers()[1], pa.py_buffer(b"abcdef")
    value = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\x02"), offsets, data])
    rows = input_rows(pa.record_batch({"value": value, "key": pa.array([b"x", b"y"])}))
    assert b"abc" not in encode_rows(rows, first_sequence=0, append_time_ms=0)


def test_the_first_and_last_time_of_spark_are_kept() -> None:
    times = [-SPARK_TIME_MS_MAX, -1, None, SPARK_TIME_MS_MAX]
    rows = input_rows(pa.record_batch({"value": pa.array([b"a"] * 4), "event_time": times}))
    made = decode(encode_rows(rows, first_sequence=0, append_time_ms=0))
    assert list(made.event_times()) == times
    assert made.header.event_time_min_ms == -SPARK_TIME_MS_MAX


def test_a_column_given_twice_is_refused() -> None:
    one = pa.array([b"a"])
    with pytest.raises(InvalidArgument, match="twice"):
        input_rows(pa.RecordBatch.from_arrays([one, one], ["value", "value"]))


def test_columns_are_found_without_regard_to_case() -> None:
    """Spark compares names this way, too; two names that differ in case are one column twice."""
    pair = pa.struct([("Key", pa.string()), ("VALUE", pa.binary())])
    headers = pa.array([[("n", b"v")]], pa.list_(pair))
    columns = [pa.array([b"a"]), pa.array([b"k"]), headers]
    given = pa.RecordBatch.from_arrays(columns, ["VALUE", "Key", "Headers"])
    plain = pa.RecordBatch.from_arrays(columns, ["value", "key", "headers"])
    assert input_rows(given).equals(input_rows(plain))
    with pytest.raises(InvalidArgument, match="column 'VALUE' is given twice"):
        input_rows(pa.record_batch({"value": pa.array([b"a"]), "VALUE": pa.array([b"b"])}))
