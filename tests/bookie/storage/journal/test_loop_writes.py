"""Groups that a journal writes in the event loop are as durable as the others, and cost no thread;
a disk that hangs meanwhile, or fails, loses nothing."""

from __future__ import annotations

import errno
import logging
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from bookie.core.journal import BLOCK_BYTES, JournalFailed
from bookie.core.loop_writes import GROUP_BYTES_MAX, WINDOW_WRITES, LoopWrites
from bookie.storage.disk.disk import Buffer
from bookie.storage.disk.reads import DIRECT_BYTES_MIN
from bookie.storage.disk.real_disk import RealDisk
from bookie.storage.journal.journal import Journal
from bookie.storage.yielding import waiting_for_thread
from tests.bookie.storage.journal.test_journal import commit, frame, journal_on, replayed, running
from tests.bookie.storage.memory_disk import MemoryDisk, MemoryFile
from tests.task_count import TaskCount

SLOW_S = 0.005
GROUPS = 200


async def make_fast(journal: Journal, clock: trio.testing.MockClock) -> None:
    """Commits as many groups as show that the disk is fast."""
    for number in range(WINDOW_WRITES):
        await commit(journal, frame(number))
        clock.jump(0.001)


async def test_a_fast_disk_is_written_in_the_loop_without_hops_and_tasks(
    mock_clock: trio.testing.MockClock,
) -> None:
    """200 groups: as many syncs, no thread, no task."""
    disk = MemoryDisk()
    journal = journal_on(disk, loop_writes=LoopWrites(SLOW_S), file_bytes_max=1 << 22)
    await replayed(journal)
    async with running(journal):
        await make_fast(journal, mock_clock)
        begun, syncs = disk.synced_writes_begun, disk.syncs
        spawned = TaskCount()
        trio.lowlevel.add_instrument(spawned)
        for number in range(WINDOW_WRITES, WINDOW_WRITES + GROUPS):
            await commit(journal, frame(number))
            mock_clock.jump(0.001)
        trio.lowlevel.remove_instrument(spawned)
        assert disk.synced_writes_begun == begun, "a thread wrote"
        assert disk.syncs - syncs == GROUPS
        assert spawned.count == 0
        assert journal.statistics().loop_groups == GROUPS
        with waiting_for_thread:
            await commit(journal, frame(5000))
        await commit(journal, frame(5001, size=GROUP_BYTES_MAX + 1))
        assert disk.synced_writes_begun == begun + 2
        mock_clock.jump(1)
        journal.queue(frame(5002, size=GROUP_BYTES_MAX), is_urgent=False)
        journal.commit()
        await trio.testing.wait_all_tasks_blocked()
        assert disk.synced_writes_begun == begun + 3, "its padding counts, too"
    found = await replayed(journal_on(disk.after_crash()))
    assert len(found) == WINDOW_WRITES + GROUPS + 3


def test_no_group_that_is_written_in_the_loop_goes_around_the_page_cache() -> None:
    assert GROUP_BYTES_MAX < DIRECT_BYTES_MIN
    assert GROUP_BYTES_MAX % BLOCK_BYTES == 0


