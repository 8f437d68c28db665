"""A small read brings what lies around it into the page cache, a large one only itself."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from bookie.storage.disk.reads import AROUND_BYTES
from bookie.storage.disk.real_disk import RealDisk

pytestmark = pytest.mark.system

KIB = 1024


@pytest.mark.parametrize(
    ("offset", "size", "around"),
    [
        (70_000, 100, (64 * KIB, 32 * KIB)),
        (64 * KIB, 32 * KIB - 1, (64 * KIB, 32 * KIB)),
        (64 * KIB - 6, 10, (32 * KIB, 64 * KIB)),
        (96 * KIB - 9, 9, (64 * KIB, 32 * KIB)),
        (1_000_000 - 9, 9, (960 * KIB, 32 * KIB)),
        (64 * KIB, 32 * KIB, None),
        (1, 300_000, None),
    ],
)
async def test_what_a_read_brings(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    offset: int,
    size: int,
    around: tuple[int, int] | None,
) -> None:
    """Aligned 32 KiB, or twice as much for one that lies across, in one call. The system is asked
    for them rather than looked at: what else it keeps in memory is its own affair."""
    data = random.Random(offset).randbytes(1_000_000)
    (tmp_path / "file").write_bytes(data)
    assert AROUND_BYTES == 32 * KIB
    asked: list[tuple[int, int]] = []
    preadv, pread = os.preadv, os.pread

    def counted_preadv(fd: int, buffers: list[memoryview], begin: int, flags: int = 0) -> int:
        asked.append((begin, sum(map(len, buffers))))
        return preadv(fd, buffers, begin, flags)

    def counted_pread(fd: int, nbytes: int, begin: int) -> bytes:
        asked.append((begin, nbytes))
        return pread(fd, nbytes, begin)

    monkeypatch.setattr(os, "preadv", counted_preadv)
    monkeypatch.setattr(os, "pread", counted_pread)
    disk = RealDisk()
    file = await disk.open(f"{tmp_path}/file")
    for drops_cache in (False, True) if around else (False,):
        read = await file.read(offset, size, drops_cache=drops_cache)
        assert read == data[offset : offset + size]
    assert set(asked) == {around or (offset, size)}
    file.close()
    disk.close()


async def test_what_cannot_be_read_beside_it_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad sector within the same 32 KiB: each entry beside it is read by itself."""
    data = random.Random(1).randbytes(100_000)
    (tmp_path / "file").write_bytes(data)
    bad, pread = 40_000, os.pread

    def preadv(fd: int, buffers: list[memoryview], begin: int, flags: int = 0) -> int:
        raise OSError(errno.EIO, "Input/output error")

    def exact(fd: int, nbytes: int, begin: int) -> bytes:
        if begin <= bad < begin + nbytes:
            raise OSError(errno.EIO, "Input/output error")
        return pread(fd, nbytes, begin)

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(os, "pread", exact)
    disk = RealDisk()
    file = await disk.open(f"{tmp_path}/file")
    assert await file.read(bad - 100, 100) == data[bad - 100 : bad]
    assert await file.read(bad + 1, 200) == data[bad + 1 : bad + 201]
    with pytest.raises(OSError, match="Input/output error"):
        await file.read(bad - 100, 101)
    file.close()
    disk.close()


async def test_a_small_read_ends_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(range(100)))
    disk = RealDisk()
    file = await disk.open(f"{tmp_path}/file")
    assert await file.read(90, 20) == bytes(range(90, 100))
    assert await file.read(100, 20) == await file.read(5000, 20) == b""
    file.close()
    disk.close()
