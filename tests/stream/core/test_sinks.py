"""The changes of streams by a batch of a sink, and the encoded form of its node and tag."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import InvalidArgument, MetadataCorrupt
from stream.core.metadata.format import decode_stream, encode_stream
from stream.core.metadata.streams import Interrupted, SegmentEnd, StreamMetadata
from stream.core.position import Position
from stream.core.sink_order import check_order
from stream.core.sinks import (
    STREAMS_REMEMBERED_MAX,
    CommittedRange,
    SinkTag,
    added_range,
    committed,
    committed_now,
    decode_sink,
    encode_sink,
    interrupted,
    range_in_stream,
)
from stream.errors import CommitOutOfOrder, StreamBusy

EMPTY = StreamMetadata(name="s", created_ms=1)


def end_of(records: int, at_ms: int = 0) -> SegmentEnd:
    return SegmentEnd(records - 1, records, 10 * records, at_ms, at_ms)


def test_ledgers_become_segments_in_their_order() -> None:
    ends = [(5, end_of(3)), (6, end_of(0)), (7, end_of(2))]
    stream = committed(EMPTY, ends, 9)
    assert [(s.number, s.ledger_id, s.first_sequence) for s in stream.segments] == [
        (1, 5, 0),
        (2, 7, 3),
    ]
    assert added_range("n", EMPTY, ends) == CommittedRange("n/s", 1, 2, 0, 5, 50)
    assert range_in_stream("n", stream, {5, 7}) == added_range("n", EMPTY, ends)
    assert range_in_stream("n", stream, {8}) is None
    for twice in ([(7, end_of(2))], [(9, end_of(1)), (9, end_of(1))]):
        with pytest.raises(InvalidArgument, match="must have ledgers of its own"):
            committed(stream, twice, 9)
    with pytest.raises(StreamBusy, match="segment 3 is open"):
        committed(stream.taken_over().begun(1, 9, 0), [], 9)


def test_times_are_those_of_the_commit_and_never_decrease() -> None:
    before = EMPTY.begun(0, 4, 0).sealed(0, end_of(1, 500), 0)
    for now_ms, time_ms in ((400, 500), (600, 600)):
        segment = committed(before, [(5, end_of(3, 7))], now_ms).segments[-1]
        assert (segment.first_time_ms, segment.last_time_ms) == (time_ms, time_ms)


@pytest.mark.parametrize("records", [0, 4])
def test_a_writer_is_interrupted_until_it_continues(records: int) -> None:
    running = EMPTY.taken_over().begun(1, 3, 0).with_prepared(1, 8)
    stream = committed(interrupted(running, end_of(records), 5), [(5, end_of(2))], 5)
    assert stream.interrupted == Interrupted(3, records - 1)
    assert decode_stream("s", encode_stream(stream)) == stream
    assert (stream.epoch, stream.prepared, stream.next_sequence) == (1, 8, records + 2)
    later = committed(stream, [(6, end_of(1))], 6)
    assert later.interrupted == stream.interrupted
    for gone_on in (later.begun(1, 9, 7), later.released(1), later.taken_over()):
        assert gone_on.interrupted is None
        assert b"interrupted" not in encode_stream(gone_on)


def test_a_truncation_ahead_of_an_open_segment_keeps_the_batch() -> None:
    stream = EMPTY.begun(0, 3, 0).truncated(Position(1, 1000, 0), 0)
    stream = committed(interrupted(stream, end_of(4), 5), [(5, end_of(2))], 5)
    assert [segment.number for segment in stream.live()] == [2]
    assert stream.first_available == Position(2, 0, 0)


def test_a_sink_takes_its_batches_in_order() -> None:
    sink = committed_now("k", 7, [CommittedRange("n/s", 1, 2, 0, 5, 50)], 9)
    check_order(sink, "k", 8)
    check_order(sink, "k", 7)
    with pytest.raises(CommitOutOfOrder, match="committed batch 7 already, 6 is older"):
        check_order(sink, "k", 6)
    assert [sink.is_committed(batch) for batch in (6, 7, 8)] == [True, True, False]


def test_a_batch_of_another_origin_is_not_a_repetition() -> None:
    sink = committed_now("k", 7, [], 9, "query a")
    assert decode_sink("k", encode_sink(sink)) == sink
    for batch, origin in ((7, "query a"), (7, ""), (8, "query b")):
        check_order(sink, "k", batch, origin)
    with pytest.raises(CommitOutOfOrder, match="batch 7 already, of query a; this one is of query"):
        check_order(sink, "k", 7, "query b")
    check_order(committed_now("k", 7, [], 9), "k", 7, "query b")


def test_a_sink_lists_a_bounded_number_of_streams() -> None:
    shares = [CommittedRange(f"n/s{n}", 1, 1, 0, 2, 3) for n in range(STREAMS_REMEMBERED_MAX + 5)]
    sink = committed_now("k", 1, shares, 9)
    assert (sink.stream_count, sink.records, sink.nbytes) == (1005, 2010, 3015)
    assert len(sink.streams) == STREAMS_REMEMBERED_MAX
    assert decode_sink("k", encode_sink(sink)) == sink


_GOOD = committed_now("k", 7, [CommittedRange("n/s", 1, 2, 0, 5, 50)], 9)


@pytest.mark.parametrize(
    "change",
    [
        {"sink_id": "other"}, {"batch_id": -1}, {"batch_id": "1"}, {"streams": 1},
        {"streams": [["n/s", 1, 2]]}, {"streams": [[1, 1, 2, 0, 5, 50]]}, {"streams": [7]},
        {"streams": [["n/s", 1, 2, 0, 5, -50]]}, {"records": 1 << 63}, {"more": 1},
        {"version": 2}, {"kind": "stream"},
    ],
)  # fmt: skip
def test_damaged_sinks_are_refused(change: dict[str, object]) -> None:
    document = json.loads(encode_sink(_GOOD)) | change
    with pytest.raises(MetadataCorrupt, match="sink 'k'"):
        decode_sink("k", json.dumps(document).encode())


@given(
    st.builds(
        SinkTag, st.text(min_size=1, max_size=20), st.integers(0, 1 << 40), st.text(max_size=50)
    )
)
def test_a_tag_is_decoded_as_it_was(tag: SinkTag) -> None:
    assert SinkTag.decode(tag.encode()) == tag
    untagged = replace(tag, sink_id=None, batch_id=None)
    assert SinkTag.decode(untagged.encode()) == untagged


@given(
    st.binary(max_size=40) | st.sampled_from([b"{}", b"[]", b'{"sink":1,"batch":1,"attempt":""}'])
)
def test_a_tag_that_cannot_be_read_is_of_no_sink(data: bytes) -> None:
    assert SinkTag.decode(data) == SinkTag()
