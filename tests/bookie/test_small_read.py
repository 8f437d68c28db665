"""A small read brings what lies around it into the page cache, a large one only itself."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from bookie.storage.real_disk import RealDisk
from bookie.storage.small_read import AROUND_BYTES

pytestmark = pytest.mark.system

KIB = 1024


@pytest.mark.parametrize(
    ("offset", "size", "around"),
    [
        (70_000, 100, (64 * KIB, 32 * KIB)),
        (64 * KIB, 32 * KIB - 1, (64 * KIB, 32 * KIB)),
        (64 * KIB - 6, 10, (32 * KIB, 64 * KIB)),
        (96 * KIB - 9, 9, (64 * KIB, 32 * KIB)),
        (1_000_000 - 5, 9, (960 * KIB, 32 * KIB)),
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
    """Aligned 32 KiB, or twice as much for one that lies across. The system is asked for them
    rather than looked at: what else it keeps in memory is its own affair."""
    data = random.Random(offset).randbytes(1_000_000)
    (tmp_path / "file").write_bytes(data)
    assert AROUND_BYTES == 32 * KIB
    advised: list[tuple[int, int]] = []
    really = os.posix_fadvise

    def advise(fd: int, begin: int, nbytes: int, advice: int) -> None:
        if advice == os.POSIX_FADV_WILLNEED:
            advised.append((begin, nbytes))
        really(fd, begin, nbytes, advice)

    monkeypatch.setattr(os, "posix_fadvise", advise)
    file = await RealDisk().open(f"{tmp_path}/file")
    for drops_cache in (True, False):
        read = await file.read(offset, size, drops_cache=drops_cache)
        assert read == data[offset : offset + size]
    assert set(advised) == ({around} if around is not None else set())
    file.close()
