"""Ranges that are read again are found, compared with a twin that keeps every byte."""

from __future__ import annotations

import random

import pytest

from bookie.core.read_ahead import STRETCH_BYTES, ReuseTracker

MIB = STRETCH_BYTES


def test_a_log_read_once_in_order_is_never_read_again() -> None:
    tracker = ReuseTracker()
    offset = 100
    for size in [5 * MIB, 10, MIB // 4, MIB, 3 * MIB + 1] * 10:
        assert not tracker.is_reused(7, offset, size)
        offset += size


@pytest.mark.parametrize("begin", [100, 100 + MIB, 50, 3 * MIB])
def test_a_second_reader_is_seen_wherever_it_begins(begin: int) -> None:
    tracker = ReuseTracker()
    for offset in range(100, 8 * MIB, 2 * MIB):
        tracker.is_reused(7, offset, 2 * MIB)
    assert tracker.is_reused(7, begin, 2 * MIB)
    assert tracker.is_reused(7, begin, 2 * MIB), "and from then on"
    assert not tracker.is_reused(8, begin, 2 * MIB), "another log"
    assert not tracker.is_reused(7, 20 * MIB, 2 * MIB), "another place"


def test_only_the_last_stretches_are_remembered() -> None:
    tracker = ReuseTracker(stretches_max=4)
    for stretch in range(5):
        tracker.is_reused(1, stretch * MIB, MIB)
    assert not tracker.is_reused(1, 0, MIB), "forgotten"
    assert tracker.is_reused(1, 4 * MIB, MIB)


@pytest.mark.parametrize("seed", range(100))
def test_no_first_read_counts_as_again_and_no_whole_second_one_as_first(seed: int) -> None:
    rng = random.Random(seed)
    tracker = ReuseTracker()
    unit = MIB // 8
    read: dict[int, None] = {}
    for _ in range(200):
        first, count = rng.randrange(200), rng.randint(1, 20)
        units = range(first, first + count)
        is_again = tracker.is_reused(1, first * unit, count * unit)
        if all(each in read for each in units):
            assert is_again
        stretches = range(first // 8, (first + count - 1) // 8 + 1)
        if not any(each // 8 in stretches for each in read):
            assert not is_again
        read.update(dict.fromkeys(units))
