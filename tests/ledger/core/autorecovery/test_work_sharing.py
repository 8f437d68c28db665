"""How many workers share marks and requests."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from ledger.core.autorecovery.work_sharing import (
    FEW_WORKERS,
    LOOKS_PER_S_MAX,
    OTHERS_PER_LOOK,
    PATIENCE_LOOKS,
    OperationPace,
    Shares,
    interval_s,
    owner_of,
)


@pytest.mark.parametrize("workers", [0, 1, 3, 99, 100, 1000, 100_000])
def test_all_workers_together_look_no_more_often_than_the_bound(workers: int) -> None:
    found = interval_s(workers, 2.0)
    assert found >= 2.0
    assert workers / found <= LOOKS_PER_S_MAX + 1e-9
    assert found == 2.0 or workers > 2.0 * LOOKS_PER_S_MAX


@pytest.mark.parametrize("workers", [1, 2, FEW_WORKERS])
def test_one_of_few_workers_takes_its_own_marks_and_a_little_of_the_rest(workers: int) -> None:
    chance, marks = random.Random(workers), [*range(1000)]
    for own in range(workers):
        for idle_slots in (0, 16):
            taken = Shares().take(marks, workers, own, chance, idle_slots=idle_slots)
            assert len(taken) == len(set(taken))
            owned = [one for one in marks if owner_of(one, workers) == own]
            assert taken[: len(owned)] == owned
            assert len(taken) == min(len(owned) + OTHERS_PER_LOOK, len(marks))


def test_one_of_few_workers_that_has_nothing_to_do_takes_marks_of_others() -> None:
    chance, workers = random.Random(3), 4
    others = [one for one in range(1000) if owner_of(one, workers) != 2]
    taken = Shares().take(others, workers, 2, chance, idle_slots=16)
    assert len(set(taken)) == 16
    assert {*taken} <= {*others}
    assert Shares().take(others[:9], workers, 2, chance, idle_slots=16) == others[:9]
    assert len(Shares().take(others, workers, 2, chance)) == OTHERS_PER_LOOK
    for no_candidate in (workers, 0):
        assert len(Shares().take(others, no_candidate, None, chance, idle_slots=16)) == 16


@pytest.mark.parametrize("workers", [6, 7, 50, 1000])
def test_each_mark_has_one_owner_and_workers_own_about_equally_many(workers: int) -> None:
    marks = range(100 * workers)
    owners = Counter(owner_of(one, workers) for one in marks)
    assert sorted(owners) == [*range(workers)]
    assert max(owners.values()) < 200
    few, chance = marks[:3000], random.Random(workers)
    taken = Counter(
        one for own in range(workers) for one in Shares().take(few, workers, own, chance)
    )
    assert taken == Counter(few), "at first sight exactly one worker takes each"


@pytest.mark.parametrize("workers", [6, 50, 1000])
def test_a_mark_that_waits_is_taken_by_about_one_other_per_look(workers: int) -> None:
    chance, marks, looks = random.Random(workers), [*range(40)], 60
    shares, taken = Shares(), Counter[int]()
    for look in range(looks):
        others = shares.take(marks, workers, None, chance)
        assert not others or look >= PATIENCE_LOOKS
        taken.update(others)
    expected = (looks - PATIENCE_LOOKS) / workers
    assert sum(taken.values()) / len(marks) == pytest.approx(expected, rel=0.5)
    assert shares.take([], workers, None, chance) == []
    assert shares.take(marks, workers, None, chance) == [], "they are new again"


def test_ids_that_are_far_apart_have_different_owners_too() -> None:
    for step in (1, 2, 64, 1000, 1 << 20):
        owners = Counter(owner_of(number * step, 100) for number in range(2000))
        assert max(owners.values()) < 200, step


def test_no_more_operations_begin_than_the_rate_allows() -> None:
    chance, pace, now_s, per_s = random.Random(7), OperationPace(), 0.0, 20.0
    begun: list[tuple[float, int]] = []
    for _ in range(500):
        now_s += chance.random() * chance.choice([0.0, 0.1, 3.0])
        operations = chance.randint(1, 30)
        wait_s = pace.reserve(operations, per_s, now_s)
        assert wait_s >= 0
        begun.append((now_s + wait_s, operations))
    assert begun == sorted(begun, key=lambda one: one[0])
    for first in range(0, len(begun), 7):
        total = 0
        for at_s, operations in begun[first:]:
            assert total <= per_s * (at_s - begun[first][0]) + 1e-6
            total += operations


def test_a_rate_of_0_is_no_bound_and_an_idle_process_need_not_wait() -> None:
    pace = OperationPace()
    assert [pace.reserve(1000, 0, 5.0) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert pace.reserve(10, 2.0, 5.0) == 0.0
    assert pace.reserve(1, 2.0, 6.0) == 4.0
    assert pace.reserve(1, 2.0, 100.0) == 0.0
