"""The bookies that acknowledged a watched entry, compared with a twin that records everything."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.core import receipts
from ledger.core.append import AppendCore
from ledger.core.receipts import AckLog, WatchedEntry
from tests.effort import scaled

SIZES = [(3, 3, 2), (1, 1, 1), (4, 2, 2), (5, 3, 2), (3, 3, 3)]


class World:
    """A ledger that is being written, with random acks and random replacements of bookies."""

    def __init__(self, sizes: tuple[int, int, int], rng: random.Random) -> None:
        self.core = AppendCore(*sizes)
        self.rng = rng
        self.bookies = [f"b{n}" for n in range(sizes[0])]
        self.fresh = sizes[0]
        self.sent_to: dict[str, set[int]] = {b: set() for b in self.bookies}
        self.acked_by: dict[str, set[int]] = {b: set() for b in self.bookies}
        self.ensemble_of: dict[int, list[str]] = {}
        """The stored ensemble of each confirmed entry."""
        self.watched: dict[int, WatchedEntry] = {}

    def push(self) -> None:
        core = self.core
        core.last_add_pushed += 1
        entry = core.last_add_pushed
        for index in core.write_set(entry):
            if index not in core.failed:
                self.sent_to[self.bookies[index]].add(entry)
        if self.rng.random() < 0.5:
            self.watch(entry)

    def watch(self, entry: int) -> None:
        self.watched[entry] = self.core.watch(entry, self.bookies, 0.0)

    def ack(self) -> None:
        index = self.rng.randrange(len(self.bookies))
        bookie = self.bookies[index]
        due = sorted(self.sent_to[bookie] - self.acked_by[bookie])
        if not due or index in self.core.failed:
            return
        first = self.rng.choice(due)
        last = first
        while last + 1 in due and self.rng.random() < 0.5:
            last += 1
        self.acked_by[bookie].update(range(first, last + 1))
        self.core.acked(index, first, last)
        if self.core.ack_log.entries:
            self.core.ack_log.acked(index, bookie, first, last, 1.0)
        self.confirm()

    def confirm(self) -> None:
        before = self.core.last_add_confirmed
        for entry in range(before + 1, self.core.advance() + 1):
            self.ensemble_of[entry] = list(self.bookies)

    def replace(self) -> None:
        index = self.rng.randrange(len(self.bookies))
        self.core.fail(index)
        if self.rng.random() < 0.3:  # other bookies acknowledge while the change is in flight
            self.ack()
        old = self.bookies[index]
        is_back = self.rng.random() < 0.3
        fresh = old if is_back else f"b{self.fresh}"
        self.fresh += 1
        self.bookies[index] = fresh
        unconfirmed = range(self.core.last_add_confirmed + 1, self.core.last_add_pushed + 1)
        self.sent_to.setdefault(fresh, set())
        self.acked_by.setdefault(fresh, set()).difference_update(unconfirmed)
        self.core.ensemble_changed((index,))
        # All entries still held are sent again, which may include confirmed ones.
        for entry in range(max(0, unconfirmed.start - 3), unconfirmed.stop):
            if index in self.core.write_set(entry):
                self.sent_to[fresh].add(entry)
        self.confirm()

    def check(self) -> None:
        for entry, watched in self.watched.items():
            ensemble = self.ensemble_of.get(entry, self.bookies)
            members = {ensemble[i] for i in self.core.write_set(entry)}
            named = {bookie for bookie, _ in watched.acks.values()}
            assert named <= members
            assert all(entry in self.acked_by[bookie] for bookie in named)
            if entry <= self.core.last_add_confirmed:
                assert len(named) >= self.core.ack_quorum
            # No bookie that is listed as outstanding has acknowledged the entry.
            unheard = {self.bookies[i] for i in watched.open_members(self.core.failed)}
            assert all(entry not in self.acked_by[bookie] for bookie in unheard)


@settings(deadline=None, max_examples=scaled(ci=80, night=2000))
@given(st.sampled_from(SIZES), st.integers(0, 1 << 32))
def test_a_receipt_names_exactly_the_acknowledging_bookies_of_the_stored_ensemble(
    sizes: tuple[int, int, int], seed: int
) -> None:
    rng = random.Random(seed)
    world = World(sizes, rng)
    for _ in range(80):
        step = rng.random()
        if step < 0.35:
            world.push()
        elif step < 0.9:
            world.ack()
        elif step < 0.95:
            unconfirmed = range(world.core.last_add_confirmed + 1, world.core.last_add_pushed + 1)
            if unconfirmed:
                world.watch(rng.choice(unconfirmed))
        else:
            world.replace()
        world.check()


def test_an_ack_that_arrived_before_the_request_is_known() -> None:
    core = AppendCore(3, 3, 2)
    core.last_add_pushed = 3
    core.acked(1, 0, 1)
    core.acked(2, 3, 3)
    assert core.watch(1, ["a", "b", "c"], 5.0).acks == {1: ("b", 5.0)}
    assert core.watch(3, ["a", "b", "c"], 5.0).acks == {2: ("c", 5.0)}


def test_nothing_is_recorded_for_entries_that_are_not_watched() -> None:
    core = AppendCore(3, 3, 2)
    core.last_add_pushed = 10
    core.acked(0, 0, 10)
    assert not core.ack_log.entries


def test_the_number_of_watched_entries_is_bounded() -> None:
    log = AckLog()
    first = log.watch(0, (0, 1), {}, -1)
    for entry in range(1, receipts.WATCHED_MAX + 1):
        log.watch(entry, (0, 1), {}, -1)
    assert len(log.entries) == receipts.WATCHED_MAX
    assert 0 not in log.entries
    log.forget(first)  # the entry that was given up is requested
    assert len(log.entries) == receipts.WATCHED_MAX


def test_watchers_are_notified_of_changes() -> None:
    log, notified = AckLog(), list[str]()
    watched = log.watch(4, (0, 1, 2), {}, 3)
    watched.on_change = lambda: notified.append(",".join(b for b, _ in watched.acks.values()))
    log.acked(1, "b", 0, 3, 1.0)
    assert notified == []
    log.acked(1, "b", 4, 9, 1.0)
    log.acked(1, "b", 4, 4, 2.0)  # a second ack of a bookie counts once
    log.ensemble_changed((1,), 3)
    log.failed()
    assert notified == ["b", "", ""]


def test_a_complete_receipt_that_is_not_fetched_is_dropped() -> None:
    log = AckLog()
    for entry in range(1000):
        watched = log.watch(entry, (0, 1), {}, entry - 1)
        log.acked(0, "a", entry, entry, 1.0)
        if entry != 500:
            log.acked(1, "b", entry, entry, 1.0)
        assert len(watched.acks) == 1 + (entry != 500)
    assert len(log.entries) <= 64
    assert 500 in log.entries
