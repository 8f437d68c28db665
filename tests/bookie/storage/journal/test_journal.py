"""The journal gathers, commits, rolls, recycles and fails as it promises."""

from __future__ import annotations

import errno
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing

from bookie.core.journal import (
    BEGINNING,
    BLOCK_BYTES,
    CommitPolicy,
    FlushPolicy,
    JournalFailed,
    Mark,
    Trigger,
)
from bookie.core.loop_writes import LoopWrites
from bookie.storage.journal.journal import Journal
from tests.bookie.storage.memory_disk import MemoryDisk

FILE_BYTES = 5 * BLOCK_BYTES  # header and four small groups


def journal_on(
    disk: MemoryDisk,
    *,
    seed: int = 1,
    policy: CommitPolicy | None = None,
    file_bytes_max: int = FILE_BYTES,
    files_recycled: int = 2,
    backups_max: int = 0,
    flush: FlushPolicy | None = None,
    loop_writes: LoopWrites | None = None,
) -> Journal:
    return Journal(
        disk, "journal", rng=random.Random(seed), policy=policy, file_bytes_max=file_bytes_max,
        files_recycled=files_recycled, backups_max=backups_max, flush=flush,
        loop_writes=loop_writes,
    )  # fmt: skip


async def replayed(journal: Journal, mark: Mark = BEGINNING) -> list[bytes]:
    reader = journal.reader(mark)
    payloads = [bytes(payload) async for payload in reader.payloads()]
    await journal.begin(reader)
    return payloads


@asynccontextmanager
async def running(journal: Journal) -> AsyncIterator[Journal]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        yield journal
        nursery.cancel_scope.cancel()


async def commit(journal: Journal, frame: bytes) -> None:
    """One frame, awaited: a group of its own."""
    durable = trio.Event()
    journal.queue(frame, on_durable=durable.set)
    await durable.wait()


def frame(number: int, size: int = 50) -> bytes:
    """An add of an entry that has `number` where the ledger id stands."""
    head = (size - 4).to_bytes(4, "big") + (0x0201_0000).to_bytes(4, "big") + bytes(20)
    return (head + number.to_bytes(8, "big")).ljust(size, b".")


async def test_what_was_acknowledged_is_replayed_across_files() -> None:
    disk = MemoryDisk()
    journal = journal_on(disk)
    assert await replayed(journal) == []
    async with running(journal):
        for number in range(11):
            await commit(journal, frame(number))
    assert journal.statistics().rolls == 2
    again = journal_on(disk)
    assert await replayed(again) == [frame(n) for n in range(11)]
    assert again.mark == journal.mark == Mark(3, 4 * BLOCK_BYTES)


async def test_all_that_gathers_in_one_tick_costs_one_sync() -> None:
    disk = MemoryDisk()
    journal = journal_on(disk, file_bytes_max=1 << 20)
    await replayed(journal)
    async with running(journal):
        await commit(journal, frame(0))
        syncs, before = disk.syncs, journal.statistics()
        durable: list[int] = []
        done = trio.Event()
        for number in range(1000):
            journal.queue(
                frame(number), on_durable=partial(durable.append, number), is_urgent=False
            )
            journal.kick()
        journal.open_group.on_durable.append(done.set)
        assert journal.queued_bytes == 50_000
        await done.wait()
        assert disk.syncs == syncs + 1
        after = journal.statistics()
        assert (after.groups - before.groups, after.entries - before.entries) == (1, 1000)
        assert durable == list(range(1000))
        assert journal.queued_bytes == 0


@pytest.mark.parametrize(
    ("policy", "trigger"),
    [
        (CommitPolicy(), Trigger.QUEUE_EMPTY),
        (CommitPolicy(group_bytes_max=40), Trigger.BYTES),
        (CommitPolicy(group_entries_max=1), Trigger.ENTRIES),
        (CommitPolicy(flush_when_queue_empty=False), Trigger.MAX_WAIT),
        (CommitPolicy(flush_when_queue_empty=False, group_bytes_max=40), Trigger.BYTES),
    ],
)
async def test_operators_are_reported_why_groups_went_and_how_long_they_took(
    autojump_clock: trio.testing.MockClock, policy: CommitPolicy, trigger: Trigger
) -> None:
    journal = journal_on(MemoryDisk(), policy=policy)
    await replayed(journal)
    async with running(journal):
        await commit(journal, frame(0))
        await commit(journal, frame(1))
    found = journal.statistics()
    assert found.flushes == {**dict.fromkeys(Trigger, 0), trigger: 2}
    assert (found.group_entries.count, found.group_entries.total) == (2, 2)
    assert found.group_bytes.total == found.bytes == 2 * BLOCK_BYTES
    assert (found.sync_seconds.count, found.file_creation_seconds.count) == (2, 1)
    waited_s = 0.002 if trigger is Trigger.MAX_WAIT else 0
    assert found.add_seconds.total == pytest.approx(2 * waited_s, abs=1e-9)


