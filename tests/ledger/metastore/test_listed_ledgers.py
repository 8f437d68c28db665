"""That ledgers exist is learned from lists, that they do not from the store's own word."""

from __future__ import annotations

import random

import pytest

from ledger.errors import MetadataUnavailable
from ledger.metastore.layout import Layout, encode_layout
from ledger.metastore.ledgers import LedgerStore
from ledger.metastore.listed_ledgers import ListedLedgers
from tests.ledger.metastore.counting_store import CountingStore


async def opened(store: CountingStore, layout: Layout, ids: list[int]) -> LedgerStore:
    await store.create("/ledgers/LAYOUT", encode_layout(layout))
    ledgers = LedgerStore(store)
    for ledger_id in ids:
        await store.create(await ledgers.path(ledger_id), b"")
    return ledgers


@pytest.mark.parametrize("layout", list(Layout))
async def test_the_answers_are_those_of_the_store(layout: Layout) -> None:
    chance = random.Random(layout.value)
    ids = sorted({chance.randrange(30_000) for _ in range(2000)})
    async with CountingStore() as store:
        ledgers = await opened(store, layout, [one for one in ids if chance.random() < 0.9])
        listed = ListedLedgers(store, ledgers)
        assert [await listed.exists(one) for one in ids] == [await ledgers.exists(i) for i in ids]


async def test_few_ledgers_of_a_folder_are_asked_for_and_many_listed() -> None:
    async with CountingStore() as store:
        ledgers = await opened(store, Layout.HIERARCHICAL, [*range(5000), *range(10_000, 10_010)])
        await ledgers.layout()
        store.gets = store.lists = 0
        listed = ListedLedgers(store, ledgers)
        for ledger_id in (*range(5000), *range(10_000, 10_010)):
            assert await listed.exists(ledger_id)
        assert (store.gets, store.lists) == (15 + 10, 1)


async def test_a_ledger_that_is_in_no_list_is_asked_for() -> None:
    async with CountingStore() as store:
        ledgers = await opened(store, Layout.HIERARCHICAL, [*range(100)])
        listed = ListedLedgers(store, ledgers)
        for ledger_id in range(50):
            await listed.exists(ledger_id)
        await store.create(await ledgers.path(200), b"")
        assert await listed.exists(200), "it was made after the list"
        store.gets = 0
        assert not await listed.exists(201)
        assert store.gets == 1


async def test_without_a_layout_nothing_is_absent() -> None:
    async with CountingStore() as store:
        listed = ListedLedgers(store, LedgerStore(store))
        with pytest.raises(MetadataUnavailable):
            await listed.exists(1)
