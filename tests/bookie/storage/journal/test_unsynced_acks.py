"""A journal that acknowledges from the page cache: what it may lose, and what it never loses."""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from bookie.core.journal import (
    BEGINNING,
    BLOCK_BYTES,
    FLUSH_NOW,
    UNSYNCED_FACTOR,
    FlushPolicy,
    JournalCorrupt,
    JournalFailed,
    Mark,
)
from bookie.storage.journal.journal import Journal
from tests.bookie.storage.journal.test_crashes import numbers_in
from tests.bookie.storage.journal.test_journal import (
    FILE_BYTES,
    frame,
    journal_on,
    replayed,
    running,
)
from tests.bookie.storage.memory_disk import MemoryDisk, PowerLost
from tests.effort import stride

NEVER = FlushPolicy(flush_interval_ms=1e9, flush_bytes=1 << 40)
"""Syncs only when it is asked to, or a file is full."""


def late_journal(
    disk: MemoryDisk, flush: FlushPolicy = NEVER, *, file_bytes_max: int = 1 << 20, seed: int = 1
) -> Journal:
    return journal_on(disk, flush=flush, file_bytes_max=file_bytes_max, seed=seed)


async def accepted(journal: Journal, data: bytes) -> None:
    """One frame as a group of its own; returns when it is acknowledged, which is not durable."""
    done = trio.Event()
    journal.queue(data, on_accepted=done.set)
    await done.wait()


async def durable(journal: Journal) -> None:
    done = trio.Event()
    journal.when_durable(done.set)
    await done.wait()


def test_policy_flushes_for_time_bytes_and_waiters() -> None:
    policy = FlushPolicy(flush_interval_ms=500, flush_bytes=100)
    assert policy.decide(10.0, 9.9, 99, False) == 10.4
    assert policy.decide(10.4, 9.9, 99, False) == FLUSH_NOW
    assert policy.decide(10.0, 9.9, 100, False) == FLUSH_NOW
    assert policy.decide(10.0, 9.9, 1, True) == FLUSH_NOW
    assert not policy.must_wait(100 * UNSYNCED_FACTOR - 1)
    assert policy.must_wait(100 * UNSYNCED_FACTOR)


