"""Ledger metadata: Apache's paths, changes that never overwrite others, and certain absence."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.entry import DigestType
from ledger.core.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.errors import (
    InvalidArgument,
    LedgerClosed,
    LedgerError,
    LedgerExists,
    MetadataConflict,
    MetadataCorrupt,
    MetadataUnavailable,
    NoSuchLedger,
    Unauthorized,
)
from ledger.metastore import ledgers as ledgers_module
from ledger.metastore.base import Change
from ledger.metastore.layout import LEDGER_ID_MAX, SHORT_LEDGER_ID_END, Layout, encode_layout
from ledger.metastore.ledgers import LedgerStore
from ledger.metastore.memory import MemoryStore, MemoryTree


def now_ms() -> int:
    return 1_700_000_000_000


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    async with MemoryStore(MemoryTree(), now_ms) as opened:
        yield opened


def new_ledger(ledger_id: int, c_token: int = 0) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        fragments=(Fragment(0, ("a:1", "b:1", "c:1")),),
        digest_type=DigestType.CRC32C,
        c_token=c_token,
    )


IDS = st.sets(st.integers(0, LEDGER_ID_MAX) | st.integers(0, 30_000), max_size=20)


@given(st.sampled_from(Layout), IDS)
def test_listing_returns_exactly_the_ledgers(layout: Layout, ids: set[int]) -> None:
    async def list_them() -> list[int]:
        async with MemoryStore(MemoryTree(), now_ms) as store:
            ledgers = LedgerStore(store)
            await store.create("/ledgers/LAYOUT", encode_layout(layout))
            for name in ("INSTANCEID", "available/x", "cookies/y", "idgen/ID-1"):
                await store.create(f"/ledgers/{name}", b"")
            for name in ("underreplication/ledgers/0000", "ID-7", "disableHealthCheck"):
                await store.create(f"/ledgers/{name}", b"")
            for name in ("00/0000/lock", "00/x", "000/0000/0000/0000/lock", "idgen-long/HOB-1"):
                await store.create(f"/ledgers/{name}", b"")
            for ledger_id in ids:
                await ledgers.create(new_ledger(ledger_id))
            return await ledgers.list()

    ids = {ledger_id for ledger_id in ids if ledger_id <= layout.ledger_id_max}
    assert trio.run(list_them) == sorted(ids)


async def test_created_metadata_is_read_with_its_version(store: MemoryStore) -> None:
    ledgers = LedgerStore(store)
    await ledgers.create(new_ledger(7))
    metadata, version = await ledgers.read(7)
    assert version == 0
    assert metadata.fragments == new_ledger(7).fragments
    assert metadata.created_ms == now_ms()


async def test_ids_are_new_each_time(store: MemoryStore) -> None:
    ledgers = LedgerStore(store)
    assert [await ledgers.next_ledger_id() for _ in range(3)] == [0, 1, 2]
    assert await ledgers.list() == []


async def test_a_second_create_fails_unless_it_repeats_the_first(store: MemoryStore) -> None:
    ledgers = LedgerStore(store)
    await ledgers.create(new_ledger(1, c_token=42))
    await ledgers.create(new_ledger(1, c_token=42))  # the response to the first create was lost
    with pytest.raises(LedgerExists, match="ledger 1"):
        await ledgers.create(new_ledger(1, c_token=43))
    await ledgers.create(new_ledger(2))
    with pytest.raises(LedgerExists):
        await ledgers.create(new_ledger(2))  # without a token its creator is unknown


async def test_missing_ledgers_are_reported_by_every_call(store: MemoryStore) -> None:
    ledgers = LedgerStore(store)
    with pytest.raises(NoSuchLedger, match="ledger 5"):
        await ledgers.read(5)
    with pytest.raises(NoSuchLedger):
        await ledgers.compare_and_put(new_ledger(5), 0)
    with pytest.raises(NoSuchLedger):
        await ledgers.update(5, lambda metadata: metadata.in_recovery())
    with pytest.raises(NoSuchLedger):
        await ledgers.delete(5)
    await store.create("/ledgers/LAYOUT", encode_layout(Layout.HIERARCHICAL))
    assert not await ledgers.exists(5)


async def test_compare_and_put_fails_against_a_newer_version(store: MemoryStore) -> None:
    ledgers = LedgerStore(store)
    await ledgers.create(new_ledger(1))
    metadata, version = await ledgers.read(1)
    assert await ledgers.compare_and_put(metadata.in_recovery(), version) == 1
    with pytest.raises(MetadataConflict):
        await ledgers.compare_and_put(metadata.closed(3, 30), version)
    assert (await ledgers.read(1))[0].state is LedgerState.IN_RECOVERY


async def test_update_starts_again_after_a_change_by_another_client(store: MemoryStore) -> None:
    ledgers = LedgerStore(store)
    await ledgers.create(new_ledger(1))
    seen: list[int] = []
    node = await store.get(Layout.HIERARCHICAL.path("/ledgers", 1))

    class Interfering(MemoryStore):
        """A store on which another process changes the ledger before our first put."""

        async def transaction(self, changes: Sequence[Change]) -> None:
            if len(seen) == 1:
                await store.put(Layout.HIERARCHICAL.path("/ledgers", 1), node.data)
            await super().transaction(changes)

    def close(metadata: LedgerMetadata) -> LedgerMetadata:
        seen.append(1)
        return metadata.closed(9, 90)

    async with Interfering(store._tree, now_ms) as mine:
        closed = await LedgerStore(mine).update(1, close)
    assert len(seen) == 2
    stored, version = await ledgers.read(1)
    assert (stored.last_entry_id, stored.length, version) == (9, 90, 2)
    assert closed == stored


async def test_update_gives_up_after_repeated_conflicts(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers_module, "UPDATE_TRIES_MAX", 3)
    await LedgerStore(store).create(new_ledger(1))
    path = Layout.HIERARCHICAL.path("/ledgers", 1)

    class AlwaysLosing(MemoryStore):
        async def transaction(self, changes: Sequence[Change]) -> None:
            await store.put(path, (await store.get(path)).data)
            await super().transaction(changes)

    async with AlwaysLosing(store._tree, now_ms) as mine:
        with pytest.raises(MetadataConflict, match="3 times"):
            await LedgerStore(mine).update(1, lambda metadata: metadata.closed(1, 1))


async def test_update_writes_nothing_if_nothing_changes(store: MemoryStore) -> None:
    ledgers = LedgerStore(store)
    await ledgers.create(new_ledger(1))
    await ledgers.update(1, lambda metadata: None)
    await ledgers.update(1, lambda metadata: replace(metadata))
    assert (await ledgers.read(1))[1] == 0


async def test_an_error_of_the_transform_is_raised_by_update(store: MemoryStore) -> None:
    ledgers = LedgerStore(store)
    await ledgers.create(new_ledger(1))
    await ledgers.update(1, lambda metadata: metadata.closed(1, 5))
    with pytest.raises(LedgerClosed):
        await ledgers.update(1, lambda metadata: metadata.with_ensemble(0, ("x:1", "y:1", "z:1")))


@pytest.mark.parametrize("error", [MetadataUnavailable, Unauthorized])
async def test_a_ledger_is_deleted_although_its_parents_stay(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, error: type[LedgerError]
) -> None:
    ledgers = LedgerStore(store)
    await ledgers.create(new_ledger(7))
    delete = store.delete

    async def only_ledgers(path: str) -> None:
        if not path.endswith("/L0007"):
            raise error(path)
        await delete(path)

    monkeypatch.setattr(store, "delete", only_ledgers)
    await ledgers.delete(7)
    assert await ledgers.list() == []


async def test_deleting_removes_empty_parents_and_no_others(store: MemoryStore) -> None:
    ledgers = LedgerStore(store)
    for ledger_id in (1, 2, 10_001, SHORT_LEDGER_ID_END):
        await ledgers.create(new_ledger(ledger_id))
    await ledgers.delete(1)
    assert await store.children("/ledgers/00/0000") == ["L0002"]
    await ledgers.delete(2)
    assert await store.children("/ledgers/00") == ["0001"]
    await ledgers.delete(SHORT_LEDGER_ID_END)
    assert await store.children("/ledgers") == ["00"]
    assert await ledgers.list() == [10_001]


async def test_existence_is_never_denied_if_it_is_unknown(store: MemoryStore) -> None:
    ledgers = LedgerStore(store)
    with pytest.raises(MetadataUnavailable, match="no LAYOUT"):
        await ledgers.exists(3)  # removing the whole tree does not delete the ledger
    await store.create("/ledgers/LAYOUT", encode_layout(Layout.HIERARCHICAL))
    await store.create(Layout.HIERARCHICAL.path("/ledgers", 3), b"not metadata")
    assert await ledgers.exists(3)
    assert await ledgers.list() == [3]
    with pytest.raises(MetadataCorrupt):
        await ledgers.read(3)
    await store.aclose()
    with pytest.raises(MetadataUnavailable):
        await ledgers.exists(4)


async def test_a_watch_follows_a_ledger_from_before_its_creation_to_its_deletion(
    store: MemoryStore,
) -> None:
    ledgers = LedgerStore(store)
    async with aclosing(ledgers.watch(1)) as versions:
        with trio.fail_after(5):
            assert await anext(versions) is None
            await ledgers.create(new_ledger(1))
            opened = await anext(versions)
            assert opened is not None
            assert opened.state is LedgerState.OPEN
            await ledgers.update(1, lambda metadata: metadata.closed(4, 40))
            closed = await anext(versions)
            assert closed is not None
            assert (closed.is_closed, closed.last_entry_id) == (True, 4)
            await ledgers.delete(1)
            assert await anext(versions) is None


@pytest.mark.parametrize("layout", Layout)
async def test_ledgers_are_stored_under_the_layout_of_the_cluster(
    store: MemoryStore, layout: Layout
) -> None:
    await store.create("/ledgers/LAYOUT", encode_layout(layout))
    ledgers = LedgerStore(store)
    await ledgers.create(new_ledger(7))
    assert await ledgers.path(7) == layout.path("/ledgers", 7)
    assert (await store.get(layout.path("/ledgers", 7))).data
    await ledgers.update(7, lambda metadata: metadata.closed(1, 5))
    async with aclosing(ledgers.watch(7)) as versions:
        closed = await anext(versions)
        assert closed is not None
        assert closed.is_closed
    before = await store.children("/ledgers")
    await ledgers.delete(7)
    assert await store.children("/ledgers") == ["LAYOUT"] != before


async def test_the_layout_is_read_once(store: MemoryStore) -> None:
    await store.create("/ledgers/LAYOUT", encode_layout(Layout.FLAT))
    ledgers = LedgerStore(store)
    await ledgers.create(new_ledger(7))
    await store.delete("/ledgers/LAYOUT")
    assert await ledgers.layout() is Layout.FLAT
    assert await ledgers.exists(7)


async def test_without_a_layout_that_of_the_address_or_the_default_is_used(
    store: MemoryStore,
) -> None:
    assert await LedgerStore(store).layout() is Layout.HIERARCHICAL
    asked = LedgerStore(store, layout=Layout.FLAT)
    assert await asked.layout() is Layout.FLAT
    await store.create("/ledgers/LAYOUT", encode_layout(Layout.LONG_HIERARCHICAL))
    with pytest.raises(InvalidArgument, match=r"longhierarchical.*asks for flat"):
        await asked.read(1)
    assert await LedgerStore(store).layout() is Layout.LONG_HIERARCHICAL


async def test_with_an_unknown_layout_nothing_is_read_or_written(store: MemoryStore) -> None:
    await store.create("/ledgers/LAYOUT", b"2\norg.example.NewLedgerManagerFactory:1")
    ledgers = LedgerStore(store)
    for attempt in (
        lambda: ledgers.create(new_ledger(1)),
        lambda: ledgers.exists(1),
        lambda: ledgers.list(),
        lambda: ledgers.next_ledger_id(),
        lambda: ledgers.delete(1),
    ):
        with pytest.raises(MetadataCorrupt, match=r"org\.example\.NewLedgerManagerFactory"):
            await attempt()
    assert await store.children("/ledgers") == ["LAYOUT"]
