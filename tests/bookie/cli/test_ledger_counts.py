"""How many ledgers and fragments name each bookie, against a count by hand."""

from __future__ import annotations

from dataclasses import replace

import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from bookie.cli.ledger_counts import LedgerCounts, count_ledgers
from ledger.core.metadata import Fragment
from ledger.metastore.ledgers import LedgerStore
from ledger.metastore.memory import MemoryStore, MemoryTree
from tests.bookie.test_over_replication_races import CLOSED

ENSEMBLES = st.lists(
    st.permutations("abcd").map(lambda one: tuple(one[:2])), min_size=1, max_size=4
)


@given(st.lists(ENSEMBLES, max_size=6))
def test_a_ledger_counts_once_for_each_bookie_that_it_names(
    ledgers: list[list[tuple[str, ...]]],
) -> None:
    counts = LedgerCounts()
    for ensembles in ledgers:
        fragments = tuple(Fragment(n, one) for n, one in enumerate(ensembles))
        counts.add(replace(CLOSED, fragments=fragments))
    for bookie in "abcd":
        expected = sum(any(bookie in one for one in ensembles) for ensembles in ledgers)
        assert counts.ledgers.get(bookie, 0) == expected
        in_fragments = sum(one.count(bookie) for ensembles in ledgers for one in ensembles)
        assert counts.fragments.get(bookie, 0) == in_fragments


async def test_all_ledgers_are_read_at_a_bounded_rate(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with MemoryStore(MemoryTree(), lambda: 0) as store:
        ledgers = LedgerStore(store)
        for ledger_id in range(250):
            await ledgers.create(replace(CLOSED, ledger_id=ledger_id))
        await store.put(await ledgers.path(7), b"damaged")
        seen: list[tuple[int, int]] = []
        begun = trio.current_time()
        counts = await count_ledgers(ledgers, lambda *one: seen.append(one), reads_per_s_max=50)
        assert trio.current_time() - begun == 5
        assert seen == [(100, 250), (200, 250), (250, 250)]
        assert counts.ledgers == {"a:1": 249, "c:1": 249}
        assert counts.fragments == counts.ledgers
        assert counts.unreadable == 1
