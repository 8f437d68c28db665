"""Quorum arithmetic compared with brute force over every case with up to five bookies."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from ledger.core.quorum import (
    check_sizes,
    entries_held,
    holds,
    is_add_impossible,
    is_covered,
    negatives_needed,
    stripe_step,
    write_set,
)
from ledger.errors import InvalidArgument

SIZES = [
    (ensemble, write, ack)
    for ensemble in range(1, 6)
    for write in range(1, ensemble + 1)
    for ack in range(1, write + 1)
]


def test_write_sets_rotate() -> None:
    assert write_set(0, 5, 3) == (0, 1, 2)
    assert write_set(4, 5, 3) == (4, 0, 1)
    assert write_set(5, 5, 3) == write_set(0, 5, 3)


@pytest.mark.parametrize(("ensemble", "write", "ack"), SIZES)
def test_holding_agrees_with_write_sets(ensemble: int, write: int, ack: int) -> None:
    for index in range(ensemble):
        held = [e for e in range(3, 25) if index in write_set(e, ensemble, write)]
        assert entries_held(index, 3, 24, ensemble, write) == held
        assert [e for e in range(3, 25) if holds(index, e, ensemble, write)] == held


@pytest.mark.parametrize(("ensemble", "write", "ack"), SIZES)
def test_the_stripe_step_is_the_period_of_write_sets(ensemble: int, write: int, ack: int) -> None:
    step = stripe_step(ensemble, write)
    for entry_id in range(10):
        first = write_set(entry_id, ensemble, write)
        second = write_set(entry_id + step, ensemble, write)
        assert set(first) == set(second)
    if step > 1:
        members = [set(write_set(e, ensemble, write)) for e in range(step)]
        assert all(a != b for a, b in combinations(members, 2))


@pytest.mark.parametrize(("ensemble", "write", "ack"), SIZES)
def test_covered_means_no_ack_quorum_is_silent(ensemble: int, write: int, ack: int) -> None:
    for answers in product((False, True), repeat=ensemble):
        silent = {i for i, answer in enumerate(answers) if not answer}
        # By definition no entry can have its whole ack quorum among the silent bookies.
        hidden = any(
            set(quorum) <= silent
            for entry_id in range(ensemble)
            for quorum in combinations(write_set(entry_id, ensemble, write), ack)
        )
        indices = [i for i, answer in enumerate(answers) if answer]
        assert is_covered(ensemble, write, ack, answers) is not hidden
        assert is_covered(ensemble, write, ack, indices) is not hidden
        assert is_covered(ensemble, write, ack, frozenset(indices)) is not hidden


@pytest.mark.parametrize(("ensemble", "write", "ack"), SIZES)
def test_enough_negatives_leave_no_ack_quorum(ensemble: int, write: int, ack: int) -> None:
    needed = negatives_needed(write, ack)
    for count in range(write + 1):
        could_be_confirmed = write - count >= ack
        assert (count >= needed) is not could_be_confirmed


@pytest.mark.parametrize(("ensemble", "write", "ack"), SIZES)
def test_an_add_fails_when_too_few_can_still_acknowledge(
    ensemble: int, write: int, ack: int
) -> None:
    for failures in range(write + 1):
        assert is_add_impossible(write, ack, failures) is (write - failures < ack)


@pytest.mark.parametrize("wrong", [(2, 3, 2), (3, 2, 3), (3, 2, 0), (0, 0, 0), (3, -1, -1)])
def test_impossible_sizes_are_refused(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidArgument, match="must hold"):
        check_sizes(*wrong)
