"""Compares Arrow batches of entries with single records; damage must be an error."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.spark.schema import COLUMNS, arrow_schema, spark_schema
from connectors.spark.source import arrow_read
from connectors.spark.source.arrow_read import ArrowBuilder, timestamps
from ledger.errors import InvalidArgument
from stream.core.entry.compression import Compression
from stream.core.entry.encoder import encode
from stream.core.entry.format import HEADER_BYTES
from stream.core.entry.records import RecordBatch, decode
from stream.errors import RecordFormatError
from tests.effort import scaled

_YEAR_MS = 365 * 86_400_000
_short = st.binary(max_size=12)
_times = st.integers(-1900 * _YEAR_MS, 7000 * _YEAR_MS)
_pairs = st.lists(st.tuples(st.text(max_size=5), st.none() | _short), max_size=3)


@dataclass(frozen=True)
class Row:
    value: bytes | None
    key: bytes | None
    event_time_ms: int | None
    headers: list[tuple[str, bytes | None]]


_entries = st.lists(
    st.tuples(
        st.lists(
            st.builds(Row, st.none() | _short, st.none() | _short, st.none() | _times, _pairs),
            min_size=1,
            max_size=12,
        ),
        st.sampled_from(Compression),
        st.floats(0, 1),
        st.floats(0, 1),
    ),
    max_size=5,
)


def time_of(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def encoded(rows: list[Row], first_sequence: int, kind: Compression = Compression.NONE) -> bytes:
    return encode(
        [row.value for row in rows], first_sequence=first_sequence, append_time_ms=first_sequence,
        keys=[row.key for row in rows], event_times=[row.event_time_ms for row in rows],
        headers=[row.headers for row in rows], compression=kind,
    )  # fmt: skip


@settings(max_examples=scaled(ci=60, night=1500), deadline=None)
@given(
    _entries,
    st.permutations(COLUMNS),
    st.integers(1, len(COLUMNS)),
    st.sampled_from([1, 2, 3, 7, 1000]),
    st.sampled_from([0, 200, 1 << 30]),
)
def test_batches_are_the_records(
    entries: list[tuple[list[Row], Compression, float, float]],
    columns: list[str],
    how_many: int,
    rows_max: int,
    alone_bytes: int,
) -> None:
    chosen = tuple(columns[:how_many])
    schema = arrow_schema(spark_schema(chosen))
    builder = ArrowBuilder(schema, "ns/s", 3, rows_max)
    wanted: list[dict[str, Any]] = []
    found: list[pa.RecordBatch] = []
    before = arrow_read.OWN_BATCH_BYTES
    arrow_read.OWN_BATCH_BYTES = alone_bytes
    try:
        for entry_id, (rows, kind, begin, end) in enumerate(entries):
            batch = decode(encoded(rows, 100 * entry_id, kind), segment=2, entry=entry_id)
            first = int(begin * len(rows))
            stop = first + int(end * (len(rows) + 1 - first))
            found += builder.add(batch.between(first, stop), 50 + entry_id)
            for slot, row in list(enumerate(rows))[first:stop]:
                full = {
                    "stream": "ns/s", "partition": 3, "segment": 2, "entry": entry_id,
                    "slot": slot, "sequence": 100 * entry_id + slot,
                    "event_time": None if row.event_time_ms is None else time_of(row.event_time_ms),
                    "append_time": time_of(50 + entry_id), "key": row.key, "value": row.value,
                    "headers": [{"name": name, "value": value} for name, value in row.headers],
                }  # fmt: skip
                wanted.append({name: full[name] for name in chosen})
        found += builder.finish()
    finally:
        arrow_read.OWN_BATCH_BYTES = before
    assert [row for batch in found for row in batch.to_pylist()] == wanted
    for batch in found:
        batch.validate(full=True)
        assert batch.schema.equals(schema, check_metadata=True)
        assert 0 < batch.num_rows <= rows_max


def test_the_columns_keep_the_case_of_the_schema() -> None:
    schema = pa.schema([each.with_name(each.name.title()) for each in arrow_schema(spark_schema())])
    builder = ArrowBuilder(schema, "ns/s", 2, 10)
    batch = decode(encode([b"v"], first_sequence=7, append_time_ms=0), segment=1, entry=3)
    (made,) = [*builder.add(batch, 5), *builder.finish()]
    assert made.schema.equals(schema)
    (row,) = made.to_pylist()
    assert (row["Value"], row["Sequence"], row["Stream"], row["Partition"]) == (b"v", 7, "ns/s", 2)


def test_a_null_is_refused_where_the_schema_declares_not_null() -> None:
    """Spark would take it for any value."""
    nulls = [
        (encode([b"v", None], keys=[b"k", b"k"]), "value", pa.field("value", pa.binary(), False)),
        (
            encode([b"v"], headers=[[("n", None)]]),
            "headers.value",
            pa.field("headers", pa.list_(pa.field("element", pa.struct([
                pa.field("name", pa.string(), False), pa.field("value", pa.binary(), False),
            ]), False)), False),
        ),
    ]  # fmt: skip
    for payload, name, declared in nulls:
        builder = ArrowBuilder(pa.schema([declared]), "ns/s", 1, 10)
        batch = decode(payload, segment=4, entry=9)
        with pytest.raises(InvalidArgument, match=rf"{name} is null in the entry 4:9 .*NOT NULL"):
            list(builder.add(batch, 0))
        plain = decode(encode([b"v"], headers=[[("n", b"")]]), segment=4, entry=10)
        (made,) = [*builder.add(plain, 0), *builder.finish()]
        assert made.num_rows == 1


def test_a_large_entry_is_not_copied() -> None:
    payload = encode([b"v" * 100] * 3000, first_sequence=0, append_time_ms=0)
    assert len(payload) > arrow_read.OWN_BATCH_BYTES
    builder = ArrowBuilder(arrow_schema(spark_schema(("value",))), "ns/s", 0, 10_000)
    (batch,) = builder.add(decode(payload), 0)
    begin = pa.py_buffer(payload).address
    assert all(
        begin <= buffer.address < begin + len(payload)
        for buffer in batch.column("value").buffers()
        if buffer is not None
    )


def test_compressed_entries_are_concatenated_by_their_uncompressed_size() -> None:
    """Arrow counts the bytes of a batch in 31 bits, and the memory of a task is bounded."""
    small = encode(
        [bytes(50_000)] * 4, first_sequence=0, append_time_ms=0, compression=Compression.ZSTD
    )
    assert len(small) < 1000
    builder = ArrowBuilder(arrow_schema(spark_schema(("value",))), "ns/s", 0, 10_000)
    found = [made for n in range(30) for made in builder.add(decode(small, entry=n), 0)]
    found += builder.finish()
    assert sum(made.num_rows for made in found) == 120
    assert max(made.nbytes for made in found) < arrow_read.FLUSH_BYTES + arrow_read.OWN_BATCH_BYTES


def test_times_beyond_sparks_range_are_refused_with_the_record() -> None:
    end = ((1 << 63) - 1) // 1000
    kind = pa.timestamp("us", "UTC")
    assert timestamps(pa.array([end, None, -end]), kind).view(pa.int64()).to_pylist() == [
        1000 * end, None, -1000 * end,
    ]  # fmt: skip
    for time_ms in (end + 1, -end - 1):
        payload = encode(
            [b"a", b"b", b"c"], event_times=[5, None, time_ms], first_sequence=0,
            append_time_ms=0,
        )  # fmt: skip
        batch = decode(payload, segment=4, entry=9)
        builder = ArrowBuilder(arrow_schema(spark_schema()), "ns/s", 1, 10)
        with pytest.raises(InvalidArgument, match=rf"4:9:2 of .*'ns/s'.* {time_ms:,} ms"):
            list(builder.add(batch, 0))
        with pytest.raises(InvalidArgument, match="4:9:2 of"):
            list(builder.add(batch.between(1, 3), 0))
        others = ArrowBuilder(arrow_schema(spark_schema(("value",))), "ns/s", 1, 10)
        (made,) = [*others.add(batch, 0), *others.finish()]
        assert made.num_rows == 3


_rows = st.lists(
    st.builds(Row, _short, st.none() | _short, st.none() | _times, _pairs), min_size=1, max_size=20
)


def everything(batch: RecordBatch) -> None:
    builder = ArrowBuilder(arrow_schema(spark_schema()), "ns/s", 0, 1000)
    for made in [*builder.add(batch, 0), *builder.finish()]:
        made.to_pylist()


@settings(max_examples=scaled(ci=80, night=2000), deadline=None)
@given(_rows, st.integers(0, 200), st.integers(-(1 << 31), (1 << 31) - 1))
def test_wrong_numbers_are_errors_or_other_records(rows: list[Row], at: int, number: int) -> None:
    payload = bytearray(encoded(rows, 0))
    struct.pack_into("<i", payload, min(HEADER_BYTES + 4 * at, len(payload) - 4), number)
    try:
        everything(decode(payload))
    except RecordFormatError:
        pass
    except InvalidArgument as error:
        # The number became an event time that Spark cannot hold.
        assert "beyond Spark's timestamps" in str(error)  # noqa: PT017
    except (OverflowError, ValueError) as error:
        # Raised by to_pylist: Python's range of times is smaller than Spark's.
        assert "out of range" in str(error) or "year" in str(error)  # noqa: PT017
