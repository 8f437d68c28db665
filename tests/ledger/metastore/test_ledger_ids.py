"""Ledger ids are never repeated, before and after the short ones are exhausted."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from ledger.errors import InvalidArgument
from ledger.metastore.layout import SHORT_LEDGER_ID_END, Layout
from ledger.metastore.ledger_ids import HIGH_BITS_MAX, LedgerIds
from ledger.metastore.memory import MemoryStore, MemoryTree

from .conftest import OpenSession

HYBRID = Layout.HIERARCHICAL
LAST_SHORT = SHORT_LEDGER_ID_END - 1


class CountedFar(MemoryStore):
    """A store whose counters return numbers that are `ahead` of the real ones."""

    ahead: dict[str, int]

    async def next_id(self, path: str, *, beyond: int = -1) -> int:
        counted = await super().next_id(path, beyond=beyond) + self.ahead.get(path, 0)
        # ZooKeeper counts in 32 bits and continues below zero.
        return (counted + 2**31) % 2**32 - 2**31


@pytest.fixture
async def store() -> AsyncIterator[CountedFar]:
    opened = CountedFar(MemoryTree(), lambda: 0)
    opened.ahead = {}
    async with opened:
        yield opened


async def take(ids: LedgerIds, count: int, layout: Layout = HYBRID) -> list[int]:
    return [await ids.next_id(layout) for _ in range(count)]


async def test_short_ids_count_from_zero_in_every_layout(store: CountedFar) -> None:
    for number, layout in enumerate(Layout):
        ids = LedgerIds(store, f"/{number}")
        assert await take(ids, 3, layout) == [0, 1, 2]


async def test_long_ids_follow_the_last_short_id(store: CountedFar) -> None:
    store.ahead["/ledgers/idgen/ID-"] = LAST_SHORT
    ids = LedgerIds(store, "/ledgers")
    assert await take(ids, 3) == [LAST_SHORT, 1 << 32, (1 << 32) + 1]
    assert await store.children("/ledgers/idgen-long") == ["HOB-0000000001"]


async def test_the_long_counter_is_used_once_any_client_began_it(store: CountedFar) -> None:
    await store.create("/ledgers/idgen-long/HOB-0000000007", b"")
    await store.create("/ledgers/idgen-long/notes", b"")
    assert await take(LedgerIds(store, "/ledgers"), 2) == [7 << 32, (7 << 32) + 1]


async def test_a_client_that_began_with_short_ids_may_continue_beside_long_ones(
    store: CountedFar,
) -> None:
    early = LedgerIds(store, "/ledgers")
    assert await take(early, 1) == [0]
    await store.create("/ledgers/idgen-long", b"")
    assert await take(LedgerIds(store, "/ledgers"), 1) == [1 << 32]
    assert len({*await take(early, 5), *await take(LedgerIds(store, "/ledgers"), 5)}) == 10


async def test_a_full_node_of_long_ids_is_followed_by_the_next(store: CountedFar) -> None:
    await store.create("/ledgers/idgen-long/HOB-0000000002", b"")
    store.ahead["/ledgers/idgen-long/HOB-0000000002/ID-"] = LAST_SHORT
    ids = LedgerIds(store, "/ledgers")
    assert await take(ids, 3) == [2 << 32 | LAST_SHORT, 3 << 32, (3 << 32) + 1]
    # An exhausted node stays, because a new one would count from 0.
    names = await store.children("/ledgers/idgen-long")
    assert names == ["HOB-0000000002", "HOB-0000000003"]


async def test_a_counter_below_zero_is_used_up(store: CountedFar) -> None:
    store.ahead["/ledgers/idgen/ID-"] = 2**31 + 5
    assert await take(LedgerIds(store, "/ledgers"), 1) == [1 << 32]


@pytest.mark.parametrize(
    ("layout", "path"), [(Layout.FLAT, "ID-"), (Layout.LEGACY_HIERARCHICAL, "idgen/ID-")]
)
async def test_layouts_of_short_ids_end_with_them(
    store: CountedFar, layout: Layout, path: str
) -> None:
    store.ahead[f"/ledgers/{path}"] = LAST_SHORT
    ids = LedgerIds(store, "/ledgers")
    assert await take(ids, 1, layout) == [LAST_SHORT]
    with pytest.raises(InvalidArgument, match=f"{layout.value} are exhausted"):
        await ids.next_id(layout)


async def test_exhausted_long_ids_are_an_error(store: CountedFar) -> None:
    path = f"/ledgers/idgen-long/HOB-{HIGH_BITS_MAX:010d}"
    await store.create(path, b"")
    store.ahead[f"{path}/ID-"] = LAST_SHORT
    ids = LedgerIds(store, "/ledgers")
    assert await take(ids, 1) == [HIGH_BITS_MAX << 32 | LAST_SHORT]
    with pytest.raises(InvalidArgument, match="exhausted"):
        await ids.next_id(HYBRID)


async def test_concurrent_clients_get_different_ids_across_the_switch_to_long_ids(
    store: CountedFar,
) -> None:
    store.ahead["/ledgers/idgen/ID-"] = SHORT_LEDGER_ID_END - 5
    store.ahead["/ledgers/idgen-long/HOB-0000000001/ID-"] = SHORT_LEDGER_ID_END - 5
    taken: list[int] = []

    async def taker() -> None:
        taken.extend(await take(LedgerIds(store, "/ledgers"), 5))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(taker)
    assert len(taken) == len(set(taken)) == 25
    assert {ledger_id >> 32 for ledger_id in taken} == {0, 1, 2}


async def test_sessions_share_the_counters(open_session: OpenSession) -> None:
    async with open_session() as one, open_session() as two:
        await one.create("/ledgers/idgen-long", b"")
        mine, theirs = LedgerIds(one, "/ledgers"), LedgerIds(two, "/ledgers")
        taken = [await ids.next_id(HYBRID) for ids in (mine, theirs, mine, theirs)]
        assert taken == [(1 << 32) + low for low in range(4)]
