"""Power is lost at every write, sync and change of name of a workload: promises hold after.

The workload has adds, a fence, an explicit LAC, checkpoints, rolls of journal and entry logs,
re-adds of a recovery and garbage collection. Half of the crashes fall in the middle of a step;
any sectors not synced, names not synced and index batches not flushed may be kept or lost.
Every other group of a journal is written in the event loop, those of adds at the end of their
chunk, and the others by a thread.
All of it with one journal and one ledger directory, and with several of both. From each point
it continues in three ways: nothing that was not synced is left, each sector or not, all of it.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import trio
import trio.testing

from bookie.core.garbage import GarbageOptions
from bookie.core.repeated_adds import Presence
from bookie.storage.options import StorageOptions
from bookie.testing.scheduler import seeded_trio
from ledger.errors import NoSuchLedger, Status
from tests.bookie.storage.crash_disk import CrashDisk, EveryOtherInLoop
from tests.bookie.storage.memory_disk import MemoryDisk
from tests.bookie.storage.simulated_storage import (
    CrashingKeyValue,
    SimulatedStorage,
    is_crashing,
    numbered,
)
from tests.crash_counts import Aftermath
from tests.effort import stride

OPTIONS = StorageOptions(
    write_cache_bytes=4000,
    read_cache_bytes=2000,
    read_ahead_bytes=300,
    entry_log_bytes_max=1500,
    checkpoint_interval_s=1000,
    states_max=3,
    garbage=GarbageOptions(seal_age_s=0, asks_per_s_max=1e6),
)


Counts = tuple[int, int]
"""How many journals and ledger directories."""
Pairs = dict[str, CrashingKeyValue]


def _simulated(disk: MemoryDisk, counts: Counts, pairs: Pairs | None = None) -> SimulatedStorage:
    journals, directories = counts
    if pairs is None:
        pairs = {f"{path}/index": CrashingKeyValue() for path in numbered("ledgers", directories)}
    for one in pairs.values():
        one.disk = disk
    # Each directory has as small caches as a single one.
    options = replace(
        OPTIONS,
        write_cache_bytes=OPTIONS.write_cache_bytes * directories,
        read_cache_bytes=OPTIONS.read_cache_bytes * directories,
        states_max=OPTIONS.states_max * directories,
    )
    return SimulatedStorage(
        disk,
        pairs,
        options=options,
        journals=journals,
        directories=directories,
        checkpoints_when_due=False,
        loop_writes=EveryOtherInLoop,
    )


async def _workload(simulated: SimulatedStorage) -> None:
    async def is_deleted(ledger_id: int) -> bool:
        await trio.lowlevel.checkpoint()
        return ledger_id == 3

    async with simulated.running():
        for i in range(12):
            for ledger in (1, 2, 3):
                simulated.add(ledger, i, b"%d" % ledger * (i * 5), lac=i - 1)
            await simulated.settle()
            if i == 5:
                await simulated.storage.checkpoint()
        simulated.write_lac(2, 11)
        simulated.fence(1)
        await simulated.settle()
        await simulated.storage.checkpoint()
        for i in (9, 10, 11, 12):
            found = await simulated.add_again(1, i, b"1" * (i * 5), lac=11)
            assert found is (Presence.ABSENT if i == 12 else Presence.EQUAL)
            assert await simulated.add_again(1, i, b"forged", lac=11) is Presence.OTHER
        for i in range(12, 20):
            simulated.add(2, i, b"z" * 60, lac=i - 1)
            await simulated.settle()
        await simulated.storage.checkpoint()
        simulated.deleted[3] = None  # from here on nothing is promised about it
        await simulated.storage.collect_garbage(is_deleted)
        assert simulated.add(3, 12) is Status.FENCED
        simulated.fence(5)  # the first word of this ledger
        simulated.write_lac(1, 30)
        await simulated.settle()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(simulated.storage.checkpoint)
            for i in range(20):  # journaled while the checkpoint runs
                simulated.add(4, i, b"meanwhile")
                await simulated.settle()
        await simulated.storage.checkpoint()
        simulated.is_superseded = True
        simulated.add(4, 20, b"at last")
        await simulated.settle()
        await simulated.check()


def _after_crash(
    crashed: SimulatedStorage,
    rng: random.Random,
    crash_at: int | None = None,
    aftermath: Aftermath | None = None,
) -> SimulatedStorage:
    pairs: Pairs = {}
    for path, one in crashed.pairs.items():
        # A process that dies takes with it what its index had not flushed, too.
        kept = 0 if aftermath is Aftermath.DROPPED else rng.randint(0, one.unflushed)
        pairs[path] = CrashingKeyValue(one.after_crash(kept).items(b"", b"\xff" * 20))
    disk = crashed.disk
    found = disk.after_crash(aftermath) if isinstance(disk, CrashDisk) else disk.after_crash()
    found.crash_at = crash_at
    # What may have become durable without anyone knowing is not checked: only promises are.
    return crashed.promised_by(_simulated(found, crashed.counts, pairs))


async def _check_after(successor: SimulatedStorage) -> None:
    async with successor.running():
        await successor.check()
        assert successor.storage.statistics().entry_logs_missing == 0
        assert successor.storage.statistics().entry_logs_stray == 0
        state = successor.storage.state(3)
        assert not successor.is_superseded or (state is not None and state.is_deleted)
        if state is not None and state.is_deleted:
            assert successor.add(3, 99) is Status.FENCED
            with pytest.raises(NoSuchLedger):
                await successor.storage.read(3, 0)
        for (ledger, entry_id), entry in list(successor.acked.items()):
            if ledger not in successor.deleted:
                forged = await successor.add_again(ledger, entry_id, b"forged")
                assert forged is Presence.OTHER, "whatever a crash left, history stays"
                same = await successor.add_again(ledger, entry_id, entry[32:], lac=99)
                assert same is Presence.EQUAL
        for ledger in (1, 2, 4):
            last = successor.storage.last_entry_id(ledger)
            successor.add(ledger, last + 1, b"still alive!", is_recovery=True)
        await successor.settle()
        await successor.storage.checkpoint()
        await successor.check()


@pytest.mark.parametrize(
    ("seed", "counts"), [(0, (1, 1)), (1, (1, 1)), (2, (1, 1)), (3, (2, 3)), (4, (3, 2))]
)
async def test_promises_hold_after_power_loss_at_any_point(
    seed: int,
    counts: Counts,
    capsys: pytest.CaptureFixture[str],
    autojump_clock: trio.testing.MockClock,
) -> None:
    whole = _simulated(CrashDisk(), counts)
    with seeded_trio(seed):  # or several journals take more steps, or fewer, each time
        assert not await is_crashing(_workload, whole)
    steps = whole.disk.steps
    step = stride(ci=11)
    crash_at, crashes, double_crashes = 1 + seed % step, 0, 0
    while True:
        rng = random.Random(seed << 20 | crash_at)
        simulated = _simulated(CrashDisk(rng=rng, crash_at=crash_at), counts)
        with seeded_trio(seed):
            if not await is_crashing(_workload, simulated):
                break
        crashes += 1
        for aftermath in Aftermath:
            await _check_after(_after_crash(simulated, rng, aftermath=aftermath))
        # Then while the next process starts, once, and then no more.
        again = _after_crash(simulated, rng, crash_at=rng.randint(1, 25))
        double_crashes += await is_crashing(_check_after, again)
        await _check_after(_after_crash(again, rng))
        crash_at += step
    with capsys.disabled():
        print(f" {crashes} crash points, {double_crashes} of them twice ", end="")
    assert simulated.disk.steps == steps < crash_at <= steps + step
    assert steps > 100
    assert double_crashes > crashes // 4
