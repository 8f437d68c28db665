"""Moves of copies from full bookies to empty ones."""

from __future__ import annotations

import random

from ledger.core.autorecovery.plan import with_moved_copy
from ledger.core.autorecovery.rebalance import Balance, copies_of, moves_of
from ledger.core.entry import DigestType
from ledger.core.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.core.placement.policies import (
    PLACEMENT_TAG,
    Grade,
    PlacementPolicy,
    placement_or_default,
)
from ledger.core.placement.topology import Candidates, Location, Place

RACKS = 3


def topology(bookies: list[str]) -> Candidates:
    return Candidates(
        {
            one: Place(f"host-{one}", Location.parse(f"/rack-{number % RACKS}"))
            for number, one in enumerate(bookies)
        }
    )


def ledger(
    chance: random.Random, ledger_id: int, places: Candidates, policy: PlacementPolicy, among: int
) -> LedgerMetadata:
    size = 3
    chosen = Candidates({one: places.places[one] for one in list(places.places)[:among]})
    ensembles = [policy.choose(size, 2, 2, chosen, (), chance) for _ in range(chance.randint(1, 3))]
    begins = [0, 10, 20][: len(ensembles)]
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=size,
        write_quorum=2,
        ack_quorum=2,
        state=LedgerState.CLOSED,
        fragments=tuple(Fragment(at, one) for at, one in zip(begins, ensembles, strict=True)),
        digest_type=DigestType.CRC32C,
        last_entry_id=chance.randint(begins[-1], 40),
        length=chance.randint(1, 100_000),
        custom={} if policy.is_default else {PLACEMENT_TAG: policy.encode()},
    )


def loaded(ledgers: list[LedgerMetadata], bookies: list[str]) -> Balance:
    balance = Balance(dict.fromkeys(bookies, 1.0), tolerance=0.05)
    for one in ledgers:
        for number, index, nbytes in copies_of(one):
            balance.add(one.fragments[number].bookies[index], nbytes)
    return balance


def moved_all(
    ledgers: list[LedgerMetadata], balance: Balance, places: Candidates
) -> list[LedgerMetadata]:
    after = []
    for one in ledgers:
        changed = one
        for move in moves_of(one, balance, places):
            found = with_moved_copy(changed, move.first_entry_id, move.old, move.new)
            assert found is not None
            changed = found
        after.append(changed)
    return after


def test_new_bookies_get_their_share_and_no_placement_becomes_worse() -> None:
    chance = random.Random(1)
    bookies = [f"b{n:02}" for n in range(12)]
    places = topology(bookies)
    for policy in (PlacementPolicy(), PlacementPolicy("rack", 2, enforce=True)):
        ledgers = [ledger(chance, n, places, policy, 9) for n in range(600)]
        balance = loaded(ledgers, bookies)
        assert balance.skew > 1.2
        after = moved_all(ledgers, balance, places)
        assert balance.loads == loaded(after, bookies).loads
        assert balance.skew < 1.06
        for before, now in zip(ledgers, after, strict=True):
            for old, new in zip(before.fragments, now.fragments, strict=True):
                assert len(set(new.bookies)) == len(new.bookies), "one bookie is one copy"
                kept = placement_or_default(now.custom)
                grades = [kept.adherence(e, 2, 2, places).grade for e in (old.bookies, new.bookies)]
                assert grades[0] == grades[1] or grades[1] is Grade.STRICT
        assert moved_all(after, loaded(after, bookies), places) == after, "nothing more is to do"


def test_an_even_cluster_is_left_alone_and_capacities_count() -> None:
    chance = random.Random(2)
    bookies = [f"b{n:02}" for n in range(6)]
    places = topology(bookies)
    ledgers = [ledger(chance, n, places, PlacementPolicy(), 6) for n in range(2000)]
    balance = Balance(dict.fromkeys(bookies, 1.0), tolerance=0.2)
    for one in ledgers:
        for number, index, nbytes in copies_of(one):
            balance.add(one.fragments[number].bookies[index], nbytes)
    assert moved_all(ledgers, balance, places) == ledgers
    small = loaded(ledgers, bookies)
    small.capacities["b00"] = 0.5
    small._capacity = 5.5
    before = small.loads["b00"]
    moved_all(ledgers, small, places)
    assert small.loads["b00"] < before * 0.6


def test_bytes_on_a_bookie_that_is_not_writable_count_for_nobody() -> None:
    balance = Balance({"a": 1.0, "b": 1.0}, tolerance=0.05)
    balance.add("a", 10)
    balance.add("gone", 1000)
    assert (balance.loads, balance.skew) == ({"a": 10, "b": 0}, 2.0)
    assert not balance.is_too_full("gone")
    assert balance.is_too_full("a")
    assert list(balance.emptiest(5)) == ["b"]
    assert list(balance.emptiest(6)) == []
    assert Balance({"a": 1.0}, tolerance=0.1).skew == 1.0
