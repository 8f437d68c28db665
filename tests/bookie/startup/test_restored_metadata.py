"""Which ids have yet to be generated, as garbage collection asks it."""

from __future__ import annotations

import pytest

from bookie.startup.restored_metadata import UnbornIds
from ledger.errors import MetadataUnavailable
from ledger.metastore.ledgers import LedgerStore
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
