"""Rounds that remove unneeded copies: when they act, and what a crash at any operation leaves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from bookie.core.integrity_state import IntegrityStage, IntegrityState
from bookie.core.over_replication import OverReplicationOptions, OverReplicationReport
from bookie.over_replication import FIRST_PASS_S_MAX, OverReplication
from bookie.testing import SimCluster, simulate
from ledger.core.entry import master_key
from ledger.core.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.errors import MetadataUnavailable, Status, UnknownLedgerState
from ledger.metastore.base import Node
from ledger.metastore.ledgers import LedgerStore
from ledger.metastore.memory import MemoryStore, MemoryTree
from ledger.metastore.restores import Restore, RestoreLog
from ledger.metastore.underreplication import UnderreplicationStore
from ledger.wire.messages import AddRequest, ReadRequest, ReadResponse
from tests.bookie.storage.simulated_storage import SimulatedStorage
from tests.bookie.test_over_replication_races import CLOSED, HERE, LEDGER

ENTRIES = 5
OPTIONS = OverReplicationOptions(
    interval_s=7200, age_s=3600, asks_per_s_max=1e6, removals_per_s_max=1e6
)


class DyingStore(MemoryStore):
    """Cancels a scope at a request, before or after it takes effect."""

    dies_at = -1
    is_after = False
    requests = 0
    fails = False
    """Instead, the request fails, and nobody knows whether it took effect."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree, lambda: 0)
        self.scope = trio.CancelScope()

    async def _step(self, is_after: bool) -> None:
        if not is_after:
            self.requests += 1
        if self.requests == self.dies_at and is_after is self.is_after:
            if self.fails:
                raise MetadataUnavailable("no reply")
            self.scope.cancel()
            await trio.lowlevel.checkpoint()

    async def get(self, path: str) -> Node:
        await self._step(False)
        return await super().get(path)

    async def create(self, path: str, data: bytes, *, is_ephemeral: bool = False) -> None:
        await self._step(False)
        await super().create(path, data, is_ephemeral=is_ephemeral)
        await self._step(True)

    async def put(self, path: str, data: bytes, version: int = -1) -> int:
        await self._step(False)
        found = await super().put(path, data, version)
        await self._step(True)
        return found

    async def delete(self, path: str, version: int = -1) -> None:
        await self._step(False)
        await super().delete(path, version)
        await self._step(True)


class World:
    """A bookie's storage with copies of ledgers, and the metadata."""

    def __init__(self, simulated: SimulatedStorage, tree: MemoryTree) -> None:
        self.simulated = simulated
        self.storage = simulated.storage
        self.tree = tree
        self.store = DyingStore(tree)
        self.plain = MemoryStore(tree, lambda: 0)
        self.ledgers = LedgerStore(self.plain)
        self.marks = UnderreplicationStore(self.plain, "/ledgers", lambda: 0)
        self.restores = RestoreLog(self.plain)
        self.is_another_cluster = False

    def over_replication(self, **options: Any) -> OverReplication:
        async def check_cluster() -> None:
            if self.is_another_cluster:
                raise MetadataUnavailable("another cluster")

        return OverReplication(
            self.storage,
            HERE,
            ledgers=LedgerStore(self.store),
            marks=UnderreplicationStore(self.store, "/ledgers", lambda: 0),
            restores=RestoreLog(self.store),
            check_cluster=check_cluster,
            options=replace(OPTIONS, **options),
        )

    def has(self, ledger_id: int = LEDGER) -> bool:
        return self.storage.directory_of(ledger_id).garbage.copies.has_entries(ledger_id)

    async def add(self, metadata: LedgerMetadata) -> None:
        await self.ledgers.create(metadata)
        for entry_id in range(ENTRIES):
            self.simulated.add(metadata.ledger_id, entry_id, b"x")
        await self.simulated.settle()
        await self.storage.checkpoint()


@asynccontextmanager
async def world(*metadata: LedgerMetadata, directories: int = 1) -> AsyncIterator[World]:
    simulated = SimulatedStorage(directories=directories)
    async with simulated.running():
        found = World(simulated, MemoryTree())
        await found.plain.create("/ledgers/LAYOUT", _LAYOUT)
        for one in metadata:
            await found.add(one)
        yield found


_LAYOUT = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
OPEN = replace(CLOSED, ledger_id=8, state=LedgerState.OPEN, last_entry_id=-1, length=0)
RECOVERING = replace(OPEN, ledger_id=9, state=LedgerState.IN_RECOVERY)
NAMED = replace(
    CLOSED, ledger_id=10, fragments=(Fragment(0, ("a:1", "c:1")), Fragment(1, (HERE, "c:1")))
)


