"""What AppendCore says that a bookie lacks, against a twin that keeps every copy."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.core.append import AppendCore
from ledger.core.availability import EntriesHeld, lacks_entries
from ledger.core.entry import DigestType
from ledger.core.metadata import Fragment, LedgerMetadata, LedgerState
from tests.ledger.core.test_append import SIZES


class Copies:
    """A ledger whose entries and copies are kept one by one, and what was marked."""

    def __init__(self, sizes: tuple[int, int, int]) -> None:
        self.sizes = sizes
        self.core = AppendCore(*sizes)
        self.made = sizes[0]
        self.fragments = [(0, list(range(sizes[0])))]
        self.acked: set[tuple[int, int]] = set()
        """Bookie and entry."""
        self.marked: set[int] = set()

    @property
    def bookies(self) -> list[int]:
        return self.fragments[-1][1]

    def ack(self, index: int, first: int, last: int) -> None:
        self.core.acked(index, first, last)
        for entry_id in range(first, last + 1):
            if index in self.core.write_set(entry_id):
                self.acked.add((self.bookies[index], entry_id))
        self.core.advance()

    def change(self, replaced: tuple[int, ...], rng: random.Random) -> None:
        self.core.is_suspended = True
        bookies = list(self.bookies)
        for index in replaced:
            self.mark(index)
            if rng.random() < 0.7:
                bookies[index], self.made = self.made, self.made + 1
                continue
            # It has returned, is its own replacement, and is sent again what was not confirmed.
            again = range(self.core.last_add_confirmed + 1, self.core.last_add_pushed + 1)
            self.acked -= {(bookies[index], entry_id) for entry_id in again}
        self.core.ensemble_changed(replaced)
        self.fragments.append((self.core.last_add_confirmed + 1, bookies))
        self.core.advance()

    def mark(self, index: int) -> None:
        if self.core.lacks(index):
            bookie = self.bookies[index]
            assert bookie in self.lacking(), f"{bookie} has everything"
            self.marked.add(bookie)

    def lacking(self) -> set[int]:
        """The bookies that lack a confirmed entry of the ensemble stored for it."""
        found: set[int] = set()
        for entry_id in range(self.core.last_add_confirmed + 1):
            bookies = [b for first, b in self.fragments if first <= entry_id][-1]
            for index in self.core.write_set(entry_id):
                if (bookies[index], entry_id) not in self.acked:
                    found.add(bookies[index])
        return found


@settings(deadline=None)
@given(st.sampled_from(SIZES), st.randoms(use_true_random=False))
def test_the_bookies_that_lack_a_confirmed_entry_are_marked_and_no_others(
    sizes: tuple[int, int, int], rng: random.Random
) -> None:
    ledger = Copies(sizes)
    core = ledger.core
    for _ in range(60):
        step = rng.random()
        if step < 0.35:
            core.last_add_pushed += rng.randrange(1, 5)
        elif step < 0.8 and core.last_add_pushed >= 0:
            index = rng.randrange(sizes[0])
            if index not in core.failed:
                first = max(0, core.acked_up_to(index) + rng.choice([1, 1, 1, 0, 2]))
                if first <= core.last_add_pushed:
                    last = rng.randint(first, core.last_add_pushed)
                    ledger.ack(index, first, last)
        elif step < 0.9:
            core.fail(rng.randrange(sizes[0]))
            if core.can_continue_without_failed() and rng.random() < 0.5:
                core.continue_without_failed()
        elif core.failed:
            idle = core.last_add_pushed == core.last_add_confirmed
            whole = [i for i in core.failed if not core.lacks(i)]
            if idle and whole and rng.random() < 0.5:
                core.restored(whole[0])
            else:
                ledger.change(tuple(i for i in core.failed if rng.random() < 0.7), rng)
    for index in range(sizes[0]):
        ledger.mark(index)
    assert ledger.lacking() <= ledger.marked


@pytest.mark.parametrize("sizes", SIZES)
def test_a_bookie_that_acknowledged_everything_lacks_nothing(sizes: tuple[int, int, int]) -> None:
    core = AppendCore(*sizes)
    assert not any(core.lacks(index) for index in range(sizes[0]))
    core.last_add_pushed = 17
    for index in range(sizes[0]):
        core.acked(index, 0, 17)
    assert core.advance() == 17
    assert not any(core.lacks(index) for index in range(sizes[0]))


def test_a_bookie_lacks_what_others_confirmed_without_it() -> None:
    core = AppendCore(3, 3, 2)
    core.last_add_pushed = 9
    core.acked(0, 0, 9)
    core.acked(1, 0, 9)
    core.acked(2, 0, 4)
    core.acked(2, 6, 9)
    assert core.advance() == 9
    assert [core.lacks(index) for index in range(3)] == [False, False, True]
    core.acked(2, 5, 5)
    assert not core.lacks(2)


def test_entries_that_are_not_confirmed_are_lacking_nowhere() -> None:
    core = AppendCore(3, 3, 2)
    core.last_add_pushed = 9
    core.acked(0, 0, 9)
    assert core.advance() == -1
    assert not any(core.lacks(index) for index in range(3))


def test_with_deferred_sync_a_bookie_lacks_what_it_did_not_sync() -> None:
    core = AppendCore(3, 3, 2, is_sync_deferred=True)
    core.last_add_pushed = 9
    for index in range(3):
        core.acked(index, 0, 9)
    core.advance()
    assert core.forced(core.marks(), [0, 1]) == 9
    assert [core.lacks(index) for index in range(3)] == [False, False, True]
    core.forced(core.marks(), [2])
    assert not core.lacks(2)


def test_a_bookie_that_lacks_entries_is_not_used_as_if_nothing_had_happened() -> None:
    core = AppendCore(3, 3, 2)
    core.last_add_pushed = 0
    core.acked(0, 0, 0)
    core.acked(1, 0, 0)
    assert core.advance() == 0
    core.fail(2)
    with pytest.raises(AssertionError, match="index 2 lacks entries"):
        core.restored(2)
    core.fail(1)
    core.restored(1)
    assert list(core.failed) == [2]


@settings(deadline=None)
@given(st.randoms(use_true_random=False))
def test_a_list_of_entries_shows_what_is_lacking(rng: random.Random) -> None:
    quorum = rng.randint(1, 4)
    size = rng.randint(quorum, 5)
    bookies = tuple(f"b{i}" for i in range(size))
    last = rng.randint(0, 40)
    second = rng.randint(1, last + 1)
    metadata = LedgerMetadata(
        ledger_id=1,
        ensemble_size=size,
        write_quorum=quorum,
        ack_quorum=1,
        fragments=(Fragment(0, bookies), Fragment(second, (*bookies[1:], "new"))),
        state=LedgerState.CLOSED,
        last_entry_id=last,
        digest_type=DigestType.CRC32C,
        password=b"",
        created_ms=1,
    )
    for bookie in (*bookies, "new", "other"):
        wanted = []
        for entry_id in range(last + 1):
            ensemble = metadata.fragment_of(entry_id).bookies
            if bookie in [ensemble[(entry_id + w) % size] for w in range(quorum)]:
                wanted.append(entry_id)
        lost = {e for e in wanted if rng.random() < 0.05}
        held = EntriesHeld()
        for entry_id in range(last + 5):
            if entry_id in wanted and entry_id not in lost:
                held.add(entry_id, entry_id)
            elif entry_id not in wanted and rng.random() < 0.2:
                held.add(entry_id, entry_id)  # more than it should
        assert lacks_entries(metadata, bookie, held.encode()) == bool(lost)
