"""Routes never change, spread keys evenly, and move no more keys than growth requires."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import InvalidArgument
from stream.core.entry.record_columns import RecordColumns
from stream.core.names import PARTITIONS_MAX
from stream.core.routing import (
    CACHED_KEY_BYTES_MAX,
    CACHED_KEYS_MAX,
    Routes,
    grouped,
    jump_hash,
    key_hash,
    partition_of,
)

HASHES = st.integers(0, (1 << 64) - 1)
COUNTS = st.integers(1, PARTITIONS_MAX)


@pytest.mark.parametrize(
    ("hashed", "partitions", "expected"),
    [(1, 1, 0), (42, 57, 43), (0xDEAD10CC, 1, 0), (0xDEAD10CC, 666, 361), (256, 1024, 520)],
)
def test_jump_hashing_gives_the_numbers_that_all_of_its_versions_give(
    hashed: int, partitions: int, expected: int
) -> None:
    assert jump_hash(hashed, partitions) == expected


@pytest.mark.parametrize(
    ("key", "hashed", "partitions"),
    [
        (b"", 0x0000000000000000, (0, 0, 0)),
        (b"a", 0xE8B7BE43C1D04330, (1, 12, 262)),
        (b"user-7", 0x9745E321326D2344, (0, 4, 353)),
        (b"123456789", 0xCBF43926E3069283, (3, 12, 149)),
        (bytes(1000), 0x060B1780D84DDA57, (1, 14, 14)),
    ],
)
def test_the_partition_of_a_key_never_changes(
    key: bytes, hashed: int, partitions: tuple[int, int, int]
) -> None:
    assert key_hash(key) == hashed
    assert tuple(partition_of(key, count) for count in (4, 16, 500)) == partitions


@given(HASHES, COUNTS, COUNTS)
def test_growth_moves_a_key_to_a_new_partition_or_not_at_all(
    hashed: int, one: int, other: int
) -> None:
    few, many = sorted((one, other))
    before, after = jump_hash(hashed, few), jump_hash(hashed, many)
    assert 0 <= before < few
    assert after == before or few <= after < many


@pytest.mark.parametrize(("few", "many"), [(1, 2), (4, 5), (8, 16), (16, 17), (100, 101)])
@pytest.mark.parametrize("form", ["user-%d", "%08d", "%x", "order/%d/line"])
def test_growth_moves_the_share_that_must_move(few: int, many: int, form: str) -> None:
    keys = [(form % number).encode() for number in range(20_000)]
    moved = sum(partition_of(key, few) != partition_of(key, many) for key in keys)
    expected = len(keys) * (many - few) / many
    assert abs(moved - expected) < 5 * expected**0.5 + 1


@pytest.mark.parametrize("partitions", [2, 3, 8, 64])
@pytest.mark.parametrize("form", ["user-%d", "%08d", "%x", "order/%d/line", "%d"])
def test_keys_that_differ_little_spread_evenly(partitions: int, form: str) -> None:
    keys = [(form % number).encode() for number in range(20_000)]
    counts = Counter(partition_of(key, partitions) for key in keys)
    expected = len(keys) / partitions
    spread = sum((counts[number] - expected) ** 2 / expected for number in range(partitions))
    # Chi squared has mean p-1 and deviation sqrt(2(p-1)).
    assert spread < partitions - 1 + 6 * (2 * (partitions - 1)) ** 0.5


@given(st.lists(st.binary(max_size=80)), COUNTS)
def test_cached_routes_do_not_change(keys: list[bytes], partitions: int) -> None:
    routes = Routes(partitions)
    assert [routes[key] for key in keys * 2] == [partition_of(key, partitions) for key in keys * 2]


def test_the_cache_of_routes_is_bounded() -> None:
    routes = Routes(8)
    routes.turn()
    routes[bytes(CACHED_KEY_BYTES_MAX + 1)]
    assert list(routes) == [None]
    for number in range(CACHED_KEYS_MAX + 10):
        routes[b"%d" % number]
    assert len(routes) <= CACHED_KEYS_MAX
    assert routes[None] == 1


def test_records_without_a_key_go_to_all_partitions_in_turn() -> None:
    routes = Routes(3)
    assert [routes[None], *(routes.turn() for _ in range(4))] == [0, 1, 2, 0, 1]
    own = Routes(8, own=[5, 2])
    assert [own[None], *(own.turn() for _ in range(3))] == [5, 2, 5, 2]


@pytest.mark.parametrize(("partitions", "own"), [(0, None), (PARTITIONS_MAX + 1, None), (3, [3])])
def test_impossible_partitions_are_refused(partitions: int, own: list[int] | None) -> None:
    with pytest.raises(InvalidArgument):
        Routes(partitions, own)


@given(
    st.lists(st.one_of(st.none(), st.binary(max_size=2)), min_size=1, max_size=30),
    st.integers(1, 5),
    st.booleans(),
)
def test_grouped_records_keep_their_columns_and_their_order(
    keys: list[bytes | None], partitions: int, are_keyed: bool
) -> None:
    count = len(keys)
    values = [b"%d" % at for at in range(count)]
    headers = [(("n", value),) for value in values]
    columns = RecordColumns(values, keys if are_keyed else None, list(range(count)), headers)
    turns = [0] if are_keyed else list(range(partitions))
    groups = grouped(Routes(partitions, None), columns, turns)
    seen = {}
    for number, group in groups.items():
        times = [at for at in group.event_times or () if at is not None]
        assert times == sorted(times)
        for at, value, pairs in zip(times, group.values, group.headers or (), strict=True):
            assert (value, pairs) == (values[at], headers[at])
            seen[at] = number
        if are_keyed:
            assert [keys[at] for at in times] == list(group.keys or ())
            for key in group.keys or ():
                assert key is None or partition_of(key, partitions) == number
    assert sorted(seen) == list(range(count))
