"""Reading ahead gives the bytes that a plain read gives, whatever order the disk answers in."""

from __future__ import annotations

import errno
import random

import pytest
import trio
import trio.testing

from bookie.storage.journal import reader
from bookie.storage.journal.reader import ReadAhead, reading_ahead
from tests.bookie.storage.memory_disk import MemoryDisk, MemoryFile

PIECE_BYTES = 50


class SlowFile(MemoryFile):
    """Reads take from none to a few turns, so that later ones may end first."""

    reads = 0

    async def read(self, offset: int, size: int, *, drops_cache: bool = False) -> bytes:
        self.reads += 1
        for _ in range(self.disk.rng.randint(0, 12)):
            await trio.lowlevel.checkpoint()
        if (error := self.disk.errors.get(f"read {offset}")) is not None:
            raise error
        return bytes(self.inode.data[offset : offset + size])


async def file_of(data: bytes, seed: int) -> SlowFile:
    disk = MemoryDisk(rng=random.Random(seed))
    file = await disk.open("f", is_new=True)
    await file.write_at(0, [data])
    return SlowFile(disk, file.inode)


@pytest.mark.parametrize("seed", range(300))
async def test_any_reads_that_go_forward_give_their_bytes(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PIECE_BYTES", PIECE_BYTES)
    rng = random.Random(seed)
    data = rng.randbytes(rng.randint(0, 1000))
    file = await file_of(data, seed)
    async with reading_ahead() as nursery:
        ahead = ReadAhead(file, nursery if rng.random() < 0.9 else None)
        offset = 0
        while offset < len(data):
            size = rng.choice([1, 10, PIECE_BYTES, PIECE_BYTES, 3 * PIECE_BYTES])
            found = await ahead.read(offset, size)
            assert found == data[offset : offset + len(found)]
            assert len(found) >= min(size, len(data) - offset)
            # On, behind what was given, back to a group that was cut, or far away.
            offset += rng.choice([len(found), len(found) // 2 + 1, len(found) + 200])


async def test_while_a_piece_is_used_the_next_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "PIECE_BYTES", PIECE_BYTES)
    file = await file_of(bytes(500), 1)
    async with reading_ahead() as nursery:
        ahead = ReadAhead(file, nursery)
        await ahead.read(0, PIECE_BYTES)
        await trio.testing.wait_all_tasks_blocked()
        assert file.reads == 2
        await ahead.read(PIECE_BYTES, PIECE_BYTES)
        await trio.testing.wait_all_tasks_blocked()
        assert file.reads == 3  # the second read found its bytes there


async def test_an_error_of_a_piece_is_reported_to_who_asks_for_it_and_comes_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader, "PIECE_BYTES", PIECE_BYTES)
    file = await file_of(bytes(500), 1)
    file.disk.errors["read 50"] = OSError(errno.EIO, "the disk is gone")

    async def both() -> None:
        async with reading_ahead() as nursery:
            ahead = ReadAhead(file, nursery)
            assert len(await ahead.read(0, PIECE_BYTES)) == PIECE_BYTES
            await trio.testing.wait_all_tasks_blocked()
            await ahead.read(PIECE_BYTES, PIECE_BYTES)

    with pytest.raises(OSError, match="the disk is gone"):
        await both()


async def test_a_piece_that_nobody_asks_for_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "PIECE_BYTES", PIECE_BYTES)
    file = await file_of(bytes(500), 1)
    file.disk.errors["read 50"] = OSError(errno.EIO, "the disk is gone")
    async with reading_ahead() as nursery:
        ahead = ReadAhead(file, nursery)
        await ahead.read(0, PIECE_BYTES)
        assert len(await ahead.read(200, PIECE_BYTES)) >= PIECE_BYTES


@pytest.mark.parametrize("turns", range(4))
async def test_nothing_is_read_of_a_file_that_was_closed(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PIECE_BYTES", PIECE_BYTES)
    file = await file_of(bytes(1000), turns)
    async with reading_ahead() as nursery:
        ahead = ReadAhead(file, nursery)
        await ahead.read(0, PIECE_BYTES)
        for _ in range(turns):  # the next range is not begun, or in flight
            await trio.lowlevel.checkpoint()
        ahead.close()
        reads = file.reads
        await trio.testing.wait_all_tasks_blocked()
        assert file.reads == reads
