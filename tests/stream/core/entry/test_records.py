"""Entry payloads: round trips against plain lists, golden bytes, and damaged bytes."""

from __future__ import annotations

import copy
import pickle
import struct
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.errors import InvalidArgument
from stream.core.entry.compression import Compression
from stream.core.entry.encoder import encode
from stream.core.entry.format import BODY_BYTES_MAX, HEADER_BYTES, read_header
from stream.core.entry.records import NULL, Record, RecordBatch, decode
from stream.core.position import Position
from stream.errors import RecordFormatError
from tests.effort import scaled

pa = pytest.importorskip("pyarrow")

_short = st.binary(max_size=12)
_times = st.integers(-(1 << 63), (1 << 63) - 1)
_pairs = st.lists(st.tuples(st.text(max_size=5), st.none() | _short), max_size=3)


@dataclass(frozen=True)
class Row:
    """The naive twin of a record, whose decoded values must equal the encoded ones."""

    value: bytes | None
    key: bytes | None
    event_time_ms: int | None
    headers: list[tuple[str, bytes | None]]


_rows = st.lists(
    st.builds(Row, st.none() | _short, st.none() | _short, st.none() | _times, _pairs),
    min_size=1,
    max_size=40,
)
_widths = st.sampled_from([0, 1, 100])


def payload_of(rows: list[Row], compression: Compression = Compression.NONE) -> bytes:
    return encode(
        [row.value for row in rows],
        first_sequence=1000,
        append_time_ms=77,
        keys=[row.key for row in rows],
        event_times=[row.event_time_ms for row in rows],
        headers=[row.headers for row in rows],
        compression=compression,
    )


@given(_rows, st.sampled_from(Compression), st.data())
def test_decoded_records_equal_the_encoded_ones(
    rows: list[Row], kind: Compression, data: st.DataObject
) -> None:
    batch = decode(payload_of(rows, kind), segment=3, entry=9)
    first = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(first, len(rows)))
    for view, start, end in (
        (batch, 0, len(rows)),
        (batch.since(first), first, len(rows)),
        (batch.between(first, stop), first, stop),
        (batch.between(0, stop).since(first), first, stop),
    ):
        assert len(view) == end - start
        if end > start:
            assert view.first_position == Position(3, 9, start)
            assert view.last_position == Position(3, 9, end - 1)
            assert view.after == (Position(3, 9, end) if end < len(rows) else Position(3, 10, 0))
        assert view.records() == [
            Record(
                Position(3, 9, slot), 1000 + slot, row.value or b"", row.key, row.event_time_ms,
                77, tuple((name, value or b"") for name, value in row.headers),
            )
            for slot, row in enumerate(rows)
            if start <= slot < end
        ]  # fmt: skip
        assert [record.is_tombstone for record in view] == [
            row.value is None for row in rows[start:end]
        ]
        assert [value is NULL for record in view for _, value in record.headers] == [
            value is None for row in rows[start:end] for _, value in row.headers
        ]
        assert view.values() == [row.value or b"" for row in rows[start:end]]
        assert view.to_arrow().to_pylist() == [
            {
                "value": row.value,
                "key": row.key,
                "event_time_ms": row.event_time_ms,
                "headers": [{"name": name, "value": value} for name, value in row.headers]
                if any(row.headers for row in rows)
                else None,
            }
            for row in rows[start:end]
        ]


@given(_widths, st.integers(1, 50), st.integers(0, 49))
def test_values_of_one_length_take_the_fast_path_and_agree(width: int, count: int, at: int) -> None:
    values = [bytes([number]) * width for number in range(count)]
    assert decode(encode(values)).since(at).values() == values[at:]


def read_everything(batch: RecordBatch) -> None:
    batch.records()
    batch.to_arrow()


_damage = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4)


@settings(max_examples=scaled(ci=80, night=2000))
@given(_rows, st.sampled_from(Compression), _damage, st.none() | st.floats(0, 1))
def test_damaged_bytes_give_a_format_error_or_other_records(
    rows: list[Row], kind: Compression, damage: list[tuple[float, int]], cut: float | None
) -> None:
    """There is no other exception, no read out of bounds, and no more bytes than the limit."""
    payload = bytearray(payload_of(rows, kind))
    for at, byte in damage:
        payload[int(at * (len(payload) - 1))] = byte
    if cut is not None:
        del payload[int(cut * len(payload)) :]
    try:
        read_everything(decode(payload))
    except RecordFormatError:
        pass


