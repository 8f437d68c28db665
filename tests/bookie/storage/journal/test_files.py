"""Which files of a journal are kept, recycled, removed; and what the kept ones are good for."""

from __future__ import annotations

import errno
from functools import partial

import pytest
import trio
import trio.testing

from bookie.core.journal import BEGINNING, BLOCK_BYTES, JournalCorrupt, Mark
from bookie.core.journal_scan import scan
from tests.bookie.storage.journal.test_journal import (
    FILE_BYTES,
    commit,
    frame,
    journal_on,
    replayed,
    running,
)
from tests.bookie.storage.memory_disk import MemoryDisk

GROUPS_PER_FILE = 4


async def written(disk: MemoryDisk, files: int, *, backups_max: int = 0) -> Mark:
    """Writes this number of full files, all checkpointed but the last."""
    journal = journal_on(disk, backups_max=backups_max)
    await replayed(journal)
    async with running(journal):
        for number in range(files * GROUPS_PER_FILE):
            await commit(journal, frame(number))
        await journal.trim_before(journal.mark)
    return journal.mark


def kept(disk: MemoryDisk) -> list[int]:
    names = (name.removeprefix("journal/") for name in disk.names)
    return sorted(int(name[:16], 16) for name in names if name.endswith(".journal"))


@pytest.mark.parametrize("backups_max", [0, 1, 3])
async def test_the_newest_released_files_are_kept_as_they_were(backups_max: int) -> None:
    disk = MemoryDisk()
    mark = await written(disk, 6, backups_max=backups_max)
    journal = journal_on(disk, backups_max=backups_max, files_recycled=0)
    assert await replayed(journal, mark) == []
    assert kept(disk) == list(range(6 - backups_max, 7))
    for file_id in range(
        6 - backups_max, 6
    ):  # complete, for an operator who inspects what was written
        data = bytes(disk.names[f"journal/{file_id:016x}.journal"].data)
        first = (file_id - 1) * GROUPS_PER_FILE
        assert [bytes(g.payload) for g in scan(file_id, data)] == [
            frame(n) for n in range(first, first + GROUPS_PER_FILE)
        ]


async def test_kept_files_beyond_the_bound_are_written_again() -> None:
    disk = MemoryDisk()
    await written(disk, 12, backups_max=2)
    assert len(disk.names) <= 2 + 1 + 2 + 1  # backups, current, recycled, spare
    assert kept(disk)[-3:] == [10, 11, 12]


async def test_fewer_backups_than_before_frees_the_oldest_at_the_start() -> None:
    disk = MemoryDisk()
    mark = await written(disk, 6, backups_max=3)
    journal = journal_on(disk, backups_max=1, files_recycled=0)
    await replayed(journal, mark)
    assert kept(disk) == [5, 6]


async def test_damage_in_a_kept_file_harms_nothing() -> None:
    disk = MemoryDisk()
    mark = await written(disk, 4, backups_max=2)
    disk.names[f"journal/{2:016x}.journal"].data[:] = b"?" * BLOCK_BYTES
    assert await replayed(journal_on(disk, backups_max=2), mark) == []


@pytest.mark.parametrize("victim", [3, 4, 5])
async def test_damage_after_the_mark_is_refused_though_backups_are_there(victim: int) -> None:
    disk = MemoryDisk()
    journal = journal_on(disk, backups_max=2)
    await replayed(journal)
    async with running(journal):
        for number in range(6 * GROUPS_PER_FILE):
            await commit(journal, frame(number))
            if number == 3 * GROUPS_PER_FILE - 3:
                mark = journal.mark  # in file 3
                await journal.trim_before(mark)
    assert kept(disk) == [1, 2, 3, 4, 5, 6]
    data = disk.names[f"journal/{victim:016x}.journal"].data
    data[3 * BLOCK_BYTES + 50] ^= 4
    before = {name: bytes(inode.data) for name, inode in disk.names.items()}
    with pytest.raises(JournalCorrupt, match=r"Cure: .*Nothing was changed") as caught:
        await replayed(journal_on(disk, backups_max=2), mark)
    assert caught.value.file.endswith(f"{victim:016x}.journal")
    assert {name: bytes(inode.data) for name, inode in disk.names.items()} == before


async def test_backups_are_no_substitute_for_a_lost_mark() -> None:
    disk = MemoryDisk()
    await written(disk, 6, backups_max=2)
    with pytest.raises(JournalCorrupt, match="missing"):
        await replayed(journal_on(disk, backups_max=2), BEGINNING)


async def _without_room(
    disk: MemoryDisk, operation: str, autojump_clock: trio.testing.MockClock, size: int = 50
) -> list[int]:
    """A journal that finds no room for its second file for a minute; what it acknowledged."""
    journal = journal_on(disk, files_recycled=1)
    await replayed(journal)
    durable: list[int] = []
    async with running(journal):
        for number in range(GROUPS_PER_FILE):
            await commit(journal, frame(number))
        disk.names = {n: i for n, i in disk.names.items() if "spare" not in n}
        journal._files._free.clear()
        disk.errors[operation] = OSError(errno.ENOSPC, "No space left on device")
        for number in range(GROUPS_PER_FILE, GROUPS_PER_FILE + 3):
            journal.queue(
                frame(number, size), on_durable=partial(durable.append, number), is_urgent=False
            )
            journal.kick()
        await trio.sleep(60)
        assert (durable, journal.failure) == ([], None)
        spares = [name for name in disk.names if "spare" in name]
        assert len(spares) == (operation == "rename"), "half a file takes room, too"
        disk.errors.clear()
        await commit(journal, frame(99))
    return durable


@pytest.mark.parametrize("operation", ["open", "allocate", "rename", "write_at_synced"])
@pytest.mark.parametrize("size", [50, 3 * FILE_BYTES])
async def test_a_journal_without_room_for_its_next_file_waits_and_goes_on(
    operation: str, size: int, autojump_clock: trio.testing.MockClock
) -> None:
    disk = MemoryDisk()
    assert await _without_room(disk, operation, autojump_clock, size) == [4, 5, 6]
    again = await replayed(journal_on(disk.after_crash()))
    assert b"".join(again) == b"".join(
        [frame(n) for n in range(4)] + [frame(n, size) for n in range(4, 7)] + [frame(99)]
    )


async def test_a_file_that_a_checkpoint_lets_go_of_ends_the_wait(
    autojump_clock: trio.testing.MockClock,
) -> None:
    disk = MemoryDisk()
    journal = journal_on(disk, files_recycled=1)
    await replayed(journal)
    async with running(journal):
        for number in range(2 * GROUPS_PER_FILE):
            await commit(journal, frame(number))
        disk.names = {n: i for n, i in disk.names.items() if "spare" not in n}
        journal._files._free.clear()
        disk.errors["allocate"] = OSError(errno.ENOSPC, "No space left on device")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit, journal, frame(8))
            await trio.sleep(10)
            assert journal.queued_bytes > 0
            await journal.trim_before(journal.mark)
    assert journal.mark.file_id == 3
