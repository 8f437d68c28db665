"""The order of healing, and when a held ledger is tried again."""

from __future__ import annotations

import random

import pytest

from ledger.core.autorecovery import backlog as module
from ledger.core.autorecovery.backlog import PAUSE_S_MAX, PAUSE_S_MIN, Backlog
from ledger.core.autorecovery.plan import Hold


def test_fewest_copies_come_first() -> None:
    chance = random.Random(1)
    left = {n: chance.randint(0, 3) for n in range(200)}
    backlog = Backlog()
    for ledger_id, copies_left in left.items():
        backlog.add(ledger_id, copies_left)
        backlog.add(ledger_id, 0)  # it is queued already
    taken = []
    while (ledger := backlog.next()) is not None:
        taken.append(ledger)
    assert sorted(taken) == sorted(left)
    assert [left[one] for one in taken] == sorted(left.values())


def test_workers_seldom_meet() -> None:
    """Two that take one after the other in turn would meet at each if their orders were equal."""
    backlogs = [Backlog(random.Random(n).getrandbits(31)) for n in range(2)]
    for ledger_id in range(1000):
        for backlog in backlogs:
            backlog.add(ledger_id, 2)
    taken: list[set[int | None]] = [set(), set()]
    for _ in range(300):
        for number, backlog in enumerate(backlogs):
            taken[number].add(backlog.next())
    assert len(taken[0] & taken[1]) < 150, "of 300; by chance it would be 90"


def test_a_held_ledger_waits_longer_each_time_and_no_longer_than_an_hour() -> None:
    backlog, now_s, pauses = Backlog(), 0.0, []
    for _ in range(20):
        backlog.hold(7, [Hold("it rains")], now_s)
        (held,) = backlog.held
        assert held.since_s == 0
        pauses.append(held.retry_at_s - now_s)
        assert backlog.unknown([7], held.retry_at_s - 0.1) == []
        assert backlog.unknown([7], held.retry_at_s) == [7]
        now_s = held.retry_at_s
    assert pauses[:3] == [PAUSE_S_MIN, 2 * PAUSE_S_MIN, 4 * PAUSE_S_MIN]
    assert max(pauses) == PAUSE_S_MAX
    backlog.hold(7, [Hold("it snows")], now_s)
    (held,) = backlog.held
    assert (held.since_s, held.retry_at_s) == (now_s, now_s + PAUSE_S_MIN), "another reason"
    backlog.hold(7, [Hold("it snows", retry_s=2)], now_s)
    assert backlog.next_retry_s() == now_s + 2


def test_a_reason_that_should_pass_soon_is_looked_at_sooner_and_then_less_and_less() -> None:
    backlog, now_s, pauses = Backlog(), 0.0, []
    for _ in range(20):
        backlog.hold(7, [Hold("it rains"), Hold("a shower", first_pause_s=2)], now_s)
        (held,) = backlog.held
        pauses.append(held.retry_at_s - now_s)
        now_s = held.retry_at_s
    assert pauses[:4] == [2, 4, 8, 16]
    assert max(pauses) == PAUSE_S_MAX


def test_a_change_of_what_the_reason_depends_on_makes_it_due() -> None:
    backlog = Backlog()
    backlog.hold(1, [Hold("no live copy", ("b1", "b2"))], 0)
    backlog.hold(2, [Hold("too few", is_of_cluster=True)], 0)
    backlog.hold(3, [Hold("its writer lives")], 0)
    backlog.bookies_changed([], 1)
    assert backlog.unknown([1, 2, 3], 1) == []
    backlog.bookies_changed(["b3"], 1)
    assert backlog.unknown([1, 2, 3], 1) == [2]
    backlog.bookies_changed(["b2"], 1)
    assert backlog.unknown([1, 2, 3], 1) == [1, 2]
    backlog.healed(1)
    assert backlog.unknown([1, 3], 1) == [1], "it is marked again"
    assert [held.ledger_id for held in backlog.held] == [3], "ledger 2 is not marked any more"
    assert backlog.held_since_s(3, "its writer lives") == 0
    assert backlog.held_since_s(3, "too few") is None


def test_how_long_one_reason_holds_does_not_depend_on_the_others() -> None:
    backlog = Backlog()
    left, other = Hold("left to its writer"), "b2 does not answer for {} s"
    backlog.hold(1, [left, Hold(other.format(0.5))], 0)
    backlog.hold(1, [Hold(other.format(0.7)), left], 10)
    assert backlog.held_since_s(1, "left to its writer") == 0
    assert backlog.held_since_s(1, other.format(0.7)) == 10
    backlog.hold(1, [Hold(other.format(0.7))], 20)
    assert backlog.held_since_s(1, "left to its writer") is None
    backlog.hold(1, [left], 30)
    assert backlog.held_since_s(1, "left to its writer") == 30


def test_the_number_of_held_ledgers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_MAX", 10)
    backlog = Backlog()
    for ledger_id in range(25):
        backlog.hold(ledger_id, [Hold("it rains")], 0)
    assert sorted(held.ledger_id for held in backlog.held) == list(range(15, 25))