@settings(max_examples=scaled(ci=80, night=2000))
@given(_rows, st.integers(0, 300), st.integers(-(1 << 31), (1 << 31) - 1))
def test_wrong_numbers_in_columns_read_nothing_outside(
    rows: list[Row], at: int, number: int
) -> None:
    payload = bytearray(payload_of(rows))
    offset = min(HEADER_BYTES + 4 * at, len(payload) - 4)
    struct.pack_into("<i", payload, offset, number)
    batch = None
    try:
        batch = decode(payload)
        read_everything(batch)
    except RecordFormatError:
        pass
    if batch is not None:
        try:
            batch.to_arrow()
        except RecordFormatError:
            pass


@given(st.binary(max_size=200))
def test_garbage_is_refused(garbage: bytes) -> None:
    with pytest.raises(RecordFormatError):
        decode(garbage)


GOLDEN = bytes.fromhex(
    "4c53454e"  # LSEN
    "01000500"  # version 1, not compressed, flags: keys, event times
    "02000000 48000000"  # two records, 72 bytes of header, zero
    "2a00000000000000"  # first sequence 42
    "e803000000000000"  # append time 1000
    "0500000000000000 0700000000000000"  # event times 5 to 7
    "0000000000000000 0000000000000000"  # producer: reserved
    "40000000 40000000"  # 64 bytes of columns, stored as they are
    "00000000 01000000 03000000 00000000"  # value offsets 0 1 3, padding
    "61 6262 0000000000"  # a bb, padding
    "00000000 01000000 01000000 00000000"  # key offsets 0 1 1, padding
    "6b 00000000000000"  # k, padding
    "0500000000000000"  # event times
    "0700000000000000"
)


def test_golden_bytes() -> None:
    payload = encode(
        [b"a", b"bb"], first_sequence=42, append_time_ms=1000, keys=[b"k", b""], event_times=[5, 7]
    )
    assert payload == GOLDEN
    assert decode(GOLDEN).keys() == [b"k", b""]


NULLS = bytes.fromhex(
    "4c53454e"  # LSEN
    "01009101"  # version 1, not compressed, flags: keys, headers, validity of both values
    "02000000 48000000"  # two records, 72 bytes of header, zero
    "0000000000000000"  # first sequence 0
    "e803000000000000"  # append time 1000
    "ffffffffffffffff ffffffffffffffff"  # no event times
    "0000000000000000 0000000000000000"  # no producer
    "78000000 78000000"  # 120 bytes of columns, stored as they are
    "01 00000000000000"  # value validity: the second is null, padding
    "00000000 01000000 01000000 00000000"  # value offsets 0 1 1, padding
    "61 00000000000000"  # a, padding
    "00000000 01000000 02000000 00000000"  # key offsets 0 1 2, padding
    "6b6c 000000000000"  # k l, padding
    "00000000 02000000 02000000 00000000"  # header list offsets 0 2 2, padding
    "00000000 01000000 02000000 00000000"  # header name offsets 0 1 2, padding
    "6e6f 000000000000"  # n o, padding
    "02 00000000000000"  # header validity: the first value is null, padding
    "00000000 00000000 00000000 00000000"  # header value offsets 0 0 0, padding, no bytes
)


def test_golden_bytes_of_null_values() -> None:
    payload = encode(
        [b"a", None],
        append_time_ms=1000,
        keys=[b"k", b"l"],
        headers=[[("n", None), ("o", b"")], []],
    )
    assert payload == NULLS
    first, second = decode(NULLS)
    assert not first.is_tombstone
    assert second.is_tombstone
    assert [value is NULL for _, value in first.headers] == [True, False]


def test_null_is_empty_bytes_and_only_itself() -> None:
    assert NULL == b""
    assert repr(NULL) == "NULL"
    record = Record(Position(1, 0, 0), 0, NULL, b"k", None, 0, (("n", NULL),))
    for again in (pickle.loads(pickle.dumps(record)), copy.deepcopy(record)):
        assert again == record
        assert again.is_tombstone
        assert again.headers[0][1] is NULL
    assert not record._replace(value=b"").is_tombstone


