"""What the page cache keeps of files, and reads around it, on a real disk."""

from __future__ import annotations

import os
import random
from itertools import accumulate
from pathlib import Path

import pytest

from bookie.storage.disk.real_disk import RealDisk


async def test_a_sync_drops_only_what_was_written_since_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What readers behind the end of an entry log have brought into memory stays there."""
    dropped: list[int] = []

    def advise(fd: int, offset: int, size: int, advice: int) -> None:
        assert (size, advice) == (0, os.POSIX_FADV_DONTNEED)
        dropped.append(offset)

    disk = RealDisk()
    file = await disk.open(f"{tmp_path}/f", is_new=True)
    monkeypatch.setattr(os, "posix_fadvise", advise)
    for size in (5000, 100_000, 300_000):
        await file.write_at(file.size, [bytes(size)], drops_cache=True)
        await file.sync(drops_cache=True)
    assert dropped == [0, 4096, 102_400], "whole pages"
    await file.sync(drops_cache=True)
    file.write_now(200_000, b"x")
    await file.write_at_synced(250_000, [b"x"])
    await file.sync(drops_cache=False)
    await file.sync(drops_cache=True)
    assert dropped[3:] == [405_000 // 4096 * 4096, 200_000 // 4096 * 4096]
    file.close()
    disk.close()


@pytest.mark.parametrize("drops_cache", [False, True])
async def test_parts_are_what_single_reads_return_also_at_the_end_of_the_file(
    tmp_path: Path, drops_cache: bool
) -> None:
    disk, rng = RealDisk(), random.Random(1)
    file = await disk.open(f"{tmp_path}/f", is_new=True)
    data = rng.randbytes(300_000)
    await file.write_at(0, [data])
    for sizes in ([10, 20], [100_000, 50, 70_000], [4096] * 40, [200_000, 200_000, 5], [300_001]):
        for offset in (0, 4000, 100_001, 299_999, 300_000, 400_000):
            parts = await file.read_parts(offset, sizes, drops_cache=drops_cache)
            ends = [offset + end for end in accumulate(sizes)]
            expected = [data[end - size : end] for end, size in zip(ends, sizes, strict=True)]
            assert parts == expected
    file.close()
    disk.close()
