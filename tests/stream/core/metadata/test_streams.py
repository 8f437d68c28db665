"""Stream metadata: its legal changes, the invariants they keep, and its encoded form."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import InvalidArgument, LedgerError, MetadataConflict, MetadataCorrupt
from stream.core.metadata.documents import DOCUMENT_BYTES_MAX, JSON_BYTES_MAX
from stream.core.metadata.format import (
    decode_namespace,
    decode_stream,
    encode_namespace,
    encode_stream,
)
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.streams import Segment, SegmentEnd, StreamMetadata
from stream.core.position import Position
from stream.core.sinks import committed, interrupted
from stream.core.trash import purged, tombstone

EMPTY = StreamMetadata(name="s", created_ms=1)


def end_of(records: int, at_ms: int = 0) -> SegmentEnd:
    if records == 0:
        return SegmentEnd(-1, 0, 0)
    return SegmentEnd((records - 1) // 2, records, 10 * records, at_ms, at_ms + 1)


def sealed_stream(*records: int) -> StreamMetadata:
    stream = EMPTY.taken_over()
    for number, count in enumerate(records):
        stream = stream.begun(1, number, 0).sealed(1, end_of(count, 100 * number), 0)
    return stream


def test_the_life_of_segments() -> None:
    stream = EMPTY.taken_over().begun(1, 70, 5)
    assert (stream.epoch, stream.open_segment) == (1, stream.segments[0])
    stream = stream.with_prepared(1, 71).sealed(1, end_of(10), 6).begun(1, 71, 6)
    assert [(s.number, s.ledger_id, s.first_sequence) for s in stream.segments] == [
        (1, 70, 0),
        (2, 71, 10),
    ]
    assert stream.prepared is None
    stream = stream.sealed(1, end_of(5), 7)
    assert (stream.next_sequence, stream.next_segment) == (15, 3)
    assert stream.sealed_end == Position(2, 3, 0)


def test_an_empty_segment_is_removed_but_its_number_is_never_reused() -> None:
    stream = EMPTY.taken_over().begun(1, 70, 0).sealed(1, end_of(0), 1).begun(1, 71, 1)
    assert [(s.number, s.ledger_id) for s in stream.segments] == [(2, 71)]
    assert stream.garbage == (70,)


def test_only_the_holder_of_the_epoch_changes_segments() -> None:
    stream = EMPTY.taken_over().begun(1, 70, 0).with_prepared(1, 71).taken_over()
    assert (stream.prepared, stream.garbage) == (None, (71,))
    changes: list[Callable[[], object]] = [
        lambda: stream.sealed(1, end_of(1), 0),
        lambda: stream.begun(1, 9, 0),
        lambda: stream.with_prepared(1, 9),
        lambda: tombstone(stream, 0).sealed(stream.epoch + 1, end_of(1), 0),
    ]
    for change in changes:
        with pytest.raises(MetadataConflict):
            change()
    with pytest.raises(MetadataConflict, match="still open"):
        stream.begun(2, 9, 0)


def test_truncation_moves_forward_and_drops_whole_segments() -> None:
    stream = sealed_stream(10, 10, 10).begun(1, 99, 0)
    cut = stream.truncated(Position(2, 3, 1), 7)
    assert [s.number for s in cut.dropped()] == [1]
    assert cut.first_available == Position(2, 3, 1)
    assert cut.truncated(Position(1, 0, 0), 8) == cut
    with pytest.raises(MetadataConflict, match="segment 1 is not purged"):
        cut.forgotten([0])
    less = purged(cut, 1).forgotten([0])
    assert [s.number for s in less.segments] == [2, 3, 4]
    gone = less.truncated(Position(4, 1000, 0), 9)
    assert [(s.number, s.dropped_ms) for s in gone.dropped()] == [(2, 9), (3, 9)]
    with pytest.raises(InvalidArgument, match="cannot truncate to 5:0:0"):
        gone.truncated(Position(5, 0, 0), 9)


def test_an_emptied_stream_continues_counting() -> None:
    stream = sealed_stream(10)
    stream = purged(stream.truncated(stream.sealed_end, 0), 1)
    stream = stream.forgotten(stream.garbage)
    assert (stream.segments, stream.next_sequence, stream.next_segment) == ((), 10, 2)
    assert stream.begun(1, 5, 0).segments[0].first_sequence == 10


def test_segments_are_found_by_position() -> None:
    stream = sealed_stream(10, 0, 10)  # segments 1 and 3 of 5 entries each
    for position, number in (((0, 0, 0), 1), ((1, 4, 9), 1), ((1, 5, 0), 3), ((2, 0, 0), 3)):
        segment = stream.segment_at(Position(*position))
        assert segment is not None
        assert segment.number == number
    assert stream.segment_at(Position(3, 5, 0)) is None


_steps = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "begin",
                "seal",
                "take",
                "prepare",
                "truncate",
                "purge",
                "forget",
                "commit",
                "interrupt",
            ]
        ),
        st.integers(0, 5),
    ),
    max_size=30,
)


@given(_steps)
def test_any_changes_keep_sequences_dense_numbers_rising_and_truncation_monotonic(
    steps: list[tuple[str, int]],
) -> None:
    """The twin counts records: the listed records are always a suffix of the sealed ones."""
    stream, total, ledger = EMPTY, 0, 100
    for what, number in steps:
        before, ledger = stream, ledger + 1
        try:
            match what:
                case "begin":
                    stream = stream.begun(stream.epoch, ledger, 0)
                case "seal":
                    stream = stream.sealed(stream.epoch, end_of(number), 0)
                    total += number
                case "take":
                    stream = stream.taken_over()
                case "prepare":
                    stream = stream.with_prepared(stream.epoch, ledger)
                case "truncate":
                    stream = stream.truncated(Position(number, number, 0), 0)
                case "purge":
                    stream = purged(stream, number)
                case "forget":
                    stream = stream.forgotten(stream.garbage)
                case "commit":
                    stream = committed(stream, [(ledger, end_of(number))], 0)
                    total += number
                case "interrupt" if stream.open_segment is not None:
                    stream = interrupted(stream, end_of(number), 0)
                    total += number
        except LedgerError:
            assert stream is before
        assert stream.next_sequence == total
        assert stream.truncated_to >= before.truncated_to
        assert stream.next_segment >= before.next_segment
        kept = sum(segment.records for segment in stream.segments)
        first = stream.segments[0].first_sequence if stream.segments else total
        assert first + kept == total
        assert len(set(stream.ledgers())) == len(stream.ledgers())
        assert decode_stream("s", encode_stream(stream)) == stream


def test_a_document_that_has_not_changed_is_decoded_once() -> None:
    data = encode_stream(EMPTY)
    assert decode_stream("s", data) is decode_stream("s", b"".join([data[:1], data[1:]]))
    with pytest.raises(MetadataCorrupt):
        decode_stream("t", data)
    large = replace(EMPTY, garbage=tuple(range(2_000)))
    data = encode_stream(large)
    assert decode_stream("s", data) == decode_stream("s", data) == large
    assert decode_stream("s", data) is not decode_stream("s", data), "kept, although it is large"


def test_damaged_stream_metadata_is_metadata_corrupt() -> None:
    good = json.loads(encode_stream(sealed_stream(3, 4)))
    damages: list[dict[str, object]] = [
        {"kind": "namespace"},
        {"version": 2},
        {"name": "other"},
        {"epoch": -5},
        {"epoch": "1"},
        {"epoch": True},
        {"truncated_to": "x"},
        {"segments": [[1]]},
        {"segments": 3},
        {"segment_columns": []},
        {"next_sequence": 8},
        {"next_segment": 2},
        {"interrupted": [1, "b"]},
        {"interrupted": [1]},
        {"interrupted": 1},
        {"surprise": 1},
        {"is_deleted": 7},
        {"is_purged": 7},
    ]
    for changes in damages:
        with pytest.raises(MetadataCorrupt):
            decode_stream("s", json.dumps({**good, **changes}).encode())
    for raw in (b"", b"[]", b"{", b"[" * 100_000, b"\xff", bytes(DOCUMENT_BYTES_MAX + 1)):
        with pytest.raises(MetadataCorrupt):
            decode_stream("s", raw)


def test_metadata_beyond_its_limit_is_refused_with_the_cure() -> None:
    rng = random.Random(5)
    stream = replace(EMPTY, garbage=tuple(rng.randrange(1 << 60) for _ in range(120_000)))
    with pytest.raises(InvalidArgument, match="set a retention"):
        encode_stream(stream)
    stream = replace(
        EMPTY, garbage=(7,) * (JSON_BYTES_MAX // 2)
    )  # almost no bytes once it is deflated
    with pytest.raises(InvalidArgument, match="set a retention"):
        encode_stream(stream)


def test_long_metadata_is_deflated_and_takes_twenty_thousand_segments() -> None:
    rng = random.Random(5)
    segments: list[Segment] = []
    time_ms, sequence = 1_764_000_000_000, 0
    for number in range(1, 20_001):
        time_ms += rng.randrange(300, 3_000)
        records = rng.randrange(1, 50_000)
        end = SegmentEnd(
            rng.randrange(9), records, records * rng.randrange(50, 200), time_ms, time_ms,
            time_ms - rng.randrange(90_000), time_ms,
        )  # fmt: skip
        ledger = 1000 + number * 5 + rng.randrange(5)
        segments.append(Segment(number, ledger, sequence, time_ms).sealed(end, time_ms))
        sequence += records
    stream = replace(
        EMPTY, segments=tuple(segments), next_segment=len(segments) + 1, next_sequence=sequence
    )
    data = encode_stream(stream)
    assert (
        len(data) < DOCUMENT_BYTES_MAX * 9 // 10
    )  # the rest is what commits of sinks leave to writers
    assert decode_stream("s", data) == stream
    bomb = zlib.compress(b" " * (JSON_BYTES_MAX + 1))
    for damaged in (data[:-1], data[:100], data + b"x", data[:9] + b"\xff" + data[10:], bomb):
        with pytest.raises(MetadataCorrupt):
            decode_stream("s", damaged)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (b"[" + b"[]," * 5_333_000 + b"1]", "5333001 elements, limit 1000000"),
        (b"[" + b"[]," * 900_000 + b"1]", "900001 lists and objects, limit 250000"),
        (b'{"a":1' + b',"a":1' * 2_000_000 + b"}", "elements, limit 1000000"),
        (b'{"kind":"stream","epoch":' + b"[" * 900 + b"]" * 900 + b"}", "nested over 32 deep"),
    ],
)
def test_a_document_that_would_inflate_to_millions_of_values_is_not_parsed(
    text: bytes, cause: str
) -> None:
    assert len(text) <= JSON_BYTES_MAX, "it is the parsing that is refused, not the size"
    with pytest.raises(MetadataCorrupt, match=cause):
        decode_stream("s", zlib.compress(text, 9))


def test_no_document_is_written_that_a_reader_would_refuse() -> None:
    stream = replace(EMPTY, garbage=(7,) * 1_100_000)
    with pytest.raises(InvalidArgument, match="1000000 elements"):
        encode_stream(stream)


def test_namespaces_are_validated_and_read_back() -> None:
    namespace = NamespaceMetadata(name="n", retention_ms=5, compression="lz4")
    assert decode_namespace("n", encode_namespace(namespace)) == namespace
    for wrong in (
        {"ack_quorum": 4},
        {"ensemble_size": 0},
        {"digest_type": "MD5"},
        {"compression": "gzip"},
        {"retention_ms": -1},
        {"batch_bytes": 2 << 20},
        {"roll_ms": 1},
        {"linger_ms": 1.5},
        {"name": "a/b"},
    ):
        with pytest.raises(InvalidArgument):
            replace(namespace, **wrong)
    with pytest.raises(MetadataCorrupt):
        decode_namespace("other", encode_namespace(namespace))
    with pytest.raises(MetadataCorrupt):
        decode_namespace("n", encode_namespace(namespace)[:-1] + b',"x":1}')
