"""Ranges of sorted ledgers: some are only ordered, overlapping ones must be merged."""

from __future__ import annotations

import random

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.spark.sink.sort_merge import overlapping, range_of
from connectors.spark.sink.sort_order import BOUND_BYTES_MAX, SortOrder
from connectors.spark.sink.task_results import TaskLedger


def _batch(**columns: list[bytes]) -> pa.RecordBatch:
    return pa.record_batch({name: pa.array(items) for name, items in columns.items()})


@settings(deadline=None)
@given(st.lists(st.binary(min_size=50, max_size=70), min_size=1, max_size=8), st.randoms())
def test_short_bounds_hold_the_long_keys(keys: list[bytes], rng: random.Random) -> None:
    keys.append(b"\xff" * rng.randrange(60, 70))
    order = SortOrder(["key", "value"])
    rows = order.sorted(_batch(key=keys, value=[b""] * len(keys)))
    low, high = order.bounds(rows)
    assert low <= order.key(rows, 0)
    assert high >= order.key(rows, len(keys) - 1)
    parts = [part[1] for part in (*low, *high) if len(part) == 2]
    assert all(len(part) <= BOUND_BYTES_MAX for part in parts)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=8))
def test_groups_are_in_order_and_minimal(ranges: list[tuple[int, int]]) -> None:
    ledgers = [
        TaskLedger(None, ((1, low),), ((1, low + more),))  # type: ignore[arg-type]
        for low, more in ranges
    ]
    numbers = {id(each): number for number, each in enumerate(ledgers)}
    groups = [[numbers[id(each)] for each in group] for group in overlapping(ledgers)]
    assert sorted(number for group in groups for number in group) == list(range(len(ledgers)))
    assert all(group == sorted(group) for group in groups)

    def is_before(one: int, other: int) -> bool:
        """Returns whether all rows of one ledger sort before those of the other."""
        (_, high), (low, _) = range_of(ledgers[one]), range_of(ledgers[other])
        return high < low or (high == low and one < other)

    for index, group in enumerate(groups):
        later = [number for following in groups[index + 1 :] for number in following]
        assert all(is_before(one, other) for one in group for other in later)
        # Wherever a group is split, in the order of the lows, a ledger would be on the wrong side.
        by_low = sorted(group, key=lambda number: range_of(ledgers[number])[0])
        for cut in range(1, len(group)):
            assert not all(is_before(one, other) for one in by_low[:cut] for other in by_low[cut:])
