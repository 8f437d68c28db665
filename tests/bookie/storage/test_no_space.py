"""The disk is full at every write, allocation, new file, rename and sync of a workload.

Whatever the bookie then does (continues with its reserve, or stops), all that was acknowledged is
there after the next start. A failed sync always stops it, and is not tried again.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Awaitable, Callable
from typing import cast

import pytest
import trio

from bookie.config import BookieConfig
from bookie.core.journal import JournalFailed
from bookie.disk_monitor import DiskMonitor
from bookie.storage.bookie_storage import BookieStorage
from bookie.storage.disk.reserved_space import Reserve, ReservedDisk
from bookie.storage.options import StorageFailed
from tests.bookie.storage.memory_disk import MemoryDisk
from tests.bookie.storage.simulated_storage import SimulatedStorage
from tests.bookie.storage.test_crash_points import _after_crash, _check_after, _simulated, _workload

WRITES = ("write_at", "allocate", "open", "rename")
"""What may be done again when there is room."""
ENDINGS = ("write_at_synced", "sync", "sync_directory", "flush")
"""What may not: a sync failed, or may have."""
_PATIENCE_S = 30.0
"""Of a mock clock. A journal without a next file waits; the workload has no other reason to."""


async def _is_stopped(simulated: SimulatedStorage) -> bool:
    """False if the workload came to its end. A bookie may only stop by saying that its disk
    failed, or wait for room."""
    is_stopped = False
    try:
        with trio.move_on_after(_PATIENCE_S) as waiting:
            await _workload(simulated)
        is_stopped = waiting.cancelled_caught
    except* (JournalFailed, StorageFailed):
        is_stopped = True
    return is_stopped


@pytest.mark.parametrize("operation", WRITES + ENDINGS)
async def test_a_disk_that_is_full_at_any_step_loses_nothing_acknowledged(
    operation: str, capsys: pytest.CaptureFixture[str], autojump_clock: trio.abc.Clock
) -> None:
    steps = 0
    while True:
        rng = random.Random(steps)
        disk = MemoryDisk(rng=rng)
        simulated = _simulated(disk, (1, 1))
        disk.full_after[operation] = steps
        if not await _is_stopped(simulated):
            break
        steps += 1
        # Somebody makes room; power may have been lost meanwhile.
        await _check_after(_after_crash(simulated, rng))
    with capsys.disabled():
        print(f" {operation}: full at {steps} steps ", end="")
    assert steps >= 3


class _Reserved(MemoryDisk):
    """Full from some step on until the reserve is removed."""

    given_up = 0

    async def remove(self, path: str) -> None:
        await super().remove(path)
        if path.endswith("RESERVE"):
            self.given_up += 1
            self.full_after.clear()


@pytest.mark.parametrize("operation", WRITES)
async def test_with_a_reserve_a_write_that_finds_no_room_is_done_again(
    operation: str, autojump_clock: trio.abc.Clock
) -> None:
    steps = 0
    while True:
        disk = _Reserved(rng=random.Random(steps))
        reserve = Reserve(disk, "reserve", 100)
        assert await reserve.take()
        full: list[str] = []
        directories = ("journal", "ledgers")
        reserved = ReservedDisk(disk, dict.fromkeys(directories, reserve), full.append)
        simulated = _simulated(cast(MemoryDisk, _Door(disk, reserved)), (1, 1))
        disk.full_after[operation] = steps
        assert not await _is_stopped(simulated)
        if not full:
            break
        assert disk.given_up == 1
        assert reserve.held_bytes == 0
        steps += 1
    assert steps >= 3


class _Door:
    """The reserved disk for the storage, the one behind it for who looks inside."""

    def __init__(self, disk: MemoryDisk, reserved: ReservedDisk) -> None:
        self._disk = disk
        self._reserved = reserved

    def __getattr__(self, name: str) -> object:
        found = getattr(self._reserved, name, None)
        return getattr(self._disk, name) if found is None else found


@pytest.mark.parametrize("operation", ["write_at_synced", "sync", "sync_directory"])
async def test_a_reserve_is_not_given_up_for_what_ends_with_a_sync(operation: str) -> None:
    disk = _Reserved()
    reserve = Reserve(disk, "ledgers", 100)
    await reserve.take()
    reserved = ReservedDisk(disk, {"ledgers": reserve}, lambda _: None)
    file = await reserved.open("ledgers/file", is_new=True)
    disk.errors[operation] = OSError(errno.ENOSPC, "No space left on device")
    attempts: dict[str, Callable[[], Awaitable[object]]] = {
        "write_at_synced": lambda: file.write_at_synced(0, [b"x"]),
        "sync": file.sync,
        "sync_directory": lambda: reserved.replace_file("ledgers/lastmark", b"x"),
    }
    with pytest.raises(OSError, match="No space"):
        await attempts[operation]()
    assert disk.given_up == 0
    assert reserve.held_bytes == 100


async def test_other_errors_are_not_taken_for_a_full_disk() -> None:
    disk = _Reserved()
    reserve = Reserve(disk, "ledgers", 100)
    await reserve.take()
    reserved = ReservedDisk(disk, {"ledgers": reserve}, lambda _: pytest.fail("not full"))
    file = await reserved.open("ledgers/file", is_new=True)
    disk.errors["write_at"] = OSError(errno.EIO, "Input/output error")
    with pytest.raises(OSError, match="Input/output"):
        await file.write_at(0, [b"x"])
    assert disk.given_up == 0


async def test_a_reserve_that_finds_no_room_leaves_no_file() -> None:
    disk = MemoryDisk()
    reserve = Reserve(disk, "ledgers", 100)
    disk.full_after["allocate"] = 0
    assert not await reserve.take()
    assert reserve.held_bytes == 0
    assert not disk.names
    disk.full_after.clear()
    assert await reserve.take()
    again = Reserve(disk, "ledgers", 100)
    await again.find()
    assert again.held_bytes == 100
    smaller = Reserve(disk, "ledgers", 10)  # the settings changed
    await smaller.find()
    assert smaller.held_bytes == 0
    assert not disk.names


async def test_a_checkpoint_waits_for_room_serves_reads_meanwhile_and_is_then_made(
    autojump_clock: trio.abc.Clock,
) -> None:
    simulated = SimulatedStorage()
    storage: BookieStorage = simulated.storage
    asked: list[int] = []
    room = trio.Event()

    async def has_space(nbytes: int) -> bool:
        asked.append(nbytes)
        await trio.lowlevel.checkpoint()
        return room.is_set()

    task = storage.directories[0].task
    task.has_space = has_space

    def state() -> tuple[bool, bool]:
        return task.is_waiting_for_disk, storage.is_full

    async with simulated.running():
        before = task.checkpoints
        number = 0
        while not storage.is_full:
            simulated.add(1, number, b"x" * 400)
            number += 1
            await simulated.settle()
        assert asked[0] > 4000
        assert state() == (True, True)
        assert task.checkpoints == before
        await simulated.check()
        # Nobody need wait once no add is taken: else reads would wait behind adds.
        storage.gate.set(is_read_only=True, takes_recovery=False)
        assert state() == (True, False)
        with trio.fail_after(5):
            await storage.wait_capacity()
        storage.gate.set(is_read_only=False, takes_recovery=True)
        assert state() == (True, True)
        # Garbage collection continues: it may free the space.
        with trio.fail_after(5):
            async with task.writing():
                pass
        room.set()
        with trio.fail_after(5):
            await storage.wait_capacity()
        assert state() == (False, False)
        await storage.checkpoint()
        await simulated.check()


async def test_two_writes_that_find_no_room_at_once_share_one_reserve() -> None:
    """A checkpoint and the journal's next file: the second finds the reserve given up already,
    and the room is there."""
    disk = _Reserved()
    reserve = Reserve(disk, "ledgers", 100)
    await reserve.take()
    reserved = ReservedDisk(disk, {"ledgers": reserve}, lambda _: None)
    files = [await reserved.open(f"ledgers/{number}", is_new=True) for number in range(3)]
    disk.full_after["write_at"] = 0
    async with trio.open_nursery() as nursery:
        for file in files:
            nursery.start_soon(file.write_at, 0, [b"x"])
    assert disk.given_up == 1
    disk.full_after["write_at"] = 0  # nothing is left to give up now
    with pytest.raises(OSError, match="No space"):
        await files[0].write_at(0, [b"x"])


async def test_several_directories_are_not_promised_the_same_room() -> None:
    disk = MemoryDisk()
    disk.free_bytes = 150
    directories = ("journal", "ledgers", "ledgers-1")
    full: list[str] = []
    reserve = Reserve(disk, "journal", 100)
    reserved = ReservedDisk(disk, dict.fromkeys(directories, reserve), full.append)
    assert await reserved.promise_space("ledgers", 100)
    assert not await reserved.promise_space("ledgers-1", 100)
    assert full == ["ledgers-1"]
    assert await reserved.promise_space("ledgers-1", 50)
    assert await reserved.promise_space("ledgers-1", 0)
    # Compaction sees what is left, and the journal's next file does not take it either.
    assert (await reserved.space("ledgers-1"))[1] == 50
    file = await reserved.open("journal/spare-1", is_new=True)
    with pytest.raises(OSError, match="150 bytes are free, 100 of them for a checkpoint"):
        await file.allocate(51)
    await file.allocate(50)
    assert await reserved.promise_space("ledgers", 0)
    await file.allocate(200)
    assert await reserved.promise_space("ledgers-1", 150)


async def test_a_reserve_of_an_earlier_setting_is_not_forgotten() -> None:
    """It was in the first directory of its file system, which is another one now."""
    disk = MemoryDisk()
    old = Reserve(disk, "ledgers", 100)
    await old.take()
    config = BookieConfig(
        metadata_uri="memory:", journal_directories=("journal",), ledger_directories=("ledgers",)
    )
    await DiskMonitor(disk, config).open()
    assert not disk.names
