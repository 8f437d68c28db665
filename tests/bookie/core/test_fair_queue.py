"""Owners take turns; who cannot take its turn steps aside, and nobody is forgotten."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from bookie.core.fair_queue import FairQueue


def always(_: str) -> bool:
    return True


def test_each_owner_waits_for_one_item_of_each_other() -> None:
    turns: FairQueue[str, str] = FairQueue()
    for number in range(1000):
        turns.add("busy", f"busy {number}")
    turns.add("other", "other 0")
    assert [turns.take(always) for _ in range(3)] == ["busy 0", "other 0", "busy 1"]
    assert turns.count == turns.count_of("busy") == 998


def test_an_owner_that_must_wait_delays_no_other_and_gets_its_turn() -> None:
    turns: FairQueue[str, str] = FairQueue()
    turns.add("full", "full 0")
    turns.add("other", "other 0")
    assert turns.take(lambda owner: owner != "full") == "other 0"
    assert turns.take(always) is None, "it stepped aside"
    turns.add("full", "full 1")
    assert turns.take(always) is None, "more items do not bring it back"
    turns.resume("full")
    turns.resume("full")
    assert [turns.take(always) for _ in range(3)] == ["full 0", "full 1", None]


def test_what_a_gone_owner_wanted_is_forgotten() -> None:
    turns: FairQueue[str, str] = FairQueue()
    for owner in ("gone", "aside", "there"):
        for number in range(3):
            turns.add(owner, f"{owner} {number}")
    assert turns.take(lambda owner: owner == "there") == "there 0"
    turns.resume("gone")
    assert turns.drop("gone") == turns.drop("aside") == 3
    assert turns.drop("gone") == turns.drop("nobody") == 0
    assert [turns.take(always) for _ in range(3)] == ["there 1", "there 2", None]
    assert turns.count == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["add", "take", "resume"]))))
def test_every_item_comes_once_and_in_its_owners_order(steps: list[tuple[str, str]]) -> None:
    turns: FairQueue[str, tuple[str, int]] = FairQueue()
    added: Counter[str] = Counter()
    taken: list[tuple[str, int]] = []
    for owner, step in steps:
        if step == "add":
            turns.add(owner, (owner, added[owner]))
            added[owner] += 1
        elif step == "take":
            item = turns.take(lambda one, other=owner: one != other)  # type: ignore[misc]
            if item is not None:
                assert item[0] != owner
                taken.append(item)
        else:
            turns.resume(owner)
    for owner in "abc":
        turns.resume(owner)
    while (item := turns.take(always)) is not None:
        taken.append(item)
    assert turns.count == 0
    for owner, count in added.items():
        assert [n for who, n in taken if who == owner] == list(range(count))
    assert len(taken) == added.total()
