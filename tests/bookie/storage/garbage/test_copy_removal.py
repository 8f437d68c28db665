"""Copies that are not needed here give their space back; fences hold, and nothing else is lost."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

import pytest
import trio

from bookie.core.garbage import GarbageOptions
from bookie.core.ledger_state import LedgerState
from bookie.storage.options import StorageOptions
from ledger.errors import NoSuchEntry, Status, UnknownLedgerState
from tests.bookie.storage.crash_disk import CrashDisk
from tests.bookie.storage.garbage.test_collector import Metadata, logs
from tests.bookie.storage.simulated_storage import (
    CrashingKeyValue,
    SimulatedStorage,
    is_crashing,
)
from tests.crash_counts import Aftermath

OPTIONS = StorageOptions(
    write_cache_bytes=8000,
    read_cache_bytes=20_000,
    entry_log_bytes_max=1500,
    checkpoint_interval_s=1000,
    states_max=3,
    garbage=GarbageOptions(seal_age_s=0, asks_per_s_max=1e6),
)
ENTRIES = 12


async def _remove(simulated: SimulatedStorage, ledger_id: int) -> LedgerState:
    storage = simulated.storage
    state = storage.state(ledger_id)
    assert state is not None
    storage.fence(state, lambda: None)
    copies = storage.directory_of(ledger_id).garbage.copies
    with copies.refusing(state):
        assert simulated.add(ledger_id, 3, b"no", is_recovery=True) is Status.READ_ONLY
        await copies.remove(state)
        assert simulated.add(ledger_id, 3, b"no", is_recovery=True) is Status.READ_ONLY
    # Of these entries nothing is promised any more.
    for key in [key for key in (*simulated.acked, *simulated.attempted) if key[0] == ledger_id]:
        simulated.acked.pop(key, None)
        simulated.attempted.pop(key, None)
    return state


async def _fill(simulated: SimulatedStorage) -> None:
    for i in range(ENTRIES):
        for ledger in (1, 2):
            simulated.add(ledger, i, b"%d" % ledger * (i * 5), lac=i - 1)
        await simulated.settle()
        if i % 5 == 4:
            await simulated.storage.checkpoint()


async def test_a_copy_gives_its_space_back_and_its_ledger_stays_fenced() -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        for ledger in (1, 2):
            for i in range(40):
                simulated.add(ledger, i, b"x" * 60)
            await simulated.settle()
            await simulated.storage.checkpoint()
        before = len(logs(simulated))
        state = await _remove(simulated, 1)
        assert simulated.storage.state(1) is state
        assert (state.is_fenced, state.is_removed, state.is_deleted) == (True, True, False)
        [collected] = await simulated.storage.collect_garbage(Metadata().is_deleted)
        assert collected.ledgers_deleted == 0
        assert collected.logs_removed == before - len(logs(simulated)) == before // 2
        assert not simulated.storage.directories[0].garbage.copies.has_entries(1)
        await simulated.check()
        with pytest.raises(UnknownLedgerState):
            await simulated.storage.read(1, 0)
        assert simulated.storage.last_entry_id(1) == -1
        assert simulated.add(1, 40) is Status.FENCED
    successor = simulated.reopened()
    async with successor.running():
        again = successor.storage.state(1)
        assert again is not None
        assert again is not state
        assert (again.is_fenced, again.is_removed, again.is_leaving) == (True, True, False)
        with pytest.raises(UnknownLedgerState):
            await successor.storage.read(1, 0)
        # It is copied here again: all that arrived is there, and what did not is not.
        for i in range(40):
            assert successor.add(1, i, b"y" * 60, is_recovery=True) is Status.OK
        successor.storage.copied_again(1)
        await successor.settle()
        await successor.storage.checkpoint()
        await successor.check()
        with pytest.raises(NoSuchEntry):
            await successor.storage.read(1, 40)


async def test_entries_that_no_checkpoint_has_stored_are_removed_as_well() -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        simulated.add(1, 0, b"one")
        await simulated.settle()
        assert simulated.storage.directories[0].garbage.copies.is_arriving(1)
        await _remove(simulated, 1)
        assert not simulated.storage.directories[0].garbage.copies.has_entries(1)
        await simulated.storage.checkpoint()
        with pytest.raises(UnknownLedgerState):
            await simulated.storage.read(1, 0)


async def test_a_deleted_ledger_whose_copy_was_removed_is_forgotten_as_any_other() -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        await _fill(simulated)
        await _remove(simulated, 1)
        simulated.deleted[1] = None
        [collected] = await simulated.storage.collect_garbage(Metadata(1).is_deleted)
        assert collected.ledgers_deleted == 1
        assert simulated.add(1, 3, is_recovery=True) is Status.NO_SUCH_LEDGER
        await simulated.check()


async def _workload(simulated: SimulatedStorage) -> None:
    async with simulated.running():
        await _fill(simulated)
        simulated.fence(1)
        await simulated.settle()
        # From here on nothing is promised about its entries, until they are copied here again.
        for key in [key for key in simulated.acked if key[0] == 1]:
            simulated.attempted.setdefault(key, []).append(simulated.acked.pop(key))
        await _remove(simulated, 1)
        await simulated.storage.collect_garbage(Metadata().is_deleted)
        await simulated.storage.checkpoint()
        for i in range(ENTRIES):
            simulated.add(1, i, b"again" * i, is_recovery=True)
        await simulated.settle()
        await simulated.storage.checkpoint()
        await simulated.check()


def _after_crash(crashed: SimulatedStorage, aftermath: Aftermath) -> SimulatedStorage:
    rng = random.Random(crashed.disk.steps)
    pairs: dict[str, CrashingKeyValue] = {}
    for path, one in crashed.pairs.items():
        assert isinstance(one, CrashingKeyValue)
        kept = 0 if aftermath is Aftermath.DROPPED else rng.randint(0, one.unflushed)
        pairs[path] = CrashingKeyValue(one.after_crash(kept).items(b"", b"\xff" * 20))
    assert isinstance(crashed.disk, CrashDisk)
    return crashed.promised_by(_simulated(crashed.disk.after_crash(aftermath), pairs))


def _simulated(disk: CrashDisk, pairs: dict[str, CrashingKeyValue]) -> SimulatedStorage:
    for one in pairs.values():
        one.disk = disk
    return SimulatedStorage(disk, pairs, options=OPTIONS, checkpoints_when_due=False)


async def _check_after(successor: SimulatedStorage) -> None:
    """What was promised holds; the rest is there as it was, or unknown; and all can be repeated."""
    async with successor.running():
        await successor.check()
        assert successor.storage.statistics().entry_logs_missing == 0
        state = successor.storage.state(1)
        if 1 in successor.fenced:  # by then all of its entries were acknowledged
            assert successor.add(1, ENTRIES) is Status.FENCED
            for i in range(ENTRIES):
                with suppress(UnknownLedgerState):
                    await successor.storage.read(1, i)
        if state is not None:
            await _remove(successor, 1)
            await successor.storage.collect_garbage(Metadata().is_deleted)
        for i in range(ENTRIES):
            if state is not None:
                assert successor.add(1, i, b"at last", is_recovery=True) is Status.OK
        await successor.settle()
        await successor.storage.checkpoint()
        await successor.check()


async def test_power_may_be_lost_at_any_point_of_a_removal() -> None:
    crash_at, crashes = 1, 0
    whole = _simulated(CrashDisk(), {"ledgers/index": CrashingKeyValue()})
    assert not await is_crashing(_workload, whole)
    while True:
        rng = random.Random(crash_at)
        disk = CrashDisk(rng=rng, crash_at=crash_at)
        simulated = _simulated(disk, {"ledgers/index": CrashingKeyValue()})
        if not await is_crashing(_workload, simulated):
            break
        crashes += 1
        for aftermath in Aftermath:
            await _check_after(_after_crash(simulated, aftermath))
        crash_at += 1
    assert crash_at > whole.disk.steps > 60
    assert crashes > 20


async def test_checkpoints_continue_while_a_large_copy_is_removed() -> None:
    simulated = SimulatedStorage(options=replace(OPTIONS, write_cache_bytes=10**6))
    task = simulated.storage.directories[0].task
    async with simulated.running():
        for i in range(6000):
            simulated.add(1, 2 * i)
        await simulated.settle()
        await simulated.storage.checkpoint()
        made: list[int] = []

        async def checkpoints(is_over: Callable[[], bool]) -> None:
            while not is_over():
                simulated.add(2, len(made))
                await simulated.settle()
                await simulated.storage.checkpoint()
                made.append(task.checkpoints)

        await _meanwhile(lambda: _remove(simulated, 1), checkpoints)
        assert len(made) > 1
        assert not simulated.storage.directories[0].garbage.copies.has_entries(1)
        await simulated.check()


async def _meanwhile(
    work: Callable[[], Awaitable[object]],
    other: Callable[[Callable[[], bool]], Awaitable[None]],
) -> None:
    is_over = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other, lambda: is_over)
        await work()
        is_over = True
