"""Ranges that are read again are found, compared with a twin that keeps every byte; and readers
that come after another one."""

from __future__ import annotations

import random

import pytest

from bookie.core.read_ahead import FOLLOW_BYTES, STRETCH_BYTES, ReuseTracker

MIB = STRETCH_BYTES


def test_a_log_read_once_in_order_is_never_read_again() -> None:
    tracker = ReuseTracker()
    offset = 100
    for size in [5 * MIB, 10, MIB // 4, MIB, 3 * MIB + 1] * 10:
        assert not tracker._is_reused(7, offset, size)
        offset += size


@pytest.mark.parametrize("begin", [100, 100 + MIB, 50, 3 * MIB])
def test_a_second_reader_is_seen_wherever_it_begins(begin: int) -> None:
    tracker = ReuseTracker()
    for offset in range(100, 8 * MIB, 2 * MIB):
        tracker._is_reused(7, offset, 2 * MIB)
    assert tracker._is_reused(7, begin, 2 * MIB)
    assert tracker._is_reused(7, begin, 2 * MIB), "and from then on"
    assert not tracker._is_reused(8, begin, 2 * MIB), "another log"
    assert not tracker._is_reused(7, 20 * MIB, 2 * MIB), "another place"


def test_only_the_last_stretches_are_remembered() -> None:
    tracker = ReuseTracker(stretches_max=4)
    for stretch in range(5):
        tracker._is_reused(1, stretch * MIB, MIB)
    assert not tracker._is_reused(1, 0, MIB), "forgotten"
    assert tracker._is_reused(1, 4 * MIB, MIB)


@pytest.mark.parametrize("seed", range(100))
def test_no_first_read_counts_as_again_and_no_whole_second_one_as_first(seed: int) -> None:
    rng = random.Random(seed)
    tracker = ReuseTracker()
    unit = MIB // 8
    read: dict[int, None] = {}
    for _ in range(200):
        first, count = rng.randrange(200), rng.randint(1, 20)
        units = range(first, first + count)
        is_again = tracker._is_reused(1, first * unit, count * unit)
        if all(each in read for each in units):
            assert is_again
        stretches = range(first // 8, (first + count - 1) // 8 + 1)
        if not any(each // 8 in stretches for each in read):
            assert not is_again
        read.update(dict.fromkeys(units))


def reads_around_the_page_cache(distance: int, nbytes: int, piece: int = MIB) -> list[int]:
    """Bytes that each of two readers of one log reads from the disk for itself alone, if the second
    one is `distance` behind the first."""
    tracker = ReuseTracker()
    alone = [0, 0]
    for place in range(0, nbytes + distance, piece):
        for reader, offset in enumerate((place, place - distance)):
            if 0 <= offset < nbytes and not tracker.is_kept(7, offset, piece):
                alone[reader] += piece
    return alone


def test_what_a_reader_reads_is_kept_for_one_that_comes_after_it() -> None:
    assert reads_around_the_page_cache(100 * MIB, 800 * MIB) == [101 * MIB, 0]
    assert reads_around_the_page_cache(800 * MIB, 800 * MIB) == [800 * MIB, 0], "comes too late"


@pytest.mark.parametrize("ledgers", [2, 3, 20])
def test_readers_of_ledgers_that_share_a_log_do_not_come_after_each_other(ledgers: int) -> None:
    """Each ledger has a part of each checkpoint; the stretches on the borders have two of them."""
    tracker, piece = ReuseTracker(), 5 * MIB // 32
    part = 64 * MIB // ledgers // piece * piece
    for place in range(0, 10 * 64 * MIB, 64 * MIB):
        for at in range(0, part, piece):
            for ledger in random.Random(at).sample(range(ledgers), ledgers):
                assert not tracker.is_kept(7, 100 + place + ledger * part + at, piece)


def test_a_reader_with_several_requests_in_flight_does_not_come_after_itself() -> None:
    tracker, rng = ReuseTracker(), random.Random(1)
    for first in range(0, 800, 8):
        for place in rng.sample(range(first, first + 8), 8):
            assert not tracker.is_kept(7, 100 + place * MIB, MIB), "out of order"


def test_small_reads_here_and_there_keep_nothing_for_others() -> None:
    tracker = ReuseTracker()
    for offset in range(0, 100 * MIB, MIB):
        assert not tracker.is_kept(7, offset, MIB)
        for _ in range(2):
            tracker.is_kept(7, 5000, 200)
    assert tracker.is_kept(7, 5000, 200)


def test_a_log_is_followed_until_much_was_read_without_the_one_that_comes_after() -> None:
    tracker = ReuseTracker()
    tracker.is_kept(7, 0, MIB)
    assert tracker.is_kept(7, 0, MIB)
    assert not tracker.is_kept(8, MIB, MIB), "another log"
    assert tracker.is_kept(7, MIB, MIB)
    for offset in range(0, FOLLOW_BYTES, 4 * MIB):
        tracker.is_kept(9, offset, 4 * MIB)
    assert not tracker.is_kept(7, 2 * MIB, MIB)


def test_only_some_followed_logs_are_remembered() -> None:
    tracker = ReuseTracker()
    for log_id in range(1000):
        for _ in range(2):
            tracker.is_kept(log_id, 0, 64 * 1024)
    assert len(tracker._followed) <= 256
    assert tracker.is_kept(999, 50 * MIB, MIB)
    assert not tracker.is_kept(0, 50 * MIB, MIB)
