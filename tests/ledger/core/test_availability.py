"""The list of entries a bookie holds: a set of ids, packed as Apache's auditor unpacks it."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.availability import EntriesHeld, decode_entries_held
from ledger.errors import RemoteProtocolError

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 6)), max_size=30).map(
    lambda pairs: sorted((first, first + more) for first, more in pairs)
)


def encode(ranges: list[tuple[int, int]]) -> bytes:
    held = EntriesHeld()
    for first, last in ranges:
        held.add(first, last)
    return held.encode()


def ids_of(ranges: list[tuple[int, int]]) -> set[int]:
    return {entry_id for first, last in ranges for entry_id in range(first, last + 1)}


def is_there(data: bytes, entry_id: int) -> bool:
    """Follows Apache's `AvailabilityOfEntriesOfLedger`: the group at or before the id decides."""
    groups: list[tuple[int, int, int, int]] = list(struct.iter_unpack(">qqii", data[64:]))
    before = [group for group in groups if group[0] <= entry_id]
    if not before:
        return False
    first, last, size, period = max(before)
    if entry_id > last + size:
        return False
    return (entry_id - first) % period < size if period else entry_id - first < size


@given(RANGES)
def test_the_packed_set_holds_just_what_was_put_in(ranges: list[tuple[int, int]]) -> None:
    data = encode(ranges)
    assert struct.unpack_from(">ii", data) == (0, (len(data) - 64) // 24)
    assert not any(data[8:64])
    wanted = ids_of(ranges)
    assert ids_of(list(decode_entries_held(data))) == wanted
    assert {entry_id for entry_id in range(80) if is_there(data, entry_id)} == wanted


@pytest.mark.parametrize(
    ("ranges", "groups"),
    [
        ([(0, 999)], [(0, 0, 1000, 0)]),
        ([(0, 4), (3, 9), (10, 10)], [(0, 0, 11, 0)]),
        ([(i, i) for i in range(1, 3000, 3)], [(1, 2998, 1, 3)]),
        ([(i, i + 1) for i in range(0, 400, 4)] + [(402, 402)], [(0, 396, 2, 4), (402, 402, 1, 0)]),
        ([(5, 5), (8, 8), (12, 12)], [(5, 8, 1, 3), (12, 12, 1, 0)]),
        ([], []),
    ],
)
def test_a_striped_ledger_is_one_group(
    ranges: list[tuple[int, int]], groups: list[tuple[int, int, int, int]]
) -> None:
    assert list(struct.iter_unpack(">qqii", encode(ranges)[64:])) == groups


def test_a_range_longer_than_an_int32_is_split() -> None:
    data = encode([(0, 2**32), (2**33, 2**33)])
    ranges = list(decode_entries_held(data))
    assert ranges[0] == (0, 2**31 - 2)
    assert ranges[-2:] == [(2**32 - 2, 2**32), (2**33, 2**33)]
    assert [after[0] - before[1] for before, after in pairwise(ranges[:-1])] == [1, 1]


@given(RANGES)
def test_the_size_is_known_before(ranges: list[tuple[int, int]]) -> None:
    held = EntriesHeld()
    for first, last in ranges:
        held.add(first, last)
    known = held.nbytes
    assert known - 48 <= len(held.encode()) <= known


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(63),
        struct.pack(">ii", 1, 0) + bytes(56),
        struct.pack(">ii", 0, 1) + bytes(56),
        struct.pack(">ii", 0, -1) + bytes(56),
        *(
            struct.pack(">ii", 0, 1) + bytes(56) + struct.pack(">qqii", *group)
            for group in ((5, 4, 1, 0), (0, 9, 1, 0), (0, 0, 0, 0), (-1, 0, 1, 1), (0, 9, 1, -3))
        ),
    ],
)
def test_other_bytes_are_a_protocol_error(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_entries_held(data)
