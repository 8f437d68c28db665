"""Power is lost at every write, sync and change of name of a workload: promises hold after.

The workload has adds, a fence, an explicit LAC, checkpoints, rolls of journal and entry logs,
re-adds of a recovery and garbage collection. Half of the crashes fall in the middle of a step;
any sectors not synced, names not synced and index batches not flushed may be kept or lost.
"""

from __future__ import annotations

import random

import pytest
import trio

from bookie.core.garbage import GarbageOptions
from bookie.storage.settings import StorageOptions
from ledger.errors import NoSuchLedger, Status
from tests.bookie.memory_disk import MemoryDisk, PowerLost
from tests.bookie.storage_bottle import Bottle, CrashingKeyValue

OPTIONS = StorageOptions(
    write_cache_bytes=4000,
    read_cache_bytes=2000,
    read_ahead_bytes=300,
    entry_log_bytes_max=1500,
    checkpoint_interval_s=1000,
    states_max=3,
    garbage=GarbageOptions(seal_age_s=0, asks_per_s_max=1e6),
)


def _bottle(disk: MemoryDisk, pairs: CrashingKeyValue) -> Bottle:
    pairs.disk = disk
    return Bottle(disk, pairs, options=OPTIONS)


async def _workload(bottle: Bottle) -> None:
    async def is_deleted(ledger_id: int) -> bool:
        await trio.lowlevel.checkpoint()
        return ledger_id == 3

    async with bottle.running():
        for i in range(12):
            for ledger in (1, 2, 3):
                bottle.add(ledger, i, b"%d" % ledger * (i * 5), lac=i - 1)
            await bottle.settle()
            if i == 5:
                await bottle.storage.checkpoint()
        bottle.write_lac(2, 11)
        bottle.fence(1)
        await bottle.settle()
        await bottle.storage.checkpoint()
        for i in (9, 10, 11, 12):
            bottle.add(1, i, b"again", is_recovery=True)
        for i in range(12, 20):
            bottle.add(2, i, b"z" * 60, lac=i - 1)
            await bottle.settle()
        await bottle.storage.checkpoint()
        bottle.deleted[3] = None  # from here on nothing is promised about it
        await bottle.storage.collect_garbage(is_deleted)
        assert bottle.add(3, 12) is Status.FENCED
        bottle.fence(5)  # the first word of this ledger
        bottle.write_lac(1, 30)
        await bottle.settle()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bottle.storage.checkpoint)
            for i in range(20):  # journaled while the checkpoint runs
                bottle.add(4, i, b"meanwhile")
                await bottle.settle()
        await bottle.storage.checkpoint()
        bottle.buried = True
        bottle.add(4, 20, b"at last")
        await bottle.settle()
        await bottle.check()


async def _run_until_crash(bottle: Bottle) -> bool:
    """False if the workload came to its end before the crash was due."""
    was_crash = False
    try:
        await _workload(bottle)
    except* PowerLost:
        was_crash = True
    return was_crash


def _after_crash(crashed: Bottle, rng: random.Random, crash_at: int | None = None) -> Bottle:
    kept = rng.randint(0, crashed.pairs.unflushed)
    pairs = CrashingKeyValue(crashed.pairs.after_crash(kept).items(b"", b"\xff" * 20))
    disk = crashed.disk.after_crash()
    disk.crash_at = crash_at
    # What may have become durable without anyone knowing is not checked: only promises are.
    return crashed.promised_by(_bottle(disk, pairs))


async def _check_after(successor: Bottle) -> None:
    async with successor.running():
        await successor.check()
        assert successor.storage.statistics().entry_logs_missing == 0
        state = successor.storage.state(3)
        assert not successor.buried or (state is not None and state.is_deleted)
        if state is not None and state.is_deleted:
            assert successor.add(3, 99) is Status.FENCED
            with pytest.raises(NoSuchLedger):
                await successor.storage.read(3, 0)
        for ledger in (1, 2, 4):
            last = successor.storage.last_entry_id(ledger)
            successor.add(ledger, last + 1, b"life goes on", is_recovery=True)
        await successor.settle()
        await successor.storage.checkpoint()
        await successor.check()


@pytest.mark.parametrize("seed", range(3))
async def test_promises_hold_after_power_loss_at_any_point(
    seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = _bottle(MemoryDisk(), CrashingKeyValue())
    assert not await _run_until_crash(whole)
    steps = whole.disk.steps
    crashes = double_crashes = 0
    for crash_at in range(1, steps + 1):
        rng = random.Random(seed << 20 | crash_at)
        bottle = _bottle(MemoryDisk(rng=rng, crash_at=crash_at), CrashingKeyValue())
        crashes += await _run_until_crash(bottle)
        # Then while the next process starts, once, and then no more.
        again = _after_crash(bottle, rng, crash_at=rng.randint(1, 25))
        try:
            await _check_after(again)
        except* PowerLost:
            double_crashes += 1
        await _check_after(_after_crash(again, rng))
    with capsys.disabled():
        print(f" {crashes} crash points, {double_crashes} of them twice ", end="")
    assert crashes == steps > 100
    assert double_crashes > steps // 4
