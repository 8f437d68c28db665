"""What is read ahead must not make whole entries unreadable because something near them is."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from bookie.storage.bookie_storage import BookieStorage
from bookie.storage.options import StorageOptions
from ledger.errors import BookieIoError
from tests.bookie.storage.memory_disk import MemoryDisk, MemoryFile
from tests.bookie.storage.simulated_storage import SimulatedStorage

ENTRIES = 1000
OPTIONS = StorageOptions(write_cache_bytes=1 << 22, checkpoint_interval_s=1e9)


class BadSector(MemoryDisk):
    """Reads of entry logs that touch byte `bad_at` are I/O errors."""

    bad_at = -1
    failed = 0

    async def open(
        self, path: str, *, is_new: bool = False, has_own_thread: bool = False
    ) -> MemoryFile:
        opened = await super().open(path, is_new=is_new, has_own_thread=has_own_thread)
        return _BadFile(self, opened.inode, path) if path.endswith(".log") else opened


class _BadFile(MemoryFile):
    disk: BadSector
    is_at_once = True

    def read_nowait(
        self, offset: int, size: int, *, drops_cache: bool = False
    ) -> bytes | bytearray | None:
        self._touch(offset, size)
        return super().read_nowait(offset, size, drops_cache=drops_cache)

    async def read(self, offset: int, size: int, *, drops_cache: bool = False) -> bytes:
        self._touch(offset, size)
        return await super().read(offset, size, drops_cache=drops_cache)

    def _touch(self, offset: int, size: int) -> None:
        if offset <= self.disk.bad_at < offset + size:
            self.disk.failed += 1
            raise OSError(errno.EIO, "Input/output error")


async def _filled(disk: MemoryDisk) -> tuple[SimulatedStorage, str]:
    """A storage to be reopened, and the path of the log that holds ledger 1."""
    simulated = SimulatedStorage(disk, options=OPTIONS)
    async with simulated.running():
        for entry_id in range(ENTRIES):
            simulated.add(1, entry_id, bytes(100))
        await simulated.settle()
        await simulated.storage.checkpoint()
    [path] = [name for name in disk.names if name.endswith(".log")]
    return simulated, path


async def _readable(storage: BookieStorage) -> list[int]:
    found = []
    for entry_id in range(ENTRIES):
        try:
            await storage.read(1, entry_id)
            found.append(entry_id)
        except BookieIoError:
            pass
    return found


def _cut(disk: BadSector, path: str) -> int:
    sums_bytes = 4 * ENTRIES  # these follow the last entry, and are not needed to read it
    del disk.names[path].data[-1 - sums_bytes :]
    return ENTRIES - 1


def _spoil(victim: int) -> Callable[[BadSector, str], int]:
    def spoil(disk: BadSector, path: str) -> int:
        data = bytes(disk.names[path].data)
        ids = (1).to_bytes(8, "big") + victim.to_bytes(8, "big")
        disk.bad_at = data.rindex(ids)
        return victim

    return spoil


HURTS = [_cut, _spoil(0), _spoil(1), _spoil(500), _spoil(ENTRIES - 1)]


@pytest.mark.parametrize("hurt", HURTS)
async def test_one_damaged_entry_costs_only_itself(hurt: Callable[[BadSector, str], int]) -> None:
    disk = BadSector()
    simulated, path = await _filled(disk)
    damaged = hurt(disk, path)
    again = simulated.reopened()
    async with again.running():
        others = [entry_id for entry_id in range(ENTRIES) if entry_id != damaged]
        assert await _readable(again.storage) == others
    # The bad place itself may take seconds each time: it is not asked once per entry.
    assert disk.failed <= ENTRIES / 5


@pytest.mark.parametrize("hurt", HURTS)
async def test_a_batch_goes_up_to_the_damaged_entry(hurt: Callable[[BadSector, str], int]) -> None:
    disk = BadSector()
    simulated, path = await _filled(disk)
    damaged = hurt(disk, path)
    again = simulated.reopened()
    async with again.running():
        if damaged:
            found = await again.storage.read_batch(1, 0, ENTRIES, 1 << 20)
            assert [bytes(entry) for entry in found] == [
                again.acked[1, entry_id] for entry_id in range(damaged)
            ]
        with pytest.raises(BookieIoError):
            await again.storage.read_batch(1, damaged, ENTRIES, 1 << 20)
        if damaged + 1 < ENTRIES:
            found = await again.storage.read_batch(1, damaged + 1, ENTRIES, 1 << 20)
            assert len(found) == ENTRIES - damaged - 1