@pytest.mark.parametrize(
    ("name", "value"), [("flush_interval_ms", -1), ("flush_interval_ms", 1e999), ("flush_bytes", 0)]
)
def test_policy_refuses_what_can_never_work(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        FlushPolicy(**{name: value})  # type: ignore[arg-type]


async def test_adds_are_acknowledged_without_a_sync_and_the_mark_stays_behind() -> None:
    disk = MemoryDisk()
    journal = late_journal(disk)
    await replayed(journal)
    async with running(journal):
        await accepted(journal, frame(0))
        syncs = disk.syncs
        for number in range(1, 10):
            await accepted(journal, frame(number))
        statistics = journal.statistics()
        assert disk.syncs == syncs
        assert (journal.mark, journal.is_idle) == (BEGINNING, False)
        assert statistics.late_groups == 10
        assert statistics.unsynced_bytes == 10 * BLOCK_BYTES
        await durable(journal)
        assert disk.syncs == syncs + 1
        assert (journal.mark, journal.is_idle) == (Mark(1, 11 * BLOCK_BYTES), True)
        assert journal.statistics().unsynced_bytes == 0


async def test_who_waits_for_durability_gets_a_sync_that_began_after_the_write() -> None:
    disk = MemoryDisk()
    journal = late_journal(disk)
    await replayed(journal)
    seen: list[str] = []
    async with running(journal):
        await accepted(journal, frame(0))
        gate = disk.sync_gate = trio.Event()
        journal.when_durable(lambda: seen.append("first"))
        await trio.testing.wait_all_tasks_blocked()
        # While its sync is in progress another frame comes, whose sender waits, too.
        journal.queue(
            frame(1),
            on_durable=lambda: seen.append("second"),
            on_accepted=lambda: seen.append("accepted"),
        )
        await trio.testing.wait_all_tasks_blocked()
        before = list(seen)
        second_gate = disk.sync_gate = trio.Event()
        gate.set()
        await trio.testing.wait_all_tasks_blocked()
        between, mark = list(seen), journal.mark
        second_gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert before == ["accepted"]
        assert between == ["accepted", "first"]
        assert mark == Mark(1, 2 * BLOCK_BYTES)
        assert seen == ["accepted", "first", "second"]
        assert journal.mark == Mark(1, 3 * BLOCK_BYTES)


async def test_who_asks_while_all_is_being_synced_costs_no_second_sync() -> None:
    disk = MemoryDisk()
    journal = late_journal(disk)
    await replayed(journal)
    seen: list[int] = []
    async with running(journal):
        await accepted(journal, frame(0))
        syncs = disk.syncs
        gate = disk.sync_gate = trio.Event()
        for number in range(3):
            journal.when_durable(lambda n=number: seen.append(n))  # type: ignore[misc]
            await trio.testing.wait_all_tasks_blocked()
        assert (seen, journal.queued_callbacks) == ([], 3)
        gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert (seen, disk.syncs) == ([0, 1, 2], syncs + 1)


async def test_a_fence_is_synced_before_it_is_reported(mock_clock: trio.testing.MockClock) -> None:
    """`on_durable` of a frame, as a fence has it, with no time passing."""
    disk = MemoryDisk()
    journal = late_journal(disk)
    await replayed(journal)
    async with running(journal):
        await accepted(journal, frame(0))
        reported = trio.Event()
        journal.queue(frame(1), on_durable=reported.set, is_urgent=False)
        journal.kick()
        await reported.wait()
    for seed in range(20):
        disk.rng.seed(seed)
        assert await replayed(journal_on(disk.after_crash())) == [frame(0), frame(1)]


async def test_page_cache_is_flushed_at_the_interval(mock_clock: trio.testing.MockClock) -> None:
    disk = MemoryDisk()
    journal = late_journal(disk, FlushPolicy(flush_interval_ms=1000, flush_bytes=1 << 40))
    await replayed(journal)
    async with running(journal):
        await accepted(journal, frame(0))
        syncs = disk.syncs
        mock_clock.jump(0.6)
        await accepted(journal, frame(1))
        mock_clock.jump(0.399)
        await trio.testing.wait_all_tasks_blocked()
        assert disk.syncs == syncs
        mock_clock.jump(0.002)
        await trio.testing.wait_all_tasks_blocked()
        assert (disk.syncs, journal.mark) == (syncs + 1, Mark(1, 3 * BLOCK_BYTES))
        mock_clock.jump(100)  # nothing is written: nothing is synced
        await trio.testing.wait_all_tasks_blocked()
        assert disk.syncs == syncs + 1


async def test_page_cache_is_flushed_bit_by_bit_and_writing_waits_for_a_slow_disk() -> None:
    disk = MemoryDisk()
    flush = FlushPolicy(flush_interval_ms=1e9, flush_bytes=2 * BLOCK_BYTES)
    journal = late_journal(disk, flush)
    await replayed(journal)
    count = 0

    def counted() -> None:
        nonlocal count
        count += 1

    async with running(journal):
        await accepted(journal, frame(0))
        await accepted(journal, frame(1))
        await trio.testing.wait_all_tasks_blocked()
        assert journal.mark == Mark(1, 3 * BLOCK_BYTES)  # two blocks: nobody had to ask
        gate = disk.sync_gate = trio.Event()
        for number in range(2, 40):
            journal.queue(frame(number), on_accepted=counted)
            await trio.testing.wait_all_tasks_blocked()
        unsynced, most = journal.statistics().unsynced_bytes, 2 * BLOCK_BYTES * UNSYNCED_FACTOR
        assert (count, unsynced) == (2 * UNSYNCED_FACTOR, most)
        assert journal.queued_bytes > 0
        gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert count == 38


async def test_a_file_is_whole_before_the_next_is_begun() -> None:
    disk = MemoryDisk()
    journal = late_journal(disk, file_bytes_max=FILE_BYTES)
    await replayed(journal)
    async with running(journal):
        for number in range(5):
            await accepted(journal, frame(number))
        assert journal.mark == Mark(1, FILE_BYTES)
    for seed in range(20):
        disk.rng.seed(seed)
        found = await replayed(journal_on(disk.after_crash()))
        assert found == [frame(n) for n in range(5)][: len(found)]
        assert len(found) >= 4


@pytest.mark.parametrize("operation", ["sync", "write_at"])
async def test_failed_background_sync_poisons_the_journal(operation: str) -> None:
    disk = MemoryDisk()
    journal = late_journal(disk)
    await replayed(journal)
    reported: list[str] = []
    with pytest.RaisesGroup(pytest.RaisesExc(JournalFailed, match="No space left")):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.run)
            await accepted(journal, frame(0))
            disk.errors[operation] = OSError(errno.ENOSPC, "No space left")
            journal.queue(frame(1), on_durable=lambda: reported.append("durable"), is_urgent=False)
            journal.kick()
            await trio.testing.wait_all_tasks_blocked()
            journal.open_group.on_accepted.append(lambda: reported.append("accepted"))
            journal.queue(frame(2))
    assert reported == []
    assert journal.mark == BEGINNING


