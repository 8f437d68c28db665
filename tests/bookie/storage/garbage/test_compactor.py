"""Compaction gives back the space of dead bytes, and of living ones changes only the place."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
import trio

from bookie.core.compaction import CompactionKind, CompactionOptions
from bookie.core.garbage import GarbageOptions
from bookie.core.integrity import HEADER_BYTES
from bookie.storage.metrics import CompactionStatistics, GarbageCollectionReport
from bookie.storage.options import StorageOptions
from ledger.errors import NoSuchEntry, NoSuchLedger
from tests.bookie.core.test_caches import make_entry
from tests.bookie.storage.memory_disk import MemoryFile
from tests.bookie.storage.simulated_storage import SimulatedStorage

MINOR, MAJOR = CompactionKind.MINOR, CompactionKind.MAJOR
COMPACTION = CompactionOptions(bytes_per_s_max=0, free_bytes_min=0)
OPTIONS = StorageOptions(
    write_cache_bytes=8000,
    read_cache_bytes=2000,
    read_ahead_bytes=300,
    entry_log_bytes_max=2500,
    checkpoint_interval_s=1000,
    garbage=GarbageOptions(seal_age_s=0, asks_per_s_max=1e6, compaction=COMPACTION),
)


def with_compaction(**changes: float) -> StorageOptions:
    compaction = replace(COMPACTION, **changes)  # type: ignore[arg-type]
    return replace(OPTIONS, garbage=replace(OPTIONS.garbage, compaction=compaction))


def deleted(simulated: SimulatedStorage) -> Callable[[int], Awaitable[bool]]:
    async def is_deleted(ledger_id: int) -> bool:
        await trio.lowlevel.checkpoint()
        return ledger_id in simulated.deleted

    return is_deleted


async def collect(
    simulated: SimulatedStorage, most: CompactionKind = MAJOR, *, is_forced: bool = True
) -> GarbageCollectionReport:
    [collected] = await simulated.storage.collect_garbage(
        deleted(simulated), compaction=most, is_forced=is_forced
    )
    await simulated.check()
    return collected


def logs(simulated: SimulatedStorage) -> dict[str, int]:
    """Sizes of the entry logs, by name."""
    return {
        name: len(inode.data)
        for name, inode in sorted(simulated.disk.names.items())
        if name.endswith(".log")
    }


def statistics(simulated: SimulatedStorage) -> CompactionStatistics:
    return simulated.storage.directories[0].details().compaction


async def fill(
    simulated: SimulatedStorage, ledgers: range = range(1, 6), entries: int = 20
) -> None:
    """Entries of all ledgers in each of several logs."""
    for i in range(entries):
        for ledger in ledgers:
            simulated.add(ledger, i, b"%d" % ledger * 30)
        await simulated.settle()
        if i % 5 == 4:
            await simulated.storage.checkpoint()


async def test_what_lives_is_moved_and_the_rest_comes_back() -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        await fill(simulated)
        before = logs(simulated)
        simulated.deleted.update(dict.fromkeys((1, 2, 3, 4)))
        collected = await collect(simulated)
        after = logs(simulated)
        assert len(before) >= 4
        assert not before.keys() & after.keys()
        assert collected.compaction is MAJOR
        assert collected.ended_early == ""
        assert collected.logs_compacted == len(before) - collected.logs_removed
        assert collected.entries_moved == 20
        assert collected.bytes_moved == 20 * 62
        assert collected.bytes_written == sum(after.values())
        reclaimed = collected.bytes_reclaimed_by_compaction + collected.bytes_reclaimed_by_deletion
        assert sum(before.values()) - reclaimed == 0
    successor = simulated.reopened()
    async with successor.running():
        await successor.check()
        assert logs(successor).items() >= after.items()
        assert successor.storage.statistics().entry_logs_missing == 0
        assert successor.storage.statistics().entry_logs_stray == 0


async def test_a_minor_compaction_takes_the_emptiest_only() -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        await fill(simulated, range(1, 21), 5)  # twenty ledgers share logs
        await fill(simulated, range(21, 23), 5)  # and two share one
        simulated.deleted.update(dict.fromkeys([*range(2, 20), 21]))
        before = logs(simulated)
        collected = await collect(simulated, MINOR)
        assert collected.compaction is MINOR
        assert collected.logs_compacted + collected.logs_removed == len(before) - 1
        counts = statistics(simulated)
        assert sum(counts.logs_by_live_ratio) == collected.logs_compacted + 1
        assert (counts.minor_compactions, counts.major_compactions) == (1, 0)
        assert (await collect(simulated, MAJOR)).logs_compacted == 1


async def test_compactions_come_at_their_intervals_and_not_while_suspended(
    autojump_clock: trio.testing.MockClock,
) -> None:
    simulated = SimulatedStorage(options=with_compaction(minor_interval_s=60, major_interval_s=200))
    garbage = simulated.storage
    kinds = []
    async with simulated.running():
        await fill(simulated)
        for round_no in range(14):
            if round_no == 7:
                garbage.suspend_compaction(MINOR)
            if round_no == 9:
                garbage.suspend_compaction(MAJOR)
                assert garbage.is_compaction_suspended(MAJOR)
            if round_no == 12:
                garbage.resume_compaction(MAJOR)
                forced = await collect(simulated, MAJOR, is_forced=True)
                assert forced.compaction is MAJOR
                garbage.resume_compaction(MINOR)
            kinds.append(int((await collect(simulated, is_forced=False)).compaction))
            await trio.sleep(50)
    # At 0, 50, 100, ... s. Major at 200 resets minor; suspended from 350 and 450 to 600.
    assert kinds == [0, 0, 1, 0, 2, 0, 1, 0, 2, 0, 0, 0, 0, 0]


async def test_a_log_of_living_ledgers_whose_entries_were_all_added_again_goes() -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        await fill(simulated, range(1, 3), 5)
        (first,) = logs(simulated)
        for i in range(5):
            for ledger in (1, 2):
                simulated.add(ledger, i, b"again" * 30, is_recovery=True)
        await simulated.settle()
        await simulated.storage.checkpoint()
        collected = await collect(simulated)
        assert first not in logs(simulated)
        assert collected.logs_compacted >= 1


async def test_parts_of_a_run_that_was_cut_are_moved_each() -> None:
    simulated = SimulatedStorage(options=with_compaction(major_ratio_max=1.0))
    async with simulated.running():
        for i in range(30):
            simulated.add(1, i, b"x" * i)
        await simulated.settle()
        await simulated.storage.checkpoint()
        (first,) = logs(simulated)
        for i in (0, 7, 8, 20, 29):
            simulated.add(1, i, b"again", is_recovery=True)
        simulated.add(2, 0)
        simulated.deleted[2] = None  # so that this log is sealed, too
        await simulated.settle()
        await simulated.storage.checkpoint()
        collected = await collect(simulated)
        assert first not in logs(simulated)
        assert collected.entries_moved >= 25
        for i in (30, 40):
            with pytest.raises(NoSuchEntry):
                await simulated.storage.read(1, i)


class _Traffic:
    """Adds, checkpoints and reads while another operation runs."""

    def __init__(self, simulated: SimulatedStorage, seed: int) -> None:
        self.simulated = simulated
        self.rng = random.Random(seed)
        self.entries = dict(simulated.acked)
        self.reads = 0

    async def write(self) -> None:
        simulated, rng = self.simulated, self.rng
        while True:
            ledger, entry = rng.randint(2, 7), rng.randint(0, 25)
            payload = rng.randbytes(rng.randint(0, 60))
            # Only an entry that was damaged is put again, and that is the same one.
            known = self.entries.setdefault((ledger, entry), make_entry(ledger, entry, payload))
            simulated.add(ledger, entry, known[HEADER_BYTES:], is_recovery=True)
            if rng.random() < 0.3:
                await simulated.settle()
            if rng.random() < 0.1:
                await simulated.storage.checkpoint()
            await simulated.storage.wait_capacity()

    async def read(self) -> None:
        while True:
            await trio.lowlevel.checkpoint()
            key = self.rng.choice(list(self.simulated.acked))
            try:
                entry = bytes(await self.simulated.storage.read(*key))
            except NoSuchLedger:
                assert key[0] in self.simulated.deleted
                continue
            assert entry == self.entries[key]
            self.reads += 1


@pytest.mark.parametrize("seed", range(8))
async def test_adds_overwrites_deletions_reads_and_checkpoints_go_on_meanwhile(seed: int) -> None:
    simulated = SimulatedStorage(options=with_compaction(major_ratio_max=1.0))
    async with simulated.running():
        await fill(simulated, entries=15)
        traffic = _Traffic(simulated, seed)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(traffic.write)
            nursery.start_soon(traffic.read)
            nursery.start_soon(traffic.read)
            moved = 0
            for ledger in (1, 2, 3, 4):
                simulated.deleted[ledger] = None
                [collected] = await simulated.storage.collect_garbage(
                    deleted(simulated), is_forced=True
                )
                assert (collected.ended_early, collected.set_aside) == ("", ())
                moved += collected.entries_moved
            nursery.cancel_scope.cancel()
        assert moved > 50
        assert traffic.reads > 100
        await simulated.settle()
        await simulated.check()
    successor = simulated.reopened()
    async with successor.running():
        await successor.check()


@pytest.mark.parametrize("is_opened_first", [True, False])
async def test_a_read_that_waits_for_a_log_that_goes_finds_the_copy(is_opened_first: bool) -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        await fill(simulated)
        before = logs(simulated)
        simulated.deleted.update(dict.fromkeys((1, 2, 3)))
        await collect(simulated, CompactionKind.NONE)  # deletes them, which also says "look again"
        storage = simulated.storage.directories[0]
        for ledger in (4, 5):
            storage._read_cache.drop_ledger(ledger)
        storage._logs.close()  # so that the read opens its log again
        gone, asked, really_open = trio.Event(), trio.Event(), simulated.disk.open

        async def open_late(path: str, **how: bool) -> MemoryFile:
            simulated.disk.open = really_open  # type: ignore[method-assign]
            file = await really_open(path, **how) if is_opened_first else None
            asked.set()
            await gone.wait()
            return file or await really_open(path, **how)

        simulated.disk.open = open_late  # type: ignore[method-assign]
        found: list[bytes] = []

        async def read() -> None:
            found.append(bytes(await simulated.storage.read(4, 0)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await asked.wait()
            [collected] = await simulated.storage.collect_garbage(
                deleted(simulated), is_forced=True
            )
            assert collected.entries_moved
            gone.set()
        assert found == [simulated.acked[4, 0]]
        # Nothing keeps a removed file open: its space would not be freed.
        kept = {f"ledgers/{log_id:016x}.log" for log_id in storage._logs._files}
        assert not kept & (before.keys() - logs(simulated).keys())


async def test_two_rounds_at_once_follow_each_other() -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        await fill(simulated)
        simulated.deleted.update(dict.fromkeys((1, 2, 3)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect, simulated)
            nursery.start_soon(collect, simulated)
        assert statistics(simulated).major_compactions == 2


async def test_a_compaction_ends_when_its_time_is_over_and_the_next_goes_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    simulated = SimulatedStorage(options=with_compaction(major_s_max=1.0, entries_per_s_max=10))
    async with simulated.running():
        await fill(simulated)
        simulated.deleted.update(dict.fromkeys((1, 2, 3)))
        rounds = 0
        while (collected := await collect(simulated)).ended_early:
            assert "time limit is over" in collected.ended_early
            assert collected.seconds < 1.51  # a second, and one piece of half a second
            rounds += 1
            assert rounds < 20
        assert rounds >= 2
        assert statistics(simulated).compactions_ended_early == rounds
        assert statistics(simulated).entries_moved >= 30


@pytest.mark.parametrize("bound", ["bytes_per_s_max", "entries_per_s_max"])
async def test_the_throttle_holds(bound: str, autojump_clock: trio.testing.MockClock) -> None:
    rate = 1000 if bound == "bytes_per_s_max" else 5
    simulated = SimulatedStorage(options=with_compaction(**{bound: rate}))
    async with simulated.running():
        await fill(simulated)
        simulated.deleted.update(dict.fromkeys((1, 2)))
        collected = await collect(simulated)
        moved = collected.bytes_moved if bound == "bytes_per_s_max" else collected.entries_moved
        # But for a quarter of a second's burst.
        assert collected.seconds >= moved / rate - 1
        assert collected.seconds < 600_000 * 20 / rate


async def test_suspending_ends_what_is_under_way(autojump_clock: trio.testing.MockClock) -> None:
    simulated = SimulatedStorage(options=with_compaction(major_interval_s=10, entries_per_s_max=5))
    async with simulated.running():
        await fill(simulated)
        simulated.deleted.update(dict.fromkeys((1, 2)))
        await collect(simulated, is_forced=False)  # the interval begins
        await trio.sleep(11)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def _() -> None:
                await trio.sleep(3)
                simulated.storage.suspend_compaction(MAJOR)

            collected = await collect(simulated, is_forced=False)
        assert collected.ended_early == "major compaction was suspended"
        assert 0 < collected.entries_moved < 40


async def test_a_cancelled_compaction_leaves_everything_in_place(
    autojump_clock: trio.testing.MockClock,
) -> None:
    simulated = SimulatedStorage(options=with_compaction(entries_per_s_max=5))
    async with simulated.running():
        await fill(simulated)
        simulated.deleted.update(dict.fromkeys((1, 2)))
        for patience_s in (0.5, 1.0, 3.0, 7.0):
            with trio.move_on_after(patience_s):
                await collect(simulated)
            await simulated.check()
            await fill(simulated, range(10, 12), 5)
        assert not (await collect(simulated)).set_aside
    successor = simulated.reopened()
    async with successor.running():
        await successor.check()