async def test_a_forced_round_removes_what_is_not_needed_and_nothing_else(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with world(CLOSED, OPEN, RECOVERING, NAMED) as found:
        found.simulated.add(11, 0)  # of this one the metadata knows nothing
        await found.simulated.settle()
        await found.storage.checkpoint()
        over = found.over_replication()
        report = await over.round(is_forced=True)
        assert report == OverReplicationReport(ledgers_asked=5, copies_unneeded=1, copies_removed=1)
        assert [found.has(n) for n in (7, 8, 9, 10, 11)] == [False, True, True, True, True]
        assert over.unneeded == 0
        # Of what is not here any more nobody is asked again.
        assert (await over.round(is_forced=True)).ledgers_asked == 4
        assert (over.passes, over.total.copies_removed) == (2, 1)
        _, version = await found.ledgers.read(LEDGER)
        assert version == 1
        assert await found.marks.locked() == {}


async def test_by_itself_a_copy_is_removed_when_it_was_unneeded_for_an_hour(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with world(CLOSED) as found:
        over = found.over_replication()
        assert await over.round() == OverReplicationReport()
        await trio.sleep(FIRST_PASS_S_MAX)
        report = await over.round()
        assert (report.copies_unneeded, report.copies_young, report.copies_removed) == (1, 1, 0)
        assert over.unneeded == 1
        await trio.sleep(3599)
        assert await over.round() == OverReplicationReport()
        await trio.sleep(1)
        assert (await over.round()).copies_removed == 1
        assert not found.has()


async def test_entries_that_arrive_begin_the_hour_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with world(CLOSED) as found:
        over = found.over_replication()
        await trio.sleep(FIRST_PASS_S_MAX)
        await over.round()
        await trio.sleep(3600)
        found.simulated.add(LEDGER, 0, b"again", is_recovery=True)
        assert (await over.round()).copies_young == 1
        await found.simulated.settle()
        await found.storage.checkpoint()
        await trio.sleep(3599)
        assert await over.round() == OverReplicationReport()
        await trio.sleep(1)
        assert (await over.round()).copies_removed == 1


async def test_a_copy_that_the_metadata_names_again_is_kept(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with world(CLOSED) as found:
        over = found.over_replication()
        await trio.sleep(FIRST_PASS_S_MAX)
        await over.round()
        fragments = (Fragment(0, (HERE, "c:1")),)
        await found.ledgers.update(LEDGER, lambda one: replace(one, fragments=fragments))
        await trio.sleep(3600)
        report = await over.round()
        assert (report.ledgers_asked, report.copies_unneeded) == (1, 0)
        assert over.unneeded == 0
        assert found.has()


async def test_an_interval_of_0_is_never_but_on_request(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with world(CLOSED) as found:
        over = found.over_replication(interval_s=0, age_s=0)
        for _ in range(3):
            await trio.sleep(FIRST_PASS_S_MAX)
            assert await over.round() == OverReplicationReport()
        assert (await over.round(is_forced=True)).copies_removed == 1


async def test_a_ledger_that_lacks_copies_or_is_being_copied_keeps_them_all(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with world(CLOSED) as found:
        over = found.over_replication()
        await found.marks.mark(LEDGER, ["a:1"])
        assert (await over.round(is_forced=True)).copies_lacking == 1
        mark = await found.marks.read(LEDGER)
        assert mark is not None
        await found.marks.unmark(mark)
        async with found.marks.lock(LEDGER, HERE) as is_locked:  # a worker in this bookie
            assert is_locked
            assert (await over.round(is_forced=True)).copies_locked == 1
        assert found.has()
        assert (await over.round(is_forced=True)).copies_removed == 1


async def test_nothing_is_removed_while_the_metadata_is_in_doubt(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with world(CLOSED) as found:
        over = found.over_replication()
        await found.restores.add(Restore(100, 200, 0, "b:1"))
        report = await over.round(is_forced=True)
        assert report.ledgers_asked == 0
        assert "put back to an older state" in report.put_off
        await found.restores.release(1)
        found.is_another_cluster = True
        assert (await over.round(is_forced=True)).asks_failed == 1
        assert found.has()
        found.is_another_cluster = False
        assert (await over.round(is_forced=True)).copies_removed == 1


async def test_ledgers_of_a_directory_that_is_being_compared_are_left_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    other = replace(CLOSED, ledger_id=LEDGER + 1)
    async with world(CLOSED, other, directories=2) as found:
        integrity = found.storage.directory_of(LEDGER).integrity
        await integrity.set_state(IntegrityState(IntegrityStage.LEDGERS_IN_LIMBO, "a test"))
        over = found.over_replication()
        assert (await over.round(is_forced=True)).copies_removed == 1
        assert (found.has(), found.has(other.ledger_id)) == (True, False)
        await integrity.set_state(None)
        assert (await over.round(is_forced=True)).copies_removed == 1


async def test_a_store_that_does_not_answer_ends_the_round_and_the_next_continues(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ledgers = [replace(CLOSED, ledger_id=n) for n in range(50)]
    async with world(*ledgers) as found:

        class Silent(DyingStore):
            async def _step(self, is_after: bool) -> None:
                if "/L0" in self.path and is_silent:
                    raise MetadataUnavailable("no reply")

            path = ""

            async def get(self, path: str) -> Node:
                self.path = path
                return await super().get(path)

        is_silent = True
        found.store = Silent(found.tree)
        over = found.over_replication()
        report = await over.round(is_forced=True)
        assert (report.asks_failed, report.copies_removed) == (10, 0)
        is_silent = False
        assert (await over.round()).copies_removed == 0  # it is young
        assert (await over.round(is_forced=True)).copies_removed == 50


async def test_removals_are_paced(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ledgers = [replace(CLOSED, ledger_id=n) for n in range(20)]
    async with world(*ledgers) as found:
        over = found.over_replication(removals_per_s_max=2)
        begun = trio.current_time()
        assert (await over.round(is_forced=True)).copies_removed == 20
        assert 9 < trio.current_time() - begun < 11


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("is_after", [False, True])
async def test_a_process_may_die_at_every_request(
    is_after: bool, fails: bool, autojump_clock: trio.testing.MockClock
) -> None:
    dies_at, ended = 0, False
    removed: list[bool] = []
    while not ended:
        dies_at += 1
        async with world(CLOSED) as found:
            store = found.store
            before, _ = await found.ledgers.read(LEDGER)
            store.dies_at, store.is_after, store.fails = dies_at, is_after, fails
            with store.scope:
                try:
                    await found.over_replication().round(is_forced=True)
                except MetadataUnavailable:
                    assert fails
            ended = store.requests < dies_at
            assert (await found.ledgers.read(LEDGER))[0] == before
            removed.append(not found.has())
            await store.aclose()  # the session ends, and the lock with it
            state = found.storage.state(LEDGER)
            assert state is not None
            assert not state.is_leaving
            if removed[-1]:
                with pytest.raises(UnknownLedgerState):
                    await found.storage.read(LEDGER, 0)
            # Another round does it again, and a copy that is made then is whole.
            found.store = DyingStore(found.tree)
            report = await found.over_replication().round(is_forced=True)
            assert report.copies_removed == (not removed[-1])
            for entry_id in range(ENTRIES):
                added = found.simulated.add(LEDGER, entry_id, b"again", is_recovery=True)
                assert added is Status.OK
            await found.simulated.settle()
            await found.simulated.check()
    assert set(removed) == {False, True}
    assert dies_at > 8


async def _copy(cluster: SimCluster, ledger_id: int, old: str, new: str) -> None:
    """Moves a copy, as a worker does."""
    async with cluster.client() as client:
        metadata, version = await client.ledgers.read(ledger_id)
        for entry_id in range(ENTRIES):
            read = await client.pool.call(old, ReadRequest(ledger_id, entry_id), timeout_s=5)
            assert isinstance(read, ReadResponse)
            assert read.body is not None
            key, body = master_key(metadata.password), bytes(read.body)
            add = AddRequest(ledger_id, entry_id, key, body, is_recovery=True)
            added = await client.pool.call(new, add, timeout_s=5)
            assert added.status is Status.OK
        (fragment,) = metadata.fragments
        bookies = tuple(new if one == old else one for one in fragment.bookies)
        moved = replace(metadata, fragments=(Fragment(0, bookies),))
        await client.ledgers.compare_and_put(moved, version)


def test_a_moved_ledger_leaves_its_old_bookie_and_may_return() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
            for number in range(ENTRIES):
                await writer.append(b"%d" % number)
            await writer.close()
            names = [f"{name}:3181" for name in cluster.bookies]
            (fragment,) = (await client.ledger_metadata(writer.ledger_id)).fragments
            old = fragment.bookies[0]
            (new,) = set(names) - set(fragment.bookies)
            for source, target in ((old, new), (new, old), (old, new)):
                await _copy(cluster, writer.ledger_id, source, target)
                await _wait_removed(cluster, source, writer.ledger_id)
                async with client.open_ledger(writer.ledger_id) as reader:
                    entries = await reader.read(0, ENTRIES - 1)
                assert [one.payload for one in entries] == [b"%d" % n for n in range(ENTRIES)]

    simulate(scenario, bookies=4)


async def _wait_removed(cluster: SimCluster, bookie_id: str, ledger_id: int) -> None:
    bookie = cluster._nodes[bookie_id.partition(":")[0]].bookie
    assert bookie is not None
    assert bookie.storage is not None
    copies = bookie.storage.directory_of(ledger_id).garbage.copies
    has: Callable[[], bool] = lambda: copies.has_entries(ledger_id)  # noqa: E731
    assert has()
    with trio.fail_after(60):
        while has():
            bookie.force_collection()  # a ledger is found once a checkpoint has stored it
            await trio.sleep(1)
