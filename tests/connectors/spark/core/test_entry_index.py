"""Offsets in a segment are exact to the record, and are found with few tries."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.spark.core.entry_index import (
    INDEXED_ENTRIES_MAX,
    IndexedEntry,
    SearchKey,
    SegmentOffset,
    SparseIndex,
)
from ledger.errors import MetadataCorrupt

FIRST = 1000


def a_segment(sizes: list[tuple[int, int]]) -> list[IndexedEntry]:
    """Makes a segment of entries with these numbers of records and bytes."""
    found: list[IndexedEntry] = []
    sequence, nbytes = FIRST, 0
    for entry, (count, size) in enumerate(sizes):
        found.append(IndexedEntry(entry, sequence, count, nbytes, size, 5))
        sequence, nbytes = sequence + count, nbytes + size
    return found


def offsets_of(entries: list[IndexedEntry]) -> list[SegmentOffset]:
    """A naive reference: lists every offset."""
    offsets = [
        SegmentOffset(each.entry, slot, each.first_sequence + slot, each.bytes_at(slot))
        for each in entries
        for slot in range(each.count)
    ]
    return [*offsets, end_of(entries)]


def end_of(entries: list[IndexedEntry]) -> SegmentOffset:
    last = entries[-1]
    return SegmentOffset(
        len(entries), 0, last.first_sequence + last.count, last.bytes_before + last.nbytes
    )


def whole(entries: list[IndexedEntry]) -> SparseIndex:
    """Makes an index with the end only, as after reading the metadata."""
    index = SparseIndex(FIRST)
    end = end_of(entries)
    index.end_at(end.entry, end.sequence, end.nbytes)
    return index


def find(
    index: SparseIndex, entries: list[IndexedEntry], by: SearchKey, target: int
) -> tuple[SegmentOffset, int]:
    for looks in range(100):
        found = index.find(by, target, looks)
        if isinstance(found, SegmentOffset):
            return found, looks
        assert index.at(found) is None, "it asks for an entry it knows"
        index.add(entries[found])
    raise AssertionError("it asks without end")


segments = st.lists(
    st.tuples(st.integers(1, 6), st.one_of(st.integers(72, 90), st.integers(72, 5000))),
    min_size=1,
    max_size=60,
).map(a_segment)


@given(segments, st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_a_sequence_is_found_where_it_is(entries: list[IndexedEntry], wishes: list[float]) -> None:
    offsets, index = offsets_of(entries), whole(entries)
    for wish in wishes:
        wanted = offsets[int(wish * (len(offsets) - 1))]
        assert find(index, entries, SearchKey.SEQUENCE, wanted.sequence)[0] == wanted


@given(segments, st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_bytes_end_before_the_record_that_would_exceed_them(
    entries: list[IndexedEntry], wishes: list[float]
) -> None:
    offsets, index = offsets_of(entries), whole(entries)
    for wish in wishes:
        target = int(wish * offsets[-1].nbytes)
        wanted = [offset for offset in offsets if offset.nbytes <= target][-1]
        assert find(index, entries, SearchKey.BYTES, target)[0] == wanted


@given(segments, st.floats(0, 1), st.sampled_from(SearchKey))
def test_a_search_needs_few_tries(entries: list[IndexedEntry], wish: float, by: SearchKey) -> None:
    end = end_of(entries)
    limit = end.sequence - FIRST if by is SearchKey.SEQUENCE else end.nbytes
    target = int(wish * limit) + (FIRST if by is SearchKey.SEQUENCE else 0)
    _, looks = find(whole(entries), entries, by, target)
    assert looks <= 2 * math.ceil(math.log2(len(entries) + 1)) + 1


def test_the_next_micro_batch_is_found_with_one_or_two_tries() -> None:
    rng = random.Random(3)
    entries = a_segment([(rng.randint(900, 1100), rng.randint(60_000, 70_000)) for _ in range(500)])
    index = whole(entries)
    looks = [
        find(index, entries, SearchKey.SEQUENCE, FIRST + taken)[1]
        for taken in range(3333, 480_000, 3333)
    ]
    assert sum(looks) / len(looks) < 2.2
    assert max(looks) <= 4


def test_an_open_segment_grows_with_what_is_known_of_it() -> None:
    entries = a_segment([(5, 100), (5, 100), (5, 100)])
    index = SparseIndex(FIRST)
    index.add(entries[1])
    assert index.end == SegmentOffset(2, 0, FIRST + 10, 200)
    index.add(entries[0])
    index.end_at(3, FIRST + 15, 300)
    assert index.end == SegmentOffset(3, 0, FIRST + 15, 300)
    with pytest.raises(MetadataCorrupt, match="3 entries to sequence 1015 were confirmed"):
        index.end_at(2, FIRST + 10, 200)


def test_an_empty_segment_has_one_offset() -> None:
    assert SparseIndex(FIRST).find(SearchKey.SEQUENCE, FIRST) == SegmentOffset(0, 0, FIRST, 0)
    assert SparseIndex(FIRST).find(SearchKey.BYTES, 0) == SegmentOffset(0, 0, FIRST, 0)


def test_inconsistent_entries_are_reported() -> None:
    entries = a_segment([(5, 100), (5, 100)])
    index = whole(entries)
    with pytest.raises(MetadataCorrupt, match=r"sequence 2000 is not in entries 0\.\.1"):
        index.find(SearchKey.SEQUENCE, 2000)


def test_the_lowest_entries_are_dropped() -> None:
    entries = a_segment([(1, 100)] * (INDEXED_ENTRIES_MAX + 50))
    index = whole(entries)
    for each in entries:
        index.add(each)
    assert index.at(0) is None
    assert index.at(INDEXED_ENTRIES_MAX + 49) == entries[-1]
    # A dropped entry is requested again.
    assert find(index, entries, SearchKey.SEQUENCE, FIRST)[0] == SegmentOffset(0, 0, FIRST, 0)