async def test_of_the_adds_of_one_turn_after_a_pause_one_is_written_and_the_others_gather(
    mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 32 connections, each at the end of its chunk."""
    disk = MemoryDisk()
    journal = journal_on(disk, loop_writes=LoopWrites(SLOW_S), file_bytes_max=1 << 22)
    await replayed(journal)
    write = MemoryFile.write_synced_now
    durable: list[int] = []

    def taking_time(
        self: MemoryFile,
        offset: int,
        views: Sequence[Buffer],
        *,
        then: Callable[[], None] | None = None,
    ) -> float:
        mock_clock.jump(0.8 * SLOW_S)
        return 0.8 * SLOW_S + write(self, offset, views, then=then)

    async with running(journal):
        await make_fast(journal, mock_clock)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(10)
        monkeypatch.setattr(MemoryFile, "write_synced_now", taking_time)
        syncs = disk.syncs
        for number in range(32):
            journal.queue(
                frame(number), on_durable=partial(durable.append, number), is_urgent=False
            )
            journal.commit()
        assert disk.syncs == syncs + 1
        await trio.testing.wait_all_tasks_blocked()
        assert durable == list(range(32))
        assert disk.syncs == syncs + 2


async def test_a_disk_that_hangs_in_the_loop_loses_nothing_and_gets_a_thread(
    mock_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = MemoryDisk()
    journal = journal_on(disk, loop_writes=LoopWrites(SLOW_S), file_bytes_max=1 << 20)
    await replayed(journal)
    write = MemoryFile.write_synced_now
    served_at: list[float] = []

    def hanging(
        self: MemoryFile,
        offset: int,
        views: Sequence[Buffer],
        *,
        then: Callable[[], None] | None = None,
    ) -> float:
        mock_clock.jump(7)
        return 7.0 + write(self, offset, views, then=then)

    async def another_connection() -> None:
        while True:
            await trio.sleep(0.001)
            served_at.append(trio.current_time())

    async with running(journal), trio.open_nursery() as nursery:
        await make_fast(journal, mock_clock)
        nursery.start_soon(another_connection)
        await trio.testing.wait_all_tasks_blocked()  # it waits for a time that the hang passes
        begun = disk.synced_writes_begun
        with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
            patched.setattr(MemoryFile, "write_synced_now", hanging)
            await commit(journal, frame(1000))
        answered_at = trio.current_time()
        await trio.testing.wait_all_tasks_blocked()
        assert served_at[-1] >= answered_at, "others wait longer than the disk"
        (record,) = caplog.records
        assert "hung" in record.getMessage()
        assert "waited_s=7.0" in record.getMessage()
        await commit(journal, frame(1001))
        assert disk.synced_writes_begun == begun + 1
        nursery.cancel_scope.cancel()
    found = await replayed(journal_on(disk.after_crash()))
    assert found[-2:] == [frame(1000), frame(1001)]


async def test_a_failed_sync_in_the_loop_stops_the_journal(
    mock_clock: trio.testing.MockClock,
) -> None:
    disk = MemoryDisk()
    journal = journal_on(disk, loop_writes=LoopWrites(SLOW_S))
    await replayed(journal)
    durable: list[int] = []
    with pytest.RaisesGroup(pytest.RaisesExc(JournalFailed, match="the disk says no")):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.run)
            await make_fast(journal, mock_clock)
            disk.errors["write_at_synced"] = OSError(errno.EIO, "the disk says no")
            for number in (1000, 1001):
                journal.queue(frame(number), on_durable=lambda: durable.append(1))
                await trio.testing.wait_all_tasks_blocked()
                disk.errors.clear()
    assert not durable
    assert journal.statistics().loop_groups == 0


async def test_nothing_is_written_after_a_failed_sync_at_the_end_of_a_chunk(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Two connections end their chunks in one turn of the loop, before the journal's task runs."""
    disk = MemoryDisk()
    journal = journal_on(disk, loop_writes=LoopWrites(SLOW_S), file_bytes_max=1 << 22)
    await replayed(journal)
    accepted: list[int] = []
    with pytest.RaisesGroup(pytest.RaisesExc(JournalFailed, match="the disk says no")):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.run)
            await make_fast(journal, mock_clock)
            await trio.testing.wait_all_tasks_blocked()
            disk.errors["write_at_synced"] = OSError(errno.EIO, "the disk says no")
            for number in (1000, 1001):
                journal.queue(frame(number), 1, lambda: accepted.append(1), is_urgent=False)
                journal.commit()
                assert journal.failure is not None, "the task writes this group"
                disk.errors.clear()
    assert not accepted
    assert len(await replayed(journal_on(disk.after_crash()))) == WINDOW_WRITES


