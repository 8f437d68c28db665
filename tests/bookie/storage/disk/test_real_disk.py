"""The real disk keeps the promises of the disk door, above all: a failed write is reported."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from bookie.core.journal import JournalFailed
from bookie.storage.disk.disk import Disk, File
from bookie.storage.disk.real_disk import RealDisk
from bookie.storage.journal.journal import Journal
from tests.bookie.storage.journal.test_journal import replayed

pytestmark = pytest.mark.system

with_and_without_thread = pytest.mark.parametrize("has_own_thread", [False, True])


@with_and_without_thread
async def test_what_is_written_is_read(tmp_path: Path, has_own_thread: bool) -> None:
    disk: Disk = RealDisk()
    file: File = await disk.open(f"{tmp_path}/file", is_new=True, has_own_thread=has_own_thread)
    assert file.size == 0
    await file.write_at(3, [b"abc", memoryview(b"defg"), bytearray(b"h"), b""])
    await file.write_at_synced(11, [b"IJ"])
    await file.sync()
    assert file.size == 13
    assert await file.read(0, 100) == b"\0\0\0abcdefghIJ"
    assert await file.read(5, 4) == b"cdef"
    assert await file.read(13, 4) == b""
    await file.truncate(5)
    assert (file.size, await file.read(0, 9)) == (5, b"\0\0\0ab")
    await file.allocate(100_000)
    assert file.size == 100_000
    assert await file.read(99_990, 20) == bytes(10)
    await file.allocate(10)
    assert file.size == 100_000
    file.close()
    assert len(await disk.read_file(f"{tmp_path}/file")) == 100_000


@pytest.mark.parametrize("size", [1, 40, 5000])
@pytest.mark.parametrize("count", [1, 1023, 1024, 1025, 2500])
async def test_any_number_of_views_is_written(tmp_path: Path, count: int, size: int) -> None:
    file = await RealDisk().open(f"{tmp_path}/file", is_new=True)
    pool = random.Random(count).randbytes(size + 256)
    views = [pool[n % 256 : n % 256 + size] for n in range(count)]
    await file.write_at_synced(7, views)
    assert await file.read(7, count * size + 1) == b"".join(views)
    file.close()


async def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may take any part; here it never takes more than 700 bytes."""
    whole = os.pwritev

    def part(fd: int, views: list[memoryview], offset: int, flags: int = 0) -> int:
        data = b"".join(views)[:700]
        return whole(fd, [data], offset, flags)

    monkeypatch.setattr(os, "pwritev", part)
    file = await RealDisk().open(f"{tmp_path}/file", is_new=True)
    views = [bytes([n]) * 2500 for n in range(9)]
    await file.write_at_synced(0, views)
    assert await file.read(0, 30_000) == b"".join(views)
    file.close()


@with_and_without_thread
async def test_full_disk_is_reported(has_own_thread: bool) -> None:
    file = await RealDisk().open("/dev/full", has_own_thread=has_own_thread)
    for write in (file.write_at, file.write_at_synced):
        with pytest.raises(OSError) as caught:
            await write(0, [b"x" * 5000])
        assert caught.value.errno == errno.ENOSPC
    file.close()


@with_and_without_thread
async def test_write_that_the_system_cuts_short_is_reported(
    tmp_path: Path, has_own_thread: bool
) -> None:
    """The first 10,000 bytes go in, then the limit is hit: not a success of 10,000 bytes."""
    file = await RealDisk().open(f"{tmp_path}/f", is_new=True, has_own_thread=has_own_thread)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(OSError) as caught:
            await file.write_at_synced(0, [b"x" * 8000, b"y" * 8000])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    file.close()


