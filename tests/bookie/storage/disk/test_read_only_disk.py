"""Tools that change nothing need no right to write, and leave nothing behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from bookie.cli.inspect import entry_log_lines, journal_lines
from bookie.config import BookieConfig
from bookie.core.integrity import CheckReport
from bookie.startup.cookies import LOCK_FILE
from bookie.startup.offline import BookieRuns, DirectoryMissing, stopped_bookie
from bookie.storage.check.bookie import check_bookie
from bookie.storage.disk.read_only_disk import ReadOnlyDisk
from bookie.storage.disk.real_disk import RealDisk
from bookie.storage.index.rocksdb import RocksStores
from ledger.errors import BookieIoError, InvalidArgument
from tests.bookie.storage.garbage.test_compactor import OPTIONS
from tests.bookie.storage.index.test_damage import StorageOnDisk

WRITING = os.O_RDWR | os.O_WRONLY | os.O_CREAT


def _config(directory: Path) -> BookieConfig:
    return BookieConfig(
        metadata_uri="memory:",
        journal_directories=(f"{directory}/journal",),
        ledger_directories=(f"{directory}/ledgers",),
    )


def _mount_read_only(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """As root may write anything that is not mounted so, and mounting needs root."""
    whole = os.open

    def opened(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & WRITING and str(path).startswith(str(directory)):
            raise OSError(errno.EROFS, "Read-only file system", path)
        return whole(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", opened)


async def _stopped(directory: Path) -> None:
    simulated = StorageOnDisk(directory, OPTIONS)
    async with simulated.running():
        simulated.add(1, 0, b"x" * 100)
        await simulated.settle()
        await simulated.storage.checkpoint()
    for part in ("journal", "ledgers"):
        (directory / part / LOCK_FILE).touch()


def _names(directory: Path) -> list[str]:
    return sorted(str(path) for path in directory.rglob("*"))


def _written(directory: Path) -> dict[str, int]:
    return {name: os.stat(name).st_mtime_ns for name in _names(directory)}


async def test_what_cannot_be_written_can_be_checked_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _stopped(tmp_path)
    before = _written(tmp_path)
    [log] = (tmp_path / "ledgers").glob("*.log")
    journal = next((tmp_path / "journal").glob("*.journal"))
    report = CheckReport()
    with monkeypatch.context() as mounted:
        _mount_read_only(mounted, tmp_path)
        disk = ReadOnlyDisk()
        config = _config(tmp_path)
        async with stopped_bookie(config, disk):
            await check_bookie(
                disk,
                config.journal_directories,
                config.ledger_directories,
                RocksStores(disk).open_to_read,
                report,
            )
        logs = [line["kind"] async for line in entry_log_lines(ReadOnlyDisk(), str(log))]
        journals = [line["kind"] async for line in journal_lines(ReadOnlyDisk(), str(journal))]
    assert report.is_clean, report.findings
    assert (report.entries, logs) == (1, ["record", "end"])
    assert "add" in journals
    assert _written(tmp_path) == before


async def test_it_takes_locks_that_a_bookie_respects(tmp_path: Path) -> None:
    await _stopped(tmp_path)
    path = f"{tmp_path}/ledgers/{LOCK_FILE}"
    running = RealDisk()
    await running.lock(path)
    with pytest.raises(BookieRuns, match="Cure: stop the bookie first"):
        async with stopped_bookie(_config(tmp_path), ReadOnlyDisk()):
            pass
    running.close()
    async with (
        stopped_bookie(_config(tmp_path), ReadOnlyDisk()),
        stopped_bookie(_config(tmp_path), ReadOnlyDisk()),
    ):
        with pytest.raises(BlockingIOError):
            await running.lock(path)
    await running.lock(path)
    running.close()


async def test_an_empty_mount_point_stays_empty(tmp_path: Path) -> None:
    for part in ("journal", "ledgers"):
        (tmp_path / part).mkdir()
    async with stopped_bookie(_config(tmp_path), ReadOnlyDisk()):
        pass
    assert [Path(name).name for name in _names(tmp_path)] == ["journal", "ledgers"]
    (tmp_path / "ledgers").rmdir()
    with pytest.raises(DirectoryMissing, match="a disk is not mounted"):
        async with stopped_bookie(_config(tmp_path), ReadOnlyDisk()):
            pass


async def test_an_index_seen_through_links_is_named_as_people_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, stores = f"{tmp_path}/index", RocksStores(ReadOnlyDisk())
    store = stores.open(path)
    store.write([(b"a", b"b")])
    await store.flush()
    store.close()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", f"{tmp_path}/temporary")
    seen = stores.open_to_read(path)
    assert seen.get(b"a") == b"b"
    seen.close()
    [table] = (tmp_path / "index").glob("*.sst")
    table.write_bytes(b"")
    with pytest.raises(BookieIoError, match="index/") as reported:
        stores.open_to_read(path).get(b"a")
    assert "temporary" not in str(reported.value)
    assert os.listdir(tmp_path / "temporary") == []
    monkeypatch.setattr("tempfile.tempdir", f"{tmp_path}/none")
    with pytest.raises(BookieIoError, match="TMPDIR"):
        stores.open_to_read(path)


async def test_nothing_can_be_changed_through_it(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"whole")
    disk, path = ReadOnlyDisk(), f"{tmp_path}/a"
    for change in (
        lambda: disk.open(f"{path}b", is_new=True),
        lambda: disk.replace_file(path, b""),
        lambda: disk.rename(path, f"{path}b"),
        lambda: disk.remove(path),
    ):
        with pytest.raises(OSError, match="Read-only file system"):
            await change()
    file = await disk.open(path)
    with pytest.raises(OSError, match="Bad file descriptor"):
        await file.write_at(0, [b"x"])
    file.close()
    await disk.make_directory(f"{tmp_path}/b")
    assert _names(tmp_path) == [path]
    assert (tmp_path / "a").read_bytes() == b"whole"


@pytest.mark.parametrize("name", ["0000000000000zzz.log", "1.log", "000000000000000A.log", "x"])
async def test_what_is_no_entry_log_by_its_name_is_said_to_be_none(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(InvalidArgument, match="is no entry log"):
        async for _ in entry_log_lines(ReadOnlyDisk(), f"{tmp_path}/{name}"):
            pass
