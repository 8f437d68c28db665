"""Which ids have yet to be generated, and what a bookie records of those that it has already."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import pytest

from bookie.startup.restored_metadata import UnbornIds, record_restore
from ledger.errors import MetadataUnavailable
from ledger.metastore.bookies import BookieRegistry
from ledger.metastore.ledgers import LedgerStore
from ledger.metastore.restores import PATH, RestoreLog
from tests.ledger.metastore.counting_store import CountingStore


async def test_ids_that_were_generated_are_not_unborn() -> None:
    ledgers = LedgerStore(CountingStore())
    for _ in range(100):
        newest = await ledgers.next_ledger_id()
    ids = UnbornIds(ledgers)
    ids.begin_round()
    assert not await ids.contain(newest)
    assert await ids.contain(newest + 2)  # asking took an id
    assert await ids.contain(newest + 999_999)
    assert not await ids.contain(newest + 10**9)  # chosen by a client
    assert not await ids.contain(newest // 2)


async def test_the_counter_is_asked_once_in_a_round_and_not_about_old_ids() -> None:
    store = CountingStore()
    ledgers = LedgerStore(store)
    for _ in range(100):
        newest = await ledgers.next_ledger_id()
    ids = UnbornIds(ledgers)
    ids.note_existing(newest)
    ids.note_existing(10**15)  # a chosen id says nothing about the counter
    before = store.transactions + store.reads
    ids.begin_round()
    for ledger_id in range(newest + 1):
        assert not await ids.contain(ledger_id)
    assert store.transactions + store.reads == before
    for ledger_id in range(newest + 2, newest + 1000):
        assert await ids.contain(ledger_id)
    assert await ledgers.next_ledger_id() == newest + 2
    ids.begin_round()
    assert not await ids.contain(newest + 2)


async def test_an_unknown_counter_makes_no_id_unborn(monkeypatch: pytest.MonkeyPatch) -> None:
    ledgers = LedgerStore(CountingStore())
    ids = UnbornIds(ledgers)

    async def unavailable(*, beyond: int = -1) -> int:
        raise MetadataUnavailable(f"no counter beyond {beyond}")

    with monkeypatch.context() as patched:
        patched.setattr(ledgers, "next_ledger_id", unavailable)
        ids.begin_round()
        assert not await ids.contain(5)
    assert not await ids.contain(5), "asked again in the same round"
    ids.begin_round()
    assert await ids.contain(5)


async def new_cluster() -> CountingStore:
    store = CountingStore()
    await BookieRegistry(store).init_cluster(random.Random(0))
    return store


async def record(store: CountingStore, held: Iterable[int]) -> int:
    """Records what a bookie has at a start; returns the number of unknown ledgers."""
    ids = sorted(held)

    def from_id(first: int) -> Iterator[int]:
        return (each for each in ids if each >= first)

    return await record_restore(
        from_id, LedgerStore(store), RestoreLog(store), bookie_id="127.0.0.1:3181", now_ms=10**12
    )


async def test_ids_that_clients_chose_fill_neither_the_record_nor_the_time_of_a_start() -> None:
    """On a cluster that serves everybody, anybody can fill a bookie with them before each start."""
    store = await new_cluster()
    for start in range(1, 5):
        before = store.reads
        first = 2**62 + start * 10**6
        assert await record(store, range(first, first + 20_000)) == 1000
        assert store.reads - before < 1100
    assert len(await RestoreLog(store).read()) == 1000
    assert len((await store.get(PATH)).data) < 200_000


async def test_ids_within_reach_of_the_counter_are_one_range_however_many_are_held() -> None:
    store = await new_cluster()
    before = store.reads
    assert await record(store, range(10, 30_010)) == 30_000
    assert store.reads - before < 20
    (found,) = await RestoreLog(store).read()
    assert (found.first_id, found.end_id) == (0, 30_010)
    assert await LedgerStore(store).next_ledger_id() > 30_009