async def test_journal_on_a_real_disk_that_fails_stops(tmp_path: Path) -> None:
    journal = Journal(RealDisk(), f"{tmp_path}/j", rng=random.Random(1), file_bytes_max=1 << 16)
    assert await replayed(journal) == []
    durable: list[int] = []
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.RaisesGroup(pytest.RaisesExc(JournalFailed, match="File too large")):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(journal.run)
                first = trio.Event()
                journal.queue(b"x" * 100, on_durable=first.set)
                await first.wait()
                resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
                journal.queue(b"y" * 20_000, on_durable=lambda: durable.append(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert durable == []
    again = Journal(RealDisk(), f"{tmp_path}/j", rng=random.Random(2), file_bytes_max=1 << 16)
    assert await replayed(again) == [b"x" * 100]


async def test_read_nowait_gives_what_is_cached_and_stops_at_the_end(tmp_path: Path) -> None:
    file = await RealDisk().open(f"{tmp_path}/file", is_new=True)
    await file.write_at(0, [b"0123456789" * 1000])
    assert file.read_nowait(9_990, 100) in (b"0123456789", None)
    assert file.read_nowait(10, 5) in (b"01234", None)
    assert file.read_nowait(20_000, 5) == b""
    file.close()


async def test_read_nowait_that_would_wait_gives_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = await RealDisk().open(f"{tmp_path}/file", is_new=True)
    await file.write_at(0, [b"0123456789"])
    answers: list[int | OSError] = [
        BlockingIOError(errno.EAGAIN, "would wait"),
        4,  # only a part is cached
        10,
        OSError(errno.EOPNOTSUPP, "not here"),
    ]

    def preadv(fd: int, views: list[bytearray], offset: int, flags: int) -> int:
        assert flags == os.RWF_NOWAIT
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(os, "preadv", preadv)
    results = [file.read_nowait(0, 10) for _ in range(5)]  # the fifth does not even ask
    assert results == [None, None, bytes(10), None, None]
    assert answers == []
    file.close()


async def test_cancelling_waits_for_the_outcome_of_a_write(tmp_path: Path) -> None:
    disk = RealDisk()
    file = await disk.open(f"{tmp_path}/file", is_new=True, has_own_thread=True)
    with trio.CancelScope() as scope:
        scope.cancel()
        await file.write_at_synced(0, [b"x" * 100_000])
        size = file.size
    file.close()
    assert size == len(await disk.read_file(f"{tmp_path}/file")) == 100_000


@with_and_without_thread
async def test_close_lets_calls_under_way_finish(tmp_path: Path, has_own_thread: bool) -> None:
    file = await RealDisk().open(f"{tmp_path}/f", is_new=True, has_own_thread=has_own_thread)
    threads = threading.active_count()
    async with trio.open_nursery() as nursery:
        for place in range(5):
            nursery.start_soon(file.write_at, place * 1_000_000, [b"x" * 1_000_000])
        await trio.testing.wait_all_tasks_blocked()
        file.close()
        with pytest.raises(OSError, match="closed"):
            await file.read(0, 1)
        with pytest.raises(OSError, match="closed"):
            file.read_nowait(0, 1)
    assert (tmp_path / "f").read_bytes() == b"x" * 5_000_000
    file.close()
    while has_own_thread and any(t.name == "journal f" for t in threading.enumerate()):
        await trio.lowlevel.checkpoint()
    assert threading.active_count() <= threads + 5


async def test_open_says_what_is_wrong(tmp_path: Path) -> None:
    disk = RealDisk()
    with pytest.raises(FileNotFoundError):
        await disk.open(f"{tmp_path}/none")
    (await disk.open(f"{tmp_path}/one", is_new=True)).close()
    with pytest.raises(FileExistsError):
        await disk.open(f"{tmp_path}/one", is_new=True)
    with pytest.raises(FileNotFoundError):
        await disk.read_file(f"{tmp_path}/none")


async def test_names_and_directories(tmp_path: Path) -> None:
    disk = RealDisk()
    root = f"{tmp_path}/a/b/c"
    assert await disk.list_directory(root) == []
    await disk.make_directory(root)
    await disk.make_directory(root)
    await disk.replace_file(f"{root}/two", b"old")
    await disk.replace_file(f"{root}/two", b"new")
    await disk.replace_file(f"{root}/one", b"1")
    assert await disk.list_directory(root) == ["one", "two"]
    assert await disk.read_file(f"{root}/two") == b"new"
    await disk.rename(f"{root}/two", f"{root}/one")
    await disk.sync_directory(root)
    assert await disk.read_file(f"{root}/one") == b"new"
    await disk.remove(f"{root}/one")
    assert await disk.list_directory(root) == []
    total, free = await disk.space(root)
    assert total >= free >= 0
    (tmp_path / "plain").write_bytes(b"")
    with pytest.raises(FileExistsError):
        await disk.make_directory(f"{tmp_path}/plain")


async def test_a_directory_that_is_there_is_made_durable_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who made it may have been killed before its name was synced."""
    made = f"{tmp_path}/made"
    os.mkdir(made)
    synced: list[int] = []
    fsync = os.fsync

    def counted(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", counted)
    await RealDisk().make_directory(made)
    assert synced == [os.stat(tmp_path).st_ino]
    synced.clear()
    await RealDisk().make_directory(f"{made}/below")
    assert synced == [os.stat(tmp_path).st_ino, os.stat(made).st_ino]


async def test_lock_is_for_one_process(tmp_path: Path) -> None:
    path = f"{tmp_path}/lock"
    disk = RealDisk()
    await disk.lock(path)
    with pytest.raises(BlockingIOError):
        await RealDisk().lock(path)
    other = (
        "import sys, trio; from bookie.storage.disk.real_disk import RealDisk\n"
        "trio.run(RealDisk().lock, sys.argv[1])"
    )

    async def run_other() -> subprocess.CompletedProcess[bytes]:
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
        return await trio.run_process(
            [sys.executable, "-c", other, path], check=False, capture_stderr=True, env=env
        )

    assert b"BlockingIOError" in (await run_other()).stderr
    disk.close()
    assert (await run_other()).returncode == 0


async def test_reads_around_the_page_cache_give_the_same_bytes(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(3_000_001)
    disk = RealDisk()
    file = await disk.open(str(tmp_path / "f"), is_new=True)
    await file.write_at(0, [data])  # not synced: a direct read must see it all the same
    for offset, size in [
        (0, 65_536), (1, 65_536), (4095, 100_002), (12_345, 1 << 20), (0, 3_000_001),
        (2_900_000, 200_000), (3_000_001, 65_536), (2_999_999, 65_536),
    ]:  # fmt: skip
        assert await file.read(offset, size, drops_cache=True) == data[offset : offset + size]
    await file.write_at(3_000_001, [b"more"])
    await file.sync(drops_cache=True)
    assert await file.read(2_950_000, 65_536, drops_cache=True) == (data + b"more")[2_950_000:]
    file.close()
    disk.close()


def _refuse_direct_open(monkeypatch: pytest.MonkeyPatch) -> None:
    really_open = os.open

    def refuse(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct writes here", path)
        return really_open(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)


def _refuse_direct_write(monkeypatch: pytest.MonkeyPatch) -> None:
    really_write = os.pwritev

    def refuse(fd: int, views: Sequence[memoryview], offset: int, flags: int = 0) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "the blocks are larger here")
        return really_write(fd, views, offset, flags)

    monkeypatch.setattr(os, "pwritev", refuse)


def _write_little(monkeypatch: pytest.MonkeyPatch) -> None:
    really_write = os.pwritev

    def little(fd: int, views: Sequence[memoryview], offset: int, flags: int = 0) -> int:
        return really_write(fd, [memoryview(views[0])[: 3 * 4096 + 5]], offset, flags)

    monkeypatch.setattr(os, "pwritev", little)


@pytest.mark.parametrize("hinder", [None, _refuse_direct_open, _refuse_direct_write, _write_little])
@with_and_without_thread
async def test_writes_around_the_page_cache_write_the_same_bytes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    hinder: Callable[[pytest.MonkeyPatch], None] | None,
    has_own_thread: bool,
) -> None:
    if hinder is not None:
        hinder(monkeypatch)
    rng = random.Random(7)
    disk = RealDisk()
    path = f"{tmp_path}/f"
    file = await disk.open(path, is_new=True, has_own_thread=has_own_thread)
    expected = bytearray()
    for size in (100, 65_536, 4096, 70_001, 4096 * 40 - 100, 1, 5_000_000, 200_000, 66_000):
        data = rng.randbytes(size)
        cuts = sorted(rng.randrange(size + 1) for _ in range(rng.choice((0, 3, 200))))
        views = [
            memoryview(data)[begin:end]
            for begin, end in zip([0, *cuts], [*cuts, size], strict=True)
        ]
        if rng.random() < 0.3:
            await file.write_at_synced(len(expected), views)
        else:
            await file.write_at(len(expected), views, drops_cache=True)
        expected += data
        # What is read through the cache stays the same as what was written around it.
        at = rng.randrange(len(expected))
        assert await file.read(at, 9000) == expected[at : at + 9000]
    await file.write_at_synced(4096 * 3, [expected[:4096], expected[4096 : 4096 * 33]])
    expected[4096 * 3 : 4096 * 36] = expected[: 4096 * 33]
    assert file.size == len(expected)
    file.close()
    assert await disk.read_file(path) == expected


async def test_a_file_whose_name_another_has_is_written_all_the_same(tmp_path: Path) -> None:
    disk = RealDisk()
    file = await disk.open(f"{tmp_path}/f", is_new=True)
    await disk.rename(f"{tmp_path}/f", f"{tmp_path}/g")
    (tmp_path / "f").write_bytes(b"another")
    data = random.Random(1).randbytes(100_000)
    await file.write_at(0, [data], drops_cache=True)
    file.close()
    assert (tmp_path / "g").read_bytes() == data
    assert (tmp_path / "f").read_bytes() == b"another"


async def test_a_large_synced_write_is_synced_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many pieces it is written in: each sync may cost a round to the disk's own medium."""
    disk = RealDisk()
    file = await disk.open(f"{tmp_path}/f", is_new=True)
    await file.write_at_synced(0, [b"x"])
    calls: list[str] = []
    really_sync, really_write = os.fdatasync, os.pwritev

    def sync(fd: int) -> None:
        calls.append("sync")
        really_sync(fd)

    def write(fd: int, views: Sequence[memoryview], offset: int, flags: int = 0) -> int:
        calls.append("synced write" if flags else "write")
        return really_write(fd, views, offset, flags)

    monkeypatch.setattr(os, "fdatasync", sync)
    monkeypatch.setattr(os, "pwritev", write)
    await file.write_at_synced(1, [bytes(200_000)])
    assert [call for call in calls if "sync" in call] == ["sync"]
    assert calls[-1] == "sync"
    calls.clear()
    await file.write_at_synced(4096 * 3, [bytes(4096), bytes(4096 * 40)])  # as journals do
    assert calls == ["synced write"]
    file.close()
    disk.close()
