"""AppendCore is compared with a twin that counts acks per entry."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.core.append import AppendCore
from ledger.errors import InvalidArgument, RemoteProtocolError

SIZES = [(e, w, a) for e in range(1, 6) for w in range(1, e + 1) for a in range(1, w + 1)]


class NaiveAppend:
    """Counts, for every entry, which indices of the current ensemble acknowledged it.

    An ack counts once the bookie has acknowledged all earlier entries of the same class too.
    """

    def __init__(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        self.sizes = (ensemble_size, write_quorum, ack_quorum)
        self.acks: list[set[int]] = []
        self.confirmed = -1
        self.failed: set[int] = set()
        self.is_suspended = False
        self.stride = 1 if ensemble_size == write_quorum else ensemble_size
        self.base = [-1] * ensemble_size

    def counts(self, entry_id: int, index: int) -> bool:
        return index in self.write_set(entry_id) and all(
            index in self.acks[e] for e in range(entry_id, self.base[index], -self.stride)
        )

    def write_set(self, entry_id: int) -> set[int]:
        size, quorum, _ = self.sizes
        return {(entry_id + w) % size for w in range(quorum)}

    def push(self) -> None:
        self.acks.append(set())

    def ack(self, index: int, entry_id: int) -> None:
        if index in self.write_set(entry_id):
            self.acks[entry_id].add(index)

    def advance(self) -> int:
        while (
            not self.is_suspended
            and self.confirmed + 1 < len(self.acks)
            and sum(self.counts(self.confirmed + 1, i) for i in range(self.sizes[0]))
            >= self.sizes[2]
        ):
            self.confirmed += 1
        return self.confirmed

    def replaced(self, indices: list[int]) -> None:
        for index in indices:
            self.base[index] = self.confirmed
        for acks in self.acks[self.confirmed + 1 :]:
            acks.difference_update(indices)
        self.failed.difference_update(indices)
        self.is_suspended = bool(self.failed)


@settings(deadline=None)
@given(st.sampled_from(SIZES), st.randoms(use_true_random=False))
def test_confirms_exactly_what_a_count_per_entry_confirms(
    sizes: tuple[int, int, int], rng: random.Random
) -> None:
    core, twin = AppendCore(*sizes), NaiveAppend(*sizes)
    for _ in range(60):
        step = rng.random()
        if step < 0.4:
            for _ in range(rng.randrange(1, 5)):
                core.last_add_pushed += 1
                twin.push()
        elif step < 0.85 and twin.acks:
            index = rng.randrange(sizes[0])
            first = rng.randrange(max(0, twin.confirmed - 2), len(twin.acks))
            last = min(len(twin.acks) - 1, first + rng.choice([0, 0, 1, 5]))
            core.acked(index, first, last)
            for entry_id in range(first, last + 1):
                twin.ack(index, entry_id)
        elif step < 0.93:
            index = rng.randrange(sizes[0])
            assert core.fail(index) == (index not in twin.failed)
            if index not in twin.failed:
                twin.failed.add(index)
                twin.is_suspended = True
            if core.can_continue_without_failed() and rng.random() < 0.5:
                core.continue_without_failed()
                twin.is_suspended = False
        elif core.failed:
            replaced = [i for i in core.failed if rng.random() < 0.7]
            core.is_suspended = twin.is_suspended = True
            core.ensemble_changed(tuple(replaced))
            twin.replaced(replaced)
        assert core.advance() == twin.advance()
        for entry_id in range(len(twin.acks)):
            assert set(core.write_set(entry_id)) == twin.write_set(entry_id)


@pytest.mark.parametrize("sizes", SIZES)
def test_everything_acknowledged_by_all_is_confirmed(sizes: tuple[int, int, int]) -> None:
    core = AppendCore(*sizes)
    core.last_add_pushed = 41
    for index in range(sizes[0]):
        core.acked(index, 0, 41)
    assert core.advance() == 41
    assert all(core.acked_up_to(i) >= 41 for i in range(sizes[0]))


def test_nothing_is_confirmed_while_the_ensemble_changes() -> None:
    core = AppendCore(3, 3, 2)
    core.last_add_pushed = 9
    core.acked(0, 0, 9)
    core.fail(2)
    core.acked(1, 0, 9)
    assert core.advance() == -1
    core.ensemble_changed((2,))
    assert core.advance() == 9


def test_acks_of_a_replaced_bookie_do_not_count_for_its_successor() -> None:
    core = AppendCore(3, 3, 2)
    core.last_add_pushed = 9
    core.acked(0, 0, 9)
    core.fail(0)
    core.ensemble_changed((0,))
    core.acked(1, 0, 5)
    assert core.advance() == -1
    core.acked(0, 0, 3)
    assert core.advance() == 3


def test_an_ack_for_an_entry_never_sent_is_the_bookies_fault() -> None:
    core = AppendCore(3, 3, 2)
    core.last_add_pushed = 4
    with pytest.raises(RemoteProtocolError, match=r"3\.\.5"):
        core.acked(0, 3, 5)


@pytest.mark.parametrize("sizes", [(2, 3, 2), (3, 2, 3), (3, 3, 0)])
def test_impossible_quorums_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidArgument):
        AppendCore(*sizes)


@settings(deadline=None)
@given(st.sampled_from(SIZES), st.randoms(use_true_random=False))
def test_deferred_sync_confirms_only_what_was_forced(
    sizes: tuple[int, int, int], rng: random.Random
) -> None:
    """The twin keeps, for each entry, the bookies that had acknowledged it when the force began."""
    core, twin = AppendCore(*sizes, is_sync_deferred=True), NaiveAppend(*sizes)
    lac = -1
    for _ in range(40):
        step = rng.random()
        if step < 0.4:
            core.last_add_pushed += 1
            twin.push()
        elif step < 0.8 and twin.acks:
            index = rng.randrange(sizes[0])
            first = rng.randrange(len(twin.acks))
            last = min(len(twin.acks) - 1, first + rng.choice([0, 1, 5]))
            core.acked(index, first, last)
            for entry_id in range(first, last + 1):
                twin.ack(index, entry_id)
        else:
            marks = core.marks()
            forced = [i for i in range(sizes[0]) if rng.random() < 0.8]
            held = [
                sum(twin.counts(e, i) for i in forced) >= sizes[2] for e in range(len(twin.acks))
            ]
            while lac < twin.confirmed and held[lac + 1]:
                lac += 1
            core.forced(marks, forced)
        assert core.advance() == twin.advance()
        assert core.last_add_acknowledged == twin.confirmed
        assert core.last_add_confirmed == lac


def test_an_ensemble_may_only_change_when_nothing_acknowledged_is_unforced() -> None:
    core = AppendCore(3, 3, 2, is_sync_deferred=True)
    core.last_add_pushed = 9
    for index in range(3):
        core.acked(index, 0, 9)
    assert (core.advance(), core.last_add_confirmed) == (9, -1)
    core.fail(2)
    with pytest.raises(AssertionError, match="not all acknowledged"):
        core.ensemble_changed((2,))
    assert core.forced(core.marks(), [0, 1]) == 9
    core.ensemble_changed((2,))
    assert core.acked_up_to(2) == 9


def test_one_forced_bookie_of_three_confirms_nothing() -> None:
    core = AppendCore(3, 3, 2, is_sync_deferred=True)
    core.last_add_pushed = 9
    core.acked(0, 0, 9)
    core.acked(1, 0, 9)
    assert core.advance() == 9
    # The third has not acknowledged the entries, so forcing it proves nothing about them.
    assert core.forced(core.marks(), [0, 2]) == -1
    assert core.last_add_confirmed == -1