async def test_a_frame_that_nobody_waits_for_costs_no_sync() -> None:
    """It joins the next group that is scheduled, also if it came while one was in progress."""
    disk = MemoryDisk()
    journal = journal_on(disk, file_bytes_max=1 << 20)
    await replayed(journal)
    durable: list[int] = []
    async with running(journal):
        await commit(journal, frame(0))
        syncs = disk.syncs
        journal.queue(frame(1), on_durable=lambda: durable.append(1), is_urgent=False)
        await trio.testing.wait_all_tasks_blocked()
        assert (disk.syncs, durable, journal.is_idle) == (syncs, [], False)
        disk.gate = trio.Event()
        journal.queue(frame(2), on_durable=lambda: durable.append(2), is_urgent=False)
        journal.kick()
        await trio.testing.wait_all_tasks_blocked()
        journal.queue(frame(3), on_durable=lambda: durable.append(3), is_urgent=False)
        gate, disk.gate = disk.gate, None
        gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert (disk.syncs, durable) == (syncs + 1, [1, 2])
        journal.when_durable(lambda: durable.append(4))
        await trio.testing.wait_all_tasks_blocked()
        assert (disk.syncs, durable, journal.is_idle) == (syncs + 2, [1, 2, 3, 4], True)


async def test_frames_gather_while_a_sync_is_under_way() -> None:
    disk = MemoryDisk()
    journal = journal_on(disk, file_bytes_max=1 << 20)
    await replayed(journal)
    async with running(journal):
        await commit(journal, frame(0))
        disk.gate = trio.Event()
        durable: list[int] = []
        for number in range(1, 6):
            journal.queue(
                frame(number), on_durable=partial(durable.append, number), is_urgent=False
            )
            journal.kick()
            await trio.testing.wait_all_tasks_blocked()
        before, queued_bytes, syncs = list(durable), journal.queued_bytes, disk.syncs
        gate, disk.gate = disk.gate, None
        gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert (before, queued_bytes) == ([], 250)
        assert durable == [1, 2, 3, 4, 5]
        assert disk.syncs == syncs + 2


async def test_next_group_goes_to_the_disk_before_the_callbacks_of_the_last() -> None:
    disk = MemoryDisk()
    journal = journal_on(disk, file_bytes_max=1 << 20)
    await replayed(journal)
    async with running(journal):
        await commit(journal, frame(0))
        disk.gate = trio.Event()
        begun: list[int] = []
        journal.queue(
            frame(1), on_durable=lambda: begun.append(disk.synced_writes_begun), is_urgent=False
        )
        journal.kick()
        await trio.testing.wait_all_tasks_blocked()
        journal.queue(frame(2, size=70), is_urgent=False)
        journal.kick()
        before = disk.synced_writes_begun
        first, second = disk.gate, trio.Event()
        disk.gate = second
        first.set()
        await trio.testing.wait_all_tasks_blocked()
        queued_bytes = journal.queued_bytes  # of the second, waiting at the gate
        second.set()
    assert begun == [before + 1]
    assert queued_bytes == 70


async def test_callback_without_a_frame_waits_for_the_group_in_flight() -> None:
    disk = MemoryDisk()
    journal = journal_on(disk, file_bytes_max=1 << 20)
    await replayed(journal)
    async with running(journal):
        await commit(journal, frame(0))
        gate = disk.gate = trio.Event()
        seen: list[str] = []
        journal.queue(frame(1), on_durable=lambda: seen.append("frame"))
        await trio.testing.wait_all_tasks_blocked()
        journal.open_group.on_durable.append(lambda: seen.append("bare"))
        journal.kick()
        await trio.testing.wait_all_tasks_blocked()
        before, syncs = list(seen), disk.syncs
        gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert before == []
        assert seen == ["frame", "bare"]
        assert disk.syncs == syncs + 1


WAITING = CommitPolicy(
    group_wait_ms=10, group_bytes_max=1000, group_entries_max=5, flush_when_queue_empty=False
)


async def durable_after(
    journal: Journal, clock: trio.testing.MockClock, frames: list[bytes]
) -> list[float]:
    """Virtual milliseconds after which each frame is durable."""
    began = trio.current_time()
    times: list[float] = []
    for data in frames:
        journal.queue(
            data,
            on_durable=lambda: times.append(round((trio.current_time() - began) * 1000, 3)),
            is_urgent=False,
        )
        journal.kick()
        await trio.testing.wait_all_tasks_blocked()
    while len(times) < len(frames):
        clock.jump(0.001)
        await trio.testing.wait_all_tasks_blocked()
    return times


async def test_group_is_committed_when_the_oldest_has_waited(
    mock_clock: trio.testing.MockClock,
) -> None:
    journal = journal_on(MemoryDisk(), policy=WAITING)
    await replayed(journal)
    async with running(journal):
        assert await durable_after(journal, mock_clock, [frame(1), frame(2)]) == [10.0, 10.0]
        assert await durable_after(journal, mock_clock, [frame(3)]) == [10.0]


