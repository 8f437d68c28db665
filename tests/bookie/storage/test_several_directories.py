"""Several journals and ledger directories in one bookie: what each keeps, and for how long."""

from __future__ import annotations

import random
from functools import partial

import pytest
import trio
import trio.testing

from bookie.core.garbage import GarbageOptions
from bookie.core.journal import JournalCorrupt, Mark, file_name
from bookie.core.marks import decode_marks
from bookie.storage.options import StorageOptions
from bookie.testing.memory_key_value import MemoryKeyValue
from ledger.errors import BookieIoError, FinalError
from tests.bookie.storage.memory_disk import MemoryDisk
from tests.bookie.storage.simulated_storage import SimulatedStorage, numbered

COUNTS = [(1, 3), (3, 1), (2, 2), (2, 3), (3, 2)]
OPTIONS = StorageOptions(
    write_cache_bytes=120_000,
    read_cache_bytes=20_000,
    read_ahead_bytes=500,
    entry_log_bytes_max=20_000,
    checkpoint_interval_s=1000,
    garbage=GarbageOptions(asks_per_s_max=1e6, tombstones_max=0),
)


class SlowKeyValue(MemoryKeyValue):
    """A directory whose checkpoints can be held up, and whose writes are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.may_flush = trio.Event()
        self.may_flush.set()

    async def flush(self) -> None:
        await self.may_flush.wait()
        await super().flush()


def two_directories(disk: MemoryDisk | None = None) -> tuple[SimulatedStorage, SlowKeyValue]:
    """With one journal; the second directory may be slow."""
    slow = SlowKeyValue()
    pairs = {"ledgers/index": MemoryKeyValue(), "ledgers1/index": slow}
    return SimulatedStorage(disk, pairs, options=OPTIONS, directories=2), slow


def journal_files(disk: MemoryDisk) -> list[str]:
    return sorted(name for name in disk.names if name.endswith(".journal"))


def mark_of(disk: MemoryDisk, directory: str, journal: int = 0) -> Mark:
    return decode_marks(bytes(disk.names[f"{directory}/lastmark"].data)).marks[journal]


async def fill_files(simulated: SimulatedStorage, ledger_id: int, files: int) -> None:
    """Adds until this number of further journal files was begun."""
    journal = simulated.storage.journal_of(ledger_id)
    end = journal.mark.file_id + files
    while journal.mark.file_id < end:
        simulated.add(ledger_id, simulated.storage.last_entry_id(ledger_id) + 1, b"f" * 3000)
        while simulated.storage.is_full:
            await simulated.storage.wait_capacity()
        await simulated.settle()


async def test_a_journal_waits_for_the_directory_that_lags() -> None:
    """Apache's #3329: one directory's checkpoint let go of what another had in memory only."""
    simulated, slow = two_directories()
    async with simulated.running():
        simulated.add(1, 0, b"in the directory that lags")
        simulated.fence(3)
        await simulated.settle()
        slow.may_flush = trio.Event()
        for _ in range(3):
            await fill_files(simulated, 0, 2)
            await simulated.storage.directories[0].checkpoint()
        assert mark_of(simulated.disk, "ledgers").file_id > 5
        assert len(journal_files(simulated.disk)) >= 6
        disk = simulated.disk.after_crash()
        slow.may_flush.set()
        await simulated.storage.checkpoint()
        assert len(journal_files(simulated.disk)) == 2  # the one in use, and one to recycle
    pairs = {path: one.after_crash() for path, one in simulated.pairs.items()}
    successor = simulated.promised_by(SimulatedStorage(disk, pairs, options=OPTIONS, directories=2))
    async with successor.running():
        assert (1, 0) in successor.acked
        assert 3 in successor.fenced
        await successor.check()


async def test_a_directory_without_entries_does_not_hold_the_journal_back() -> None:
    simulated, slow = two_directories()
    async with simulated.running():
        await fill_files(simulated, 0, 3)
        await simulated.storage.directories[0].checkpoint()  # the other is asked to make one
        await trio.testing.wait_all_tasks_blocked()
        assert mark_of(simulated.disk, "ledgers1") == mark_of(simulated.disk, "ledgers")
        assert len(journal_files(simulated.disk)) == 2
        assert list(slow.items(b"", b"\xff")) == []  # moving a mark writes nothing else


async def test_an_idle_directory_moves_its_mark_when_the_interval_is_over(
    autojump_clock: trio.testing.MockClock,
) -> None:
    options = StorageOptions(checkpoint_interval_s=10)
    simulated = SimulatedStorage(options=options, journals=2, directories=3)
    async with simulated.running():
        simulated.add(0, 0)
        await simulated.settle()
        await trio.sleep(11)
        assert mark_of(simulated.disk, "ledgers2") == simulated.storage.journals[0].mark
        steps = simulated.disk.steps
        await trio.sleep(100)
        assert simulated.disk.steps == steps  # nothing moved, so nothing is written


@pytest.mark.parametrize("counts", COUNTS)
async def test_marks_never_go_back_whatever_checkpoints_overlap(
    counts: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache's #4740: a flush within a flush stored the older mark last."""
    journals, directories = counts
    simulated = SimulatedStorage(options=OPTIONS, journals=journals, directories=directories)
    stored: dict[tuple[str, int], list[Mark]] = {}
    whole = simulated.disk.replace_file

    async def replace_file(path: str, data: bytes) -> None:
        await whole(path, data)
        for journal, mark in decode_marks(data).marks.items():
            stored.setdefault((path, journal), []).append(mark)

    monkeypatch.setattr(simulated.disk, "replace_file", replace_file)
    rng = random.Random(3)
    async with simulated.running(), trio.open_nursery() as nursery:
        for i in range(300):
            simulated.add(rng.randrange(12), i, b"m" * rng.randrange(2000))
            if rng.random() < 0.3:
                await simulated.settle()
            if rng.random() < 0.2:
                nursery.start_soon(rng.choice(simulated.storage.directories).checkpoint)
                nursery.start_soon(simulated.storage.checkpoint)
            while simulated.storage.is_full:
                await simulated.storage.wait_capacity()
    assert len(stored) == len({(j % journals, j % directories) for j in range(36)})
    for marks in stored.values():
        assert marks == sorted(marks)
        assert len(set(marks)) > 3


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("cache_bytes", [4000, 1 << 20])
async def test_what_lies_in_several_journals_is_there_after_a_restart(
    counts: tuple[int, int], cache_bytes: int
) -> None:
    journals, directories = counts
    simulated = SimulatedStorage(
        options=StorageOptions(write_cache_bytes=1 << 20, checkpoint_interval_s=1000),
        journals=journals,
        directories=directories,
    )
    async with simulated.running():
        for i in range(240):
            simulated.add(i % 12, i // 12, b"%d" % i * 20, lac=i // 12 - 1)
        await simulated.settle()
        for ledger in range(12):
            simulated.fence(ledger)
            simulated.write_lac(ledger, 30)
        await simulated.settle()
        await simulated.storage.directories[0].checkpoint()
    simulated.options = StorageOptions(write_cache_bytes=cache_bytes * directories)
    successor = simulated.reopened()
    async with successor.running():
        assert len(successor.acked) == 240
        await successor.check()
        # 20 adds, a fence and a LAC of each ledger, but not of those in the first directory.
        ledgers = sum(ledger % directories != 0 for ledger in range(12))
        assert successor.storage.statistics().frames_replayed == ledgers * 22
        used = [one.statistics().checkpoints for one in successor.storage.directories]
        assert [one > 1 for one in used[1:]] == [cache_bytes == 4000] * (directories - 1)


async def test_a_forgotten_ledger_does_not_come_back_with_frames_kept_for_others() -> None:
    simulated, slow = two_directories()

    async def is_deleted(ledger_id: int) -> bool:
        await trio.lowlevel.checkpoint()
        return ledger_id == 0

    async with simulated.running():
        for ledger_id in (0, 1, 2):
            simulated.add(ledger_id, 0)
        await simulated.settle()
        slow.may_flush = trio.Event()
        await simulated.storage.directories[0].checkpoint()
        await simulated.storage.directories[0].garbage.collect(is_deleted)
        simulated.add(2, 1)
        await simulated.settle()
        await simulated.storage.directories[0].checkpoint()
        assert simulated.storage.state(0) is None
        slow.may_flush.set()
    simulated.disk.names.pop("ledgers1/lastmark", None)
    simulated.deleted[0] = None
    successor = simulated.reopened()
    async with successor.running():
        assert successor.storage.directories[1].statistics().frames_replayed == 1
        assert successor.storage.state(0) is None
        await successor.check()


@pytest.mark.parametrize("is_cut", [False, True])
async def test_a_journal_that_ends_before_any_directorys_mark_is_refused(is_cut: bool) -> None:
    """The least mark alone would not show it."""
    simulated, slow = two_directories()
    async with simulated.running():
        simulated.add(1, 0)
        await simulated.settle()
        await simulated.storage.checkpoint()
        slow.may_flush = trio.Event()
        await fill_files(simulated, 0, 1)
        await simulated.storage.directories[0].checkpoint()
        slow.may_flush.set()
    mark = mark_of(simulated.disk, "ledgers")
    assert mark_of(simulated.disk, "ledgers1") < mark
    path = f"journal/{file_name(mark.file_id)}"
    if is_cut:
        simulated.disk.names[path].data[4096:] = bytes(len(simulated.disk.names[path].data) - 4096)
    else:
        del simulated.disk.names[path]
    with pytest.raises(JournalCorrupt):
        await simulated.reopened().storage.start()


@pytest.mark.parametrize("kind", ["ledgers", "journal"])
async def test_disks_in_each_others_place_are_refused(kind: str) -> None:
    """All cookies of a bookie are alike, so they do not show it."""
    simulated = SimulatedStorage(options=OPTIONS, journals=2, directories=2)
    async with simulated.running():
        for ledger_id in range(4):
            simulated.add(ledger_id, 0)
        await simulated.settle()
        await simulated.storage.checkpoint()
        for ledger_id in range(4):
            simulated.add(ledger_id, 1)
        await simulated.settle()
    names = simulated.disk.names
    first, second = numbered(kind, 2)
    swapped = {f"{first}/": f"{second}/", f"{second}/": f"{first}/"}
    for name in list(names):
        for old, new in swapped.items():
            if name.startswith(old):
                swapped[name] = new + name.removeprefix(old)
                break
    simulated.disk.names = {swapped.get(name, name): inode for name, inode in names.items()}
    assert simulated.disk.names != names
    if kind == "ledgers":
        paths = [f"{path}/index" for path in (second, first)]
        simulated.pairs = dict(zip(paths, simulated.pairs.values(), strict=True))
    with pytest.raises((BookieIoError, JournalCorrupt), match="each other's place"):
        await simulated.reopened().storage.start()


@pytest.mark.parametrize("operation", ["write_at_synced", "write_at"])
async def test_a_failure_of_one_stops_all(operation: str) -> None:
    simulated = SimulatedStorage(options=OPTIONS, journals=2, directories=3)
    with pytest.RaisesGroup(pytest.RaisesExc(FinalError), flatten_subgroups=True):
        async with simulated.running():
            simulated.add(0, 0)
            await simulated.settle()
            simulated.disk.errors[operation] = OSError(5, "no disk")
            simulated.add(1, 0)
            simulated.storage.journals[1].kick()
            for directory in simulated.storage.directories:
                directory.cache.count(1 << 30)
            assert not simulated.storage.is_full
            await trio.testing.wait_all_tasks_blocked()
            for directory in simulated.storage.directories:
                assert directory.task.failure is simulated.storage.failure is not None
                with pytest.raises(FinalError):
                    await directory.wait_capacity()
            await trio.sleep_forever()


async def test_a_full_directory_does_not_keep_another_from_making_room() -> None:
    simulated, slow = two_directories()
    async with simulated.running(), trio.open_nursery() as nursery:
        slow.may_flush = trio.Event()
        simulated.add(1, 0)
        await simulated.settle()
        nursery.start_soon(simulated.storage.directories[1].checkpoint)
        await trio.testing.wait_all_tasks_blocked()
        for entry_id in range(60):
            simulated.add(1, entry_id, b"x" * 1000)
        assert simulated.storage.is_full
        for entry_id in range(60):
            simulated.add(0, entry_id, b"x" * 1000)
        await simulated.settle()
        with trio.fail_after(5):
            await simulated.storage.directories[0].checkpoint()
        assert not simulated.storage.directories[0].is_full
        assert simulated.storage.is_full
        woken = trio.Event()
        nursery.start_soon(partial(_set_after_room, simulated, woken))
        await trio.testing.wait_all_tasks_blocked()
        assert not woken.is_set()
        slow.may_flush.set()
        with trio.fail_after(5):
            await woken.wait()
        await simulated.check()


async def _set_after_room(simulated: SimulatedStorage, woken: trio.Event) -> None:
    while simulated.storage.is_full:
        await simulated.storage.wait_capacity()
    woken.set()
