"""Power is lost at every write, sync, removal and index batch of a workload that compacts.

What is moved is overwritten and deleted meanwhile, checkpoints come between, and a second
compaction moves what the first one moved. Half of the crashes fall into the middle of a step.
"""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from bookie.core.compaction import CompactionOptions
from bookie.core.garbage import GarbageOptions
from bookie.storage.garbage import compactor
from bookie.storage.options import StorageFailed, StorageOptions
from ledger.errors import NoSuchLedger
from tests.bookie.storage.crash_disk import CrashDisk
from tests.bookie.storage.memory_disk import MemoryDisk, PowerLost
from tests.bookie.storage.simulated_storage import CrashingKeyValue, SimulatedStorage, is_crashing
from tests.crash_counts import Aftermath
from tests.effort import stride

INDEX = "ledgers/index"
COMPACTION = CompactionOptions(major_ratio_max=1.0, bytes_per_s_max=0, free_bytes_min=0)
OPTIONS = StorageOptions(
    write_cache_bytes=4000,
    read_cache_bytes=2000,
    read_ahead_bytes=300,
    entry_log_bytes_max=1500,
    checkpoint_interval_s=1000,
    states_max=3,
    garbage=GarbageOptions(seal_age_s=0, asks_per_s_max=1e6, compaction=COMPACTION),
)


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few runs between two syncs, one run while a checkpoint must wait."""
    monkeypatch.setattr(compactor, "STEP_BYTES", 300)
    monkeypatch.setattr(compactor, "RUNS_PER_HOLD", 1)
    monkeypatch.setattr(compactor, "FILES_PER_HOLD", 1)


def _simulated(disk: MemoryDisk, pairs: CrashingKeyValue) -> SimulatedStorage:
    pairs.disk = disk
    return SimulatedStorage(disk, {INDEX: pairs}, options=OPTIONS, checkpoints_when_due=False)


async def _compact(simulated: SimulatedStorage) -> None:
    async def is_deleted(ledger_id: int) -> bool:
        await trio.lowlevel.checkpoint()
        return ledger_id in simulated.deleted

    [collected] = await simulated.storage.collect_garbage(is_deleted, is_forced=True)
    assert (collected.ended_early, collected.set_aside) == ("", ())


async def _workload(simulated: SimulatedStorage) -> None:
    async with simulated.running():
        for i in range(12):
            for ledger in (1, 2, 3):
                simulated.add(ledger, i, b"%d" % ledger * (10 + i * 5), lac=i - 1)
            if i % 4 == 3:
                await simulated.settle()
                await simulated.storage.checkpoint()
        simulated.fence(1)
        for i in (2, 3, 9):
            simulated.add(1, i, b"again", is_recovery=True)
        await simulated.settle()
        simulated.deleted[3] = None  # from here on nothing is promised about it
        for round_no in range(2):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_compact, simulated)
                for i in range(6):
                    simulated.add(2, 3 * i + round_no, b"meanwhile%d" % round_no, is_recovery=True)
                    simulated.add(4, 6 * round_no + i, b"new")
                    await simulated.settle()
                    await simulated.storage.checkpoint()
            await simulated.check()
        assert simulated.storage.directories[0].details().compaction.entries_moved > 30
        simulated.is_superseded = True
        simulated.add(4, 20, b"at last")
        await simulated.settle()


def _after_crash(
    crashed: SimulatedStorage,
    rng: random.Random,
    crash_at: int | None = None,
    aftermath: Aftermath | None = None,
) -> SimulatedStorage:
    old = crashed.pairs[INDEX]
    kept = 0 if aftermath is Aftermath.DROPPED else rng.randint(0, old.unflushed)
    pairs = CrashingKeyValue(old.after_crash(kept).items(b"", b"\xff" * 20))
    assert isinstance(crashed.disk, CrashDisk)
    disk = crashed.disk.after_crash(aftermath)
    disk.crash_at = crash_at
    return crashed.promised_by(_simulated(disk, pairs))


async def _check_after(successor: SimulatedStorage) -> None:
    async with successor.running():
        await successor.check()
        assert successor.storage.statistics().entry_logs_missing == 0
        assert successor.storage.statistics().entry_logs_stray == 0
        if successor.is_superseded:
            with pytest.raises(NoSuchLedger):
                await successor.storage.read(3, 0)
        # What is left over of a compaction is collected by the next one.
        successor.add(1, 60, b"still alive!", is_recovery=True)
        successor.add(5, 0, b"deleted at once")
        successor.deleted[5] = None
        await successor.settle()
        await successor.storage.checkpoint()
        await _compact(successor)
        await successor.check()
        names = [name for name in successor.disk.names if name.endswith(".log")]
        sizes = sum(len(successor.disk.names[name].data) for name in names)
        details = successor.storage.directories[0].details()
        assert len(names) == details.storage.entry_logs
        # An unacknowledged entry may be durable, too: power was lost between write and reply.
        kept = list(successor.acked.items())
        kept += [(key, entry) for key, all_ in successor.attempted.items() for entry in all_]
        live = sum(
            len(entry) + 4 + 40 for (ledger, _), entry in kept if ledger not in successor.deleted
        )
        assert sizes < 1.3 * live + 32 * len(names)


@pytest.mark.parametrize("aftermath", Aftermath)
async def test_promises_hold_after_a_crash_at_any_point_of_compactions(
    aftermath: Aftermath,
    capsys: pytest.CaptureFixture[str],
    autojump_clock: trio.testing.MockClock,
) -> None:
    whole = _simulated(CrashDisk(), CrashingKeyValue())
    assert not await is_crashing(_workload, whole)
    steps = whole.disk.steps
    crashes = double_crashes = 0
    step = stride(ci=13)
    # Each aftermath has points of its own.
    first = 1 + list(Aftermath).index(aftermath) * step // 3
    points = range(first, steps + 1, step) if step > 1 else range(1, steps + 1)
    for crash_at in points:
        rng = random.Random(crash_at)
        simulated = _simulated(CrashDisk(rng=rng, crash_at=crash_at), CrashingKeyValue())
        crashes += await is_crashing(_workload, simulated)
        # Then while the next process starts or compacts, once, and then no more.
        again = _after_crash(simulated, rng, rng.randint(1, 60), aftermath)
        try:
            await _check_after(again)
        except* (PowerLost, StorageFailed):
            double_crashes += 1
        await _check_after(_after_crash(again, rng))
    with capsys.disabled():
        print(f" {crashes} crash points, {double_crashes} of them twice ", end="")
    assert crashes == len(points)
    assert steps > 300
    assert double_crashes > crashes // 4