def test_what_is_no_bytes_is_refused_as_before() -> None:
    with pytest.raises(TypeError):
        encode([b"a", 5])  # type: ignore[list-item]


def addresses_of(array: Any) -> list[int]:
    return [buffer.address for buffer in array.buffers() if buffer is not None]


@pytest.mark.parametrize("is_part", [False, True])
def test_no_column_handed_to_arrow_is_a_copy(is_part: bool) -> None:
    payload = encode(
        [b"one", None, b"three"], first_sequence=0, append_time_ms=0, keys=[b"k", None, b"l"],
        event_times=[1, None, 3], headers=[[("h", b"1")], [], [("i", None)]],
    )  # fmt: skip
    # A reader's payload is part of a received buffer, at any address.
    received = memoryview(b"12345" + payload)[5:]
    batch = decode(received)
    arrow = (batch.between(1, 2) if is_part else batch).to_arrow()
    first = pa.py_buffer(received).address
    found = [address for column in arrow.columns for address in addresses_of(column)]
    assert len(found) == 3 + 3 + 2 + 6, "values, keys, times; lists, their names and values"
    assert all(first <= address < first + len(payload) for address in found)
    assert arrow.num_rows == (1 if is_part else 3)


@pytest.mark.parametrize("kind", [Compression.LZ4, Compression.ZSTD])
def test_compression_is_kept_only_if_it_helps(kind: Compression) -> None:
    assert read_header(encode([bytes(1000)], compression=kind)).compression is kind
    assert read_header(encode([b"abc"], compression=kind)).compression is Compression.NONE


@pytest.mark.parametrize("kind", [Compression.LZ4, Compression.ZSTD])
def test_a_decompression_bomb_is_refused_before_it_inflates(kind: Compression) -> None:
    import lz4.block
    import zstandard

    bomb = bytes(64 << 20)
    stored = (
        lz4.block.compress(bomb, store_size=False)
        if kind is Compression.LZ4
        else zstandard.ZstdCompressor().compress(bomb)
    )
    for claimed in (1000, BODY_BYTES_MAX, BODY_BYTES_MAX + 1, (1 << 32) - 1):
        payload = bytearray(encode([b"x"])[:HEADER_BYTES] + stored)
        payload[5] = kind
        struct.pack_into("<II", payload, 64, claimed, len(stored))
        with pytest.raises(RecordFormatError):
            decode(payload)


def test_each_header_field_is_checked_and_named() -> None:
    good = encode([b"value"], first_sequence=1)
    for offset, form, value, text in (
        (0, "4s", b"NOPE", "magic"),
        (4, "B", 2, "version 2"),
        (5, "B", 9, "compression 9"),
        (6, "<H", 2, "validity without"),
        (6, "<H", 256, "validity without"),
        (6, "<H", 512, "unknown flags"),
        (8, "<I", 0, "0 records"),
        (8, "<I", 65537, "65537 records"),
        (12, "<H", 80, "header of 80"),
        (16, "<q", -1, "first sequence -1"),
        (48, "<q", -1, "producer -1"),
        (56, "<q", -5, "at sequence -5"),
        (64, "<I", 5 << 20, "bytes of columns"),
        (68, "<I", 1, "stored bytes"),
    ):
        payload = bytearray(good)
        struct.pack_into(form, payload, offset, value)
        with pytest.raises(RecordFormatError, match=text) as caught:
            decode(payload)
        assert caught.value.offset == offset
    payload = bytearray(good + bytes(8))
    struct.pack_into("<II", payload, 64, len(good) - 64, len(good) - 64)
    with pytest.raises(RecordFormatError, match="behind the last column"):
        decode(payload)


def test_oversized_or_uneven_input_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="1 to 65536 records, not 0"):
        encode([])
    with pytest.raises(InvalidArgument, match="limit 4194304"):
        encode([bytes(1 << 20)] * 5)
    with pytest.raises(InvalidArgument, match="2 keys for 1 values"):
        encode([b"a"], keys=[b"x", None])
    with pytest.raises(InvalidArgument, match="64 bits"):
        encode([b"a"], event_times=[1 << 70])


def test_sequences_may_count_from_the_segment() -> None:
    payload = encode([b"a", b"b"], first_sequence=5, is_sequence_in_segment=True)
    assert [record.sequence for record in decode(payload, base_sequence=100)] == [105, 106]
