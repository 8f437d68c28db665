"""Ranges of a plan start at different bookies, whatever the order in their ledgers' ensembles."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.spark.core.planner import ReplicaBalancer
from ledger.core.entry import DigestType
from ledger.core.metadata import Fragment, LedgerMetadata
from ledger.core.reading import ReplicaOrder

BOOKIES = ("b1:1", "b2:1", "b3:1")


def a_ledger(*fragments: tuple[int, tuple[str, ...]], quorum: int = 3) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=7,
        ensemble_size=len(fragments[0][1]),
        write_quorum=quorum,
        ack_quorum=2,
        fragments=tuple(Fragment(first, bookies) for first, bookies in fragments),
        digest_type=DigestType.CRC32C,
    )


def asked_first(metadata: LedgerMetadata, entry: int, turn: int) -> str:
    """Returns the bookie that a reader tries first."""
    return ReplicaOrder(turn).order(metadata, entry, 0.0)[0]


@pytest.mark.parametrize("second", list(permutations(BOOKIES)))
def test_two_tasks_with_separate_ledgers_read_from_two_bookies(second: tuple[str, ...]) -> None:
    turns = ReplicaBalancer()
    asked = []
    for task, bookies in enumerate((BOOKIES, second)):
        ledger = a_ledger((0, bookies))
        asked.append(asked_first(ledger, 0, turns.choose(ledger, 0, 1000, task)))
    assert len(set(asked)) == 2


@given(st.lists(st.tuples(st.permutations(BOOKIES), st.integers(1, 1000)), max_size=30))
def test_no_bookie_serves_more_than_one_range_above_another(
    ranges: list[tuple[list[str], int]],
) -> None:
    turns = ReplicaBalancer()
    served = dict.fromkeys(BOOKIES, 0)
    for number, (bookies, nbytes) in enumerate(ranges):
        ledger = a_ledger((0, tuple(bookies)))
        served[asked_first(ledger, 0, turns.choose(ledger, 0, nbytes, number))] += nbytes
    largest = max((nbytes for _, nbytes in ranges), default=0)
    assert max(served.values()) - min(served.values()) <= largest


def test_the_fragment_in_which_a_range_begins_decides() -> None:
    turns = ReplicaBalancer()
    ledger = a_ledger((0, BOOKIES), (50, ("b2:1", "b4:1", "b3:1")))
    assert turns.choose(a_ledger((0, BOOKIES)), 0, 1000, 1) == 1
    assert asked_first(ledger, 60, turns.choose(ledger, 60, 1, 0)) == "b4:1"


def test_a_striped_ledger_uses_the_preferred_replica() -> None:
    turns = ReplicaBalancer()
    ledger = a_ledger((0, BOOKIES), quorum=2)
    assert [turns.choose(ledger, 0, 1000, number) for number in range(4)] == [0, 1, 0, 1]