async def test_killed_process_loses_nothing_it_acknowledged() -> None:
    """The page cache outlives it; and what was replayed is durable from then on."""
    disk = MemoryDisk()
    journal = late_journal(disk)
    await replayed(journal)
    async with running(journal):
        for number in range(7):
            await accepted(journal, frame(number))
    second = late_journal(disk, seed=2)
    assert await replayed(second) == [frame(n) for n in range(7)]
    assert second.mark == Mark(1, 8 * BLOCK_BYTES)
    for seed in range(20):
        disk.rng.seed(seed)
        assert await replayed(journal_on(disk.after_crash())) == [frame(n) for n in range(7)]


async def test_damage_to_what_was_durable_is_refused_though_later_groups_are_late() -> None:
    disk = MemoryDisk()
    journal = late_journal(disk)
    await replayed(journal)
    async with running(journal):
        for number in range(3):
            await accepted(journal, frame(number))
        await durable(journal)
        for number in range(3, 6):
            await accepted(journal, frame(number))
    data = disk.names["journal/0000000000000001.journal"].data
    late = data[5 * BLOCK_BYTES : 6 * BLOCK_BYTES]
    data[5 * BLOCK_BYTES : 6 * BLOCK_BYTES] = bytes(BLOCK_BYTES)  # group 5 of 6
    assert await replayed(journal_on(disk)) == [frame(n) for n in range(4)]
    data[5 * BLOCK_BYTES : 6 * BLOCK_BYTES] = late
    data[2 * BLOCK_BYTES : 3 * BLOCK_BYTES] = bytes(BLOCK_BYTES)  # group 2
    with pytest.raises(JournalCorrupt, match="group 2: damaged or missing, but group 4"):
        await replayed(journal_on(disk))


# --- power is lost at every step


@dataclass
class Life:
    """What one process did until power was lost."""

    queued: list[int] = field(default_factory=list)
    durable: list[int] = field(default_factory=list)
    """Told to be durable, in order."""
    mark: Mark = BEGINNING
    covered: int = -1
    """Highest number before `mark`: checkpointed."""


async def live(journal: Journal, life: Life, numbers: range, rng: random.Random) -> None:
    """Writes numbered frames; some are waited for. Checkpoints the journal now and then."""
    marks: dict[Mark, int] = {}
    written = life.covered

    def accept(number: int) -> None:
        nonlocal written
        assert number == written + 1 or written < numbers.start, "out of order"
        written = number

    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        for number in numbers:
            life.queued.append(number)
            is_forced = rng.random() < 0.25
            done = (lambda n=number: life.durable.append(n)) if is_forced else None
            journal.queue(
                frame(number, rng.choice([50, 50, 6000])), on_durable=done, is_urgent=False
            )
            journal.open_group.on_accepted.append(lambda n=number: accept(n))  # type: ignore[misc]
            journal.kick()
            if rng.random() < 0.7:
                await trio.testing.wait_all_tasks_blocked()
            if journal.is_idle:
                marks[journal.mark] = number
            if number % 10 == 9 and journal.mark in marks:
                life.mark, life.covered = journal.mark, marks[journal.mark]
                await journal.trim_before(life.mark)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("flush_blocks", [1, 3, 1000])
async def test_after_power_loss_at_every_step_the_survivors_are_a_prefix(flush_blocks: int) -> None:
    flush = FlushPolicy(flush_interval_ms=1e9, flush_bytes=flush_blocks * BLOCK_BYTES)

    async def one(seed: int, crash_at: int | None) -> tuple[MemoryDisk, Life]:
        disk, life = MemoryDisk(rng=random.Random(seed), crash_at=crash_at), Life()
        journal = late_journal(disk, flush, file_bytes_max=2 * FILE_BYTES)
        await replayed(journal)
        try:
            await live(journal, life, range(30), random.Random(7))
        except* PowerLost:
            pass
        return disk, life

    whole, _ = await one(0, None)
    assert whole.steps > 40
    lost = late_holes = 0
    for seed in range(0, 4 * whole.steps, stride(ci=7)):
        disk, life = await one(seed, 1 + seed % whole.steps)
        rng = random.Random(seed)
        for number in range(2):  # it must be survived again, and what was replayed stays
            disk = disk.after_crash()
            second = late_journal(disk, flush, file_bytes_max=2 * FILE_BYTES, seed=10 + number)
            found = numbers_in(await replayed(second, life.mark))
            expected = [n for n in life.queued if n > life.covered]
            assert found == expected[: len(found)], seed
            must = max((n for n in life.durable if n > life.covered), default=life.covered)
            assert life.covered + len(found) >= must, (seed, life)
            lost += len(found) < len(expected)
            life.queued = [n for n in life.queued if n <= life.covered] + found
            life.durable = list(life.queued)
            first = max(life.queued, default=-1) + 1
            await live(second, life, range(first, first + 6), rng)
            late_holes += second.statistics().late_groups
    assert lost
    assert late_holes
