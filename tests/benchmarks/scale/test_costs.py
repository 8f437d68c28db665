"""The simulated requests to the metadata store are those that the real stores send."""

from __future__ import annotations

import random

from benchmarks.scale import costs
from benchmarks.scale.costs import Cost, Meter
from ledger.autorecovery.cluster_view import ClusterView
from ledger.autorecovery.options import AutoRecoveryOptions
from ledger.core.entry import DigestType
from ledger.core.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.metastore.bookies import BookieRegistry
from ledger.metastore.layout import Layout, encode_layout
from ledger.metastore.ledgers import CLIENT_TAG, LedgerStore, client_path
from ledger.metastore.underreplication import UnderreplicationStore
from tests.ledger.metastore.counting_store import CountingStore

NAMES = ("b1:3181", "b2:3181", "b3:3181")


class CostStore(CountingStore):
    """Reports the requests that it received as a cost."""

    def taken(self) -> Cost:
        """Returns the operations since the last call."""
        cost = Cost(self.reads, self.transactions)
        self.gets = self.lists = self.transactions = 0
        return cost


def metadata_of(ledger_id: int, *, is_open: bool) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=ledger_id, ensemble_size=3, write_quorum=3, ack_quorum=2,
        state=LedgerState.OPEN if is_open else LedgerState.CLOSED,
        fragments=(Fragment(0, NAMES),), digest_type=DigestType.CRC32C,
        last_entry_id=-1 if is_open else 9, length=0 if is_open else 100,
        custom={CLIENT_TAG: b"c1"},
    )  # fmt: skip


async def prepared() -> tuple[CostStore, LedgerStore, UnderreplicationStore]:
    """Returns a store with two marked ledgers in one folder and one in another, of which nothing
    is cached any more that is not always cached."""
    store = CostStore()
    ledgers = LedgerStore(store)
    marks = UnderreplicationStore(store, "/ledgers", lambda: 0)
    await store.create("/ledgers/LAYOUT", encode_layout(Layout.HIERARCHICAL))
    for ledger_id in (7, 8, 1 << 16):
        await ledgers.create(metadata_of(ledger_id, is_open=ledger_id == 8))
    for ledger_id in (7, 1 << 16):
        await marks.mark(ledger_id, NAMES[:1])
    await store.create(client_path("c1"), b"", is_ephemeral=True)
    store.taken()
    return store, ledgers, marks


async def test_marks_and_locks_cost_what_is_counted() -> None:
    store, ledgers, marks = await prepared()
    async with store:
        await ledgers.read(7)
        assert store.taken() == costs.READ_LEDGER
        await marks.mark(8, NAMES[:1], while_exists=await ledgers.path(8))
        assert store.taken() == costs.MARK
        assert await marks.list() == [7, 8, 1 << 16]
        assert store.taken() == costs.LIST_MARKS + Cost(reads=2), "two folders"
        await ledgers.read(7)
        assert store.taken() == costs.FEED
        await marks.read(7)
        await ledgers.read(7)
        assert store.taken() == costs.BEGIN
        async with marks.lock(7, "w1"):
            assert store.taken() == costs.LOCK
            async with marks.lock(7, "w2") as is_locked:
                assert not is_locked
            assert store.taken() == costs.LOCKED_BY_OTHER
        assert store.taken() == costs.UNLOCK
        mark = await marks.read(7)
        assert mark is not None
        async with marks.lock(7, "w1"):
            store.taken()
            await marks.unmark(mark, are_more_marked=True, unlocks=True)
            assert store.taken() == costs.UNMARK
        assert store.taken() == costs.UNLOCKED_WITH_MARK


async def test_removing_a_mark_costs_what_is_counted() -> None:
    store, _, marks = await prepared()
    async with store:
        await marks.mark(8, NAMES[:1])
        store.taken()
        for ledger_id, are_more, expected in (
            (8, True, costs.UNMARK),
            # In ZooKeeper the folder that is not empty is looked at: one read more.
            (7, False, costs.UNMARK + costs.PRUNED_FOLDER + Cost(writes=1)),
            (1 << 16, False, costs.UNMARK + costs.PRUNED_FOLDER * 3),
        ):
            mark = await marks.read(ledger_id)
            assert mark is not None
            store.taken()
            assert await marks.unmark(mark, are_more_marked=are_more)
            assert store.taken() == expected
        assert Cost(reads=1, writes=1) == costs.PRUNE


async def test_changes_of_metadata_cost_what_is_counted() -> None:
    store, ledgers, _ = await prepared()
    async with store:
        closed, version = await ledgers.read(7)
        store.taken()
        await ledgers.compare_and_put(closed, version)
        assert store.taken() == costs.STORE_CLOSED
        moved = ("b4:3181", *NAMES[1:])
        await ledgers.update(8, lambda stored: stored.with_ensemble(5, moved))
        assert store.taken() == costs.STORE_OPEN
        assert await ledgers.is_writer_alive(metadata_of(8, is_open=True))
        assert store.taken() == costs.WRITER_ALIVE
        registry = BookieRegistry(store)
        await registry.candidates()
        store.taken()  # the table of locations is read once a minute
        await registry.candidates()
        await ledgers.update(
            8, lambda stored: stored.with_ensemble(9, NAMES), while_exists=client_path("c1")
        )
        assert store.taken() == costs.ENSEMBLE_CHANGE


async def test_a_look_at_the_bookies_costs_what_is_counted() -> None:
    store, _, marks = await prepared()
    async with store:
        view = ClusterView(store, BookieRegistry(store), marks, AutoRecoveryOptions())
        await view._read()
        store.taken()
        await view._read()
        assert store.taken() == costs.VIEW


def test_a_meter_spaces_operations_by_their_rate() -> None:
    chance = random.Random(3)
    for _ in range(200):
        meter, at_s = Meter(), chance.random() * 5
        count, per_s = chance.randint(1, 100), chance.choice([0.0, 0.7, 3.0, 50.0, 1000.0])
        meter.count("a", at_s, Cost(count), per_s)
        naive = [int(at_s + (n / per_s if per_s else 0.0)) for n in range(count)]
        found = meter.series()
        assert sum(found) == count
        for second in range(len(found)):
            assert abs(found[second] - naive.count(second)) <= 1, "a rounding at most"
        assert meter.most("a") == max(found)
        assert meter.most("b") == 0


def test_a_meter_adds_up_by_sender() -> None:
    meter = Meter()
    meter.count("a", 0.5, Cost(2, 1))
    meter.count("b", 2.5, Cost(0, 4))
    meter.count("b", 2.9, Cost())
    assert meter.series() == [3, 0, 4]
    assert meter.series("a") == [3]
    assert meter.total() == Cost(2, 5)
    assert meter.total("b") == Cost(0, 4)
