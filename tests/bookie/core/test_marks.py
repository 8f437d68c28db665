"""Which journal and directory a ledger has, which marks that means, and the mark file's bytes."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from bookie.core.journal import BEGINNING, Mark
from bookie.core.marks import DirectoryMap, MarkTable, StoredMarks, decode_marks, encode_marks

COUNTS = st.integers(1, 64)
MARKS = st.builds(Mark, st.integers(0, 3), st.integers(0, 3))


@given(COUNTS, COUNTS)
def test_what_belongs_together_is_what_some_ledger_has(journals: int, directories: int) -> None:
    layout = DirectoryMap(journals, directories)
    # After this number of ids everything repeats.
    every = {(ledger % journals, ledger % directories) for ledger in range(journals * directories)}
    assert layout.shards == len(every)
    for directory in range(directories):
        assert layout.journals_of(directory) == tuple(sorted(j for j, d in every if d == directory))
    for journal in range(journals):
        assert layout.directories_of(journal) == tuple(sorted(d for j, d in every if j == journal))


@given(st.integers(0, 2**63 - 1), st.integers(1, 64), st.integers(1, 64))
def test_a_lane_has_one_journal_and_one_directory(
    ledger: int, journals: int, directories: int
) -> None:
    shard = ledger % DirectoryMap(journals, directories).shards
    assert (shard % journals, shard % directories) == (ledger % journals, ledger % directories)


@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_a_journal_is_needed_from_the_least_mark_of_all_who_depend_on_it(
    journals: int, directories: int, data: st.DataObject
) -> None:
    table = MarkTable(DirectoryMap(journals, directories))
    pairs = {(ledger % journals, ledger % directories) for ledger in range(journals * directories)}
    twin = dict.fromkeys(sorted(pairs), BEGINNING)
    for directory in data.draw(st.lists(st.integers(0, directories - 1), max_size=12)):
        marks = {j: data.draw(MARKS) for j, d in twin if d == directory}
        if any(mark < twin[j, directory] for j, mark in marks.items()):
            with pytest.raises(AssertionError, match="back to"):
                table.store(directory, marks)
            return
        table.store(directory, marks)
        twin.update({(j, directory): mark for j, mark in marks.items()})
        for journal in range(journals):
            now = {d: mark for (j, d), mark in twin.items() if j == journal}
            assert table.of(journal) == now
            assert table.needed_from(journal) == sorted(now.values())[0]
            newest = sorted(now.values())[-1].file_id
            late = [d for d in sorted(now) if now[d].file_id != newest]
            assert table.holding_back(journal) == late


STORED = st.builds(
    StoredMarks,
    st.integers(0, 2**64 - 1),
    st.dictionaries(
        st.integers(0, 63),
        st.builds(Mark, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
        max_size=8,
    ),
    st.integers(0, 63),
    st.integers(1, 64),
    st.integers(1, 64),
)


@given(STORED)
def test_a_mark_file_reads_back(stored: StoredMarks) -> None:
    assert decode_marks(encode_marks(stored)) == stored


def test_a_mark_file_of_version_1_is_read() -> None:
    whole = b"LSMARK\x00\x01" + struct.pack(">QQQ", 7, 8192, 42)
    data = whole + struct.pack(">I", crc32c(whole))
    assert decode_marks(data) == StoredMarks(42, {0: Mark(7, 8192)}, 0, 1, 1)


def test_the_bytes_of_a_mark_file_are_those_of_the_document() -> None:
    data = encode_marks(StoredMarks(5, {2: Mark(7, 8192), 0: Mark(1, 4096)}, 1, 3, 4))
    assert data[:-4].hex(" ", 4) == (
        "4c534d41 524b0002 00000000 00000005 00000001 00000003 00000004 00000002"
        " 00000000 00000000 00000001 00000000 00001000"
        " 00000002 00000000 00000007 00000000 00002000"
    )


@given(STORED, st.data())
def test_no_damaged_mark_file_is_believed(stored: StoredMarks, data: st.DataObject) -> None:
    whole = encode_marks(stored)
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    flipped = bytearray(whole)
    flipped[bit // 8] ^= 1 << bit % 8
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    for damaged in (bytes(flipped), cut, whole + b"\0"):
        with pytest.raises(ValueError, match=r"bytes|checksum"):
            decode_marks(damaged)