@pytest.mark.parametrize("error", [MemoryError(), AssertionError("a bug")])
async def test_an_error_that_a_connection_would_survive_ends_the_journal(
    mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Otherwise its group would be in no journal, and the same add be acknowledged when it comes
    again, because nothing seems to be on its way to the disk."""
    disk = MemoryDisk()
    journal = journal_on(disk, loop_writes=LoopWrites(SLOW_S), file_bytes_max=1 << 22)
    await replayed(journal)
    accepted: list[int] = []

    def failing(*_: object, **__: object) -> float:
        raise error

    with pytest.RaisesGroup(type(error)):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.run)
            await make_fast(journal, mock_clock)
            await trio.testing.wait_all_tasks_blocked()
            with monkeypatch.context() as patched:
                patched.setattr(MemoryFile, "write_synced_now", failing)
                journal.queue(frame(1000), 1, lambda: accepted.append(1000), is_urgent=False)
                journal.commit()
            assert journal.failure is error, "the task writes this group"
            journal.queue(frame(1001), 1, lambda: accepted.append(1001), is_urgent=False)
            journal.commit()
            assert not journal.is_idle
            await trio.testing.wait_all_tasks_blocked()
    assert not accepted
    assert len(await replayed(journal_on(disk.after_crash()))) == WINDOW_WRITES


async def test_a_callback_that_raises_at_the_end_of_a_chunk_ends_the_journal(
    mock_clock: trio.testing.MockClock,
) -> None:
    """The other callbacks of the group are of other peers, which would wait forever."""
    disk = MemoryDisk()
    journal = journal_on(disk, loop_writes=LoopWrites(SLOW_S), file_bytes_max=1 << 22)
    await replayed(journal)

    def raising() -> None:
        journal.queue(frame(1001))  # wakes the journal's task
        raise MemoryError

    with pytest.RaisesGroup(MemoryError):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.run)
            await make_fast(journal, mock_clock)
            await trio.testing.wait_all_tasks_blocked()
            journal.queue(frame(1000), 1, raising, is_urgent=False)
            journal.commit()
            assert journal.failure is not None, "the task writes this group"
            await trio.testing.wait_all_tasks_blocked()
    found = await replayed(journal_on(disk))
    assert found[WINDOW_WRITES:] == [frame(1000)], "and nothing after it"


async def test_a_hang_that_ends_with_an_error_is_logged_as_one(
    mock_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = MemoryDisk()
    journal = journal_on(disk, loop_writes=LoopWrites(SLOW_S), file_bytes_max=1 << 22)
    await replayed(journal)

    def hanging(*_: object, **__: object) -> float:
        mock_clock.jump(7)
        raise OSError(errno.EIO, "the disk says no")

    with pytest.RaisesGroup(pytest.RaisesExc(JournalFailed, match="the disk says no")):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.run)
            await make_fast(journal, mock_clock)
            await trio.testing.wait_all_tasks_blocked()
            monkeypatch.setattr(MemoryFile, "write_synced_now", hanging)
            with caplog.at_level(logging.WARNING):
                journal.queue(frame(1000), is_urgent=False)
                journal.commit()
            await trio.testing.wait_all_tasks_blocked()
    (record,) = caplog.records
    assert "waited_s=7.0" in record.getMessage()


async def test_a_real_file_written_in_the_loop_is_read_back(tmp_path: Path) -> None:
    directory = str(tmp_path / "journal")

    def journal_of(loop_writes: LoopWrites | None = None) -> Journal:
        return Journal(
            RealDisk(), directory, rng=random.Random(), file_bytes_max=1 << 22,
            loop_writes=loop_writes,
        )  # fmt: skip

    journal = journal_of(LoopWrites(60.0))  # fast, however busy the machine is
    await replayed(journal)
    async with running(journal):
        for number in range(WINDOW_WRITES):
            await commit(journal, frame(number))
        begins = journal._loop_writes._begins
        for number, size in enumerate((100, 10_000, 60_000), WINDOW_WRITES):
            begins.extend([one - 3600 for one in begins])  # as if the disk had rested long
            await commit(journal, frame(number, size=size))
        assert journal.statistics().loop_groups == 3
    found = await replayed(journal_of())
    assert found[-1] == frame(WINDOW_WRITES + 2, size=60_000)
    assert len(found) == WINDOW_WRITES + 3