async def test_group_is_committed_when_it_has_the_bytes(
    mock_clock: trio.testing.MockClock,
) -> None:
    journal = journal_on(MemoryDisk(), policy=WAITING)
    await replayed(journal)
    async with running(journal):
        assert await durable_after(journal, mock_clock, [frame(1), frame(2, 950)]) == [0.0, 0.0]


async def test_group_is_committed_when_it_has_the_entries(
    mock_clock: trio.testing.MockClock,
) -> None:
    journal = journal_on(MemoryDisk(), policy=WAITING)
    await replayed(journal)
    async with running(journal):
        frames = [frame(n) for n in range(6)]
        assert await durable_after(journal, mock_clock, frames) == [0.0] * 5 + [10.0]


async def test_group_is_committed_at_once_when_nothing_waits(
    mock_clock: trio.testing.MockClock,
) -> None:
    journal = journal_on(MemoryDisk(), policy=CommitPolicy(group_wait_ms=10))
    await replayed(journal)
    async with running(journal):
        assert await durable_after(journal, mock_clock, [frame(1)]) == [0.0]


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        ("write_at_synced", errno.ENOSPC),  # of a group: what is on the disk is unknown
        ("write_at_synced", errno.EIO),
        ("rename", errno.EIO),
        ("open", errno.EIO),
        ("allocate", errno.EIO),
    ],
)
async def test_failed_write_poisons_the_journal(operation: str, code: int) -> None:
    disk = MemoryDisk()
    journal = journal_on(disk)
    await replayed(journal)
    durable: list[int] = []

    def add(number: int) -> None:
        journal.queue(frame(number), on_durable=lambda: durable.append(number), is_urgent=False)
        journal.kick()

    with pytest.RaisesGroup(pytest.RaisesExc(JournalFailed, match="the disk says no")):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.run)
            await commit(journal, frame(0))
            disk.errors[operation] = OSError(code, "the disk says no")
            for number in range(1, 9):
                add(number)
                await trio.testing.wait_all_tasks_blocked()
                if journal.failure is None:
                    continue
                disk.errors.clear()
    acknowledged = len(durable)
    add(100)
    assert journal.failure is not None
    assert len(durable) == acknowledged < 8
    again = journal_on(disk.after_crash())
    found = await replayed(again)
    assert found[: acknowledged + 1] == [frame(n) for n in range(acknowledged + 1)]


async def test_group_larger_than_a_file_gets_its_own() -> None:
    disk = MemoryDisk()
    journal = journal_on(disk)
    await replayed(journal)
    large = frame(1, size=3 * FILE_BYTES)
    async with running(journal):
        await commit(journal, frame(0))
        await commit(journal, large)
        await commit(journal, frame(2))
    assert journal.mark == Mark(3, 2 * BLOCK_BYTES)
    assert await replayed(journal_on(disk)) == [frame(0), large, frame(2)]


async def test_recycled_file_gets_the_usual_size_back() -> None:
    disk = MemoryDisk()
    journal = journal_on(disk)
    await replayed(journal)
    async with running(journal):
        await commit(journal, frame(0, size=3 * FILE_BYTES))
        await commit(journal, frame(1))
        await journal.trim_before(journal.mark)
        for number in range(2, 6):
            await commit(journal, frame(number))
    sizes = {name: len(inode.data) for name, inode in disk.names.items()}
    del sizes["journal/END"]
    assert set(sizes.values()) == {FILE_BYTES}
    assert "journal/0000000000000001.journal" not in sizes


async def test_released_files_are_written_again_and_stale_groups_not_replayed() -> None:
    disk = MemoryDisk()
    journal = journal_on(disk, files_recycled=2)
    await replayed(journal)
    async with running(journal):
        for number in range(40):
            await commit(journal, frame(number))
            if number % 8 == 7:
                await journal.trim_before(journal.mark)
        mark, released = journal.mark, 40
        for number in range(40, 42):
            await commit(journal, frame(number))
    assert len(disk.names) <= 5
    assert sum(1 for name in disk.names if name.startswith("journal/spare")) <= 1
    again = journal_on(disk)
    assert await replayed(again, mark) == [frame(n) for n in range(released, 42)]


async def test_what_is_queued_is_counted_and_called() -> None:
    journal = journal_on(MemoryDisk())
    group, ran = journal.open_group, list[int]()
    callback: Callable[[], None] = lambda: ran.append(1)  # noqa: E731
    journal.queue(b"abc", on_durable=callback, is_urgent=False)
    was_kicked = group.is_kicked
    journal.queue(b"de-fg", 2, overhead_bytes=10)
    assert (was_kicked, group.is_kicked) == (False, True)
    assert (group.nbytes, group.entries, group.views) == (8, 3, [b"abc", b"de-fg"])
    assert journal.queued_bytes == 18
    assert group.on_durable == [callback]
