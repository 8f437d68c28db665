"""Idempotent producers: sequences without gaps, and the producers recorded in a segment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import MetadataConflict, MetadataCorrupt
from stream.core.entry.encoder import encode
from stream.core.entry.format import read_header
from stream.core.metadata.format import decode_stream, encode_stream
from stream.core.metadata.streams import ProducerState, SegmentEnd, StreamMetadata
from stream.core.producers import ProducerLog, ProducerSet, SegmentTally
from stream.errors import ProducerGap

EMPTY = StreamMetadata(name="s", created_ms=1)


def test_a_log_knows_its_accepted_records_and_refuses_gaps() -> None:
    log = ProducerLog("s", "loader", 1, 4)
    assert [log.known(0), log.known(4), log.known(5)] == [1, 1, 0]
    assert log.known(3, 10) == 2
    log.taken(5, 2)
    assert (log.known(6), log.next_sequence) == (1, 7)
    for sequence in (8, -1):
        with pytest.raises(ProducerGap, match="its next one is 7") as caught:
            log.known(sequence)
        assert (caught.value.sequence, caught.value.next_sequence) == (sequence, 7)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int]]:
    """Draws entries that are created, confirmed, rolled over and repaired, in some order."""
    return draw(
        st.lists(
            st.one_of(
                st.tuples(st.just("make"), st.integers(0, 3)),
                st.tuples(st.just("confirm"), st.integers(0, 3)),
                st.tuples(st.sampled_from(["roll", "repair"]), st.integers(0, 3)),
            ),
            max_size=60,
        )
    )


@given(histories())
def test_an_entry_without_the_mark_has_no_other_producers_before_it(
    life: list[tuple[str, int]],
) -> None:
    """Unconfirmed entries go to a later segment when theirs is rolled over or repaired; some of
    them may have stayed in the old one."""
    mixture = ProducerSet()
    sealed: list[list[tuple[int, bool]]] = []
    segment: list[tuple[int, bool]] = []
    confirmed = 0
    for what, number in life:
        match what:
            case "make":
                segment.append((number, mixture.add(number)))
            case "confirm":
                confirmed = min(len(segment), confirmed + number)
            case "roll" | "repair":
                mixture = ProducerSet(producer for producer, _ in segment[confirmed:])
                kept = min(len(segment), confirmed + number) if what == "repair" else confirmed
                sealed.append(segment[:kept])
                segment, confirmed = segment[kept:], 0
    for entries in (*sealed, segment):
        for index, (producer, is_marked) in enumerate(entries):
            others = {before for before, _ in entries[:index]} - {0, producer}
            assert is_marked or not others


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=20))
def test_the_last_header_or_all_headers_show_the_last_sequences_of_producers(
    entries: list[tuple[int, int]],
) -> None:
    mixture, nexts = ProducerSet(), {1: 0, 2: 0}
    tally = SegmentTally()
    for producer, count in entries:
        payload = encode(
            [b""] * count,
            producer_id=producer,
            producer_sequence=nexts.get(producer, 0),
            has_producers_before=mixture.add(producer),
        )
        if producer:
            nexts[producer] += count
        tally.add(read_header(payload))
    expected = {producer: count - 1 for producer, count in nexts.items() if count}
    assert dict(tally.producers) == expected
    last = read_header(payload)
    if not last.has_producers_before:
        alone = SegmentTally()
        alone.add(last)
        assert alone.producers == tally.producers


def test_the_range_of_event_times_is_known_or_unknown_never_wrong() -> None:
    def range_of(*times: list[int | None] | None) -> tuple[int, int]:
        tally = SegmentTally()
        for column in times:
            tally.add(read_header(encode([b""] * len(column or [0]), event_times=column)))
        return tally.event_range_ms

    assert range_of(None) == (-1, -1)
    assert range_of([7, 3], None, [None, 9]) == (3, 9)
    assert range_of([None], [5]) == (5, 5)
    assert range_of([0]) == (0, 0)
    assert range_of([5], [-1]) == (-1, -1)


def test_sealing_keeps_the_last_sequence_of_each_producer() -> None:
    stream = EMPTY.taken_over().begun(1, 70, 0).with_producer(1, "a").with_producer(1, "b")
    assert stream.with_producer(1, "a") is stream
    end = SegmentEnd(4, 10, 100, 1, 2, producers=((1, 6), (9, 3)))
    stream = stream.sealed(1, end, 5).begun(1, 71, 5)
    assert stream.producers == {"a": ProducerState(1, 6, 1), "b": ProducerState(2)}
    older = SegmentEnd(0, 1, 100, 3, 3, producers=((1, 2), (2, 0)))
    stream = stream.sealed(1, older, 5)
    assert stream.producers == {"a": ProducerState(1, 6, 1), "b": ProducerState(2, 0, 2)}
    assert decode_stream("s", encode_stream(stream)) == stream


def test_a_number_is_never_reused() -> None:
    stream = EMPTY.taken_over().with_producer(1, "a").without_producer("a").with_producer(1, "a")
    assert stream.producers == {"a": ProducerState(2)}
    assert stream.without_producer("b") == stream
    with pytest.raises(MetadataConflict):
        stream.taken_over().with_producer(1, "b")
    with pytest.raises(MetadataCorrupt, match="numbers"):
        StreamMetadata(name="s", created_ms=1, producers={"a": ProducerState(1)})
