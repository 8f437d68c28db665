"""Entries in flight, compared with a dict of single entries."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from ledger.core.autorecovery.adds_in_flight import AddsInFlight


@given(st.randoms(use_true_random=False))
def test_each_entry_is_counted_once_however_acks_are_cut(rng: random.Random) -> None:
    adds, twin = AddsInFlight(), dict[int, tuple[int, float]]()
    for step in range(60):
        if rng.random() < 0.5:
            first = rng.randrange(100)
            sizes = [rng.randrange(50) for _ in range(rng.randrange(1, 20))]
            if any(n in twin for n in range(first, first + len(sizes))):
                continue
            adds.add(first, sizes, float(step))
            twin |= {n: (size, float(step)) for n, size in enumerate(sizes, first)}
        elif rng.random() < 0.97:
            first = rng.randrange(100)
            last = first + rng.randrange(40)
            removed = [twin.pop(n) for n in range(first, last + 1) if n in twin]
            found = adds.acked(first, last)
            assert found.entries == len(removed)
            assert found.nbytes == sum(size for size, _ in removed)
            assert found.sent_s == max((sent for _, sent in removed), default=0.0)
        else:
            ranges = adds.drain()
            assert sorted(n for a, b in ranges for n in range(a, b + 1)) == sorted(twin)
            twin.clear()
        assert adds.entries == len(twin)
        assert adds.nbytes == sum(size for size, _ in twin.values())
        if twin:
            assert adds.oldest_s <= max(sent for _, sent in twin.values())


def test_acks_in_the_order_of_sending_look_at_one_run() -> None:
    """A million runs are acknowledged in far fewer than a million steps each."""
    adds = AddsInFlight()
    for n in range(20_000):
        adds.add(3 * n, [10], 0.0)
    for n in range(20_000):
        assert adds.acked(3 * n, 3 * n).entries == 1
    assert adds.nbytes == 0
