"""What a crash, lost files and a killed process leave is replayed whole, or refused."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from bookie.core.journal import BEGINNING, BLOCK_BYTES, JournalCorrupt, Mark
from bookie.core.journal_frames import iterate_frames
from bookie.storage.disk.real_disk import RealDisk
from bookie.storage.journal.journal import Journal
from tests.bookie.storage.crash_disk import CrashDisk, EveryOtherInLoop
from tests.bookie.storage.journal.test_journal import (
    FILE_BYTES,
    commit,
    frame,
    journal_on,
    replayed,
    running,
)
from tests.bookie.storage.memory_disk import MemoryDisk, PowerLost
from tests.crash_counts import Aftermath
from tests.effort import stride


def numbers_in(payloads: list[bytes]) -> list[int]:
    frames = [f for payload in payloads for f in iterate_frames(memoryview(payload))]
    return [int.from_bytes(f[28:36], "big") for f in frames]


@pytest.mark.parametrize("victim", [1, 2, 3])
async def test_missing_file_is_refused(victim: int) -> None:
    disk = MemoryDisk()
    journal = journal_on(disk)
    await replayed(journal)
    async with running(journal):
        for number in range(14):
            await commit(journal, frame(number))
    del disk.names[f"journal/{victim:016x}.journal"]
    names = sorted(disk.names)
    with pytest.raises(JournalCorrupt, match="missing") as caught:
        await replayed(journal_on(disk))
    assert caught.value.file.endswith(f"{victim:x}.journal")
    assert sorted(disk.names) == names


async def test_missing_file_of_the_mark_is_refused() -> None:
    with pytest.raises(JournalCorrupt, match=r"mark is at its offset 8192"):
        await replayed(journal_on(MemoryDisk()), Mark(4, 8192))


async def test_lost_end_of_a_file_is_refused_when_the_next_goes_on() -> None:
    disk = MemoryDisk()
    journal = journal_on(disk)
    await replayed(journal)
    async with running(journal):
        for number in range(6):
            await commit(journal, frame(number))
    data = disk.names["journal/0000000000000001.journal"].data
    data[4 * BLOCK_BYTES :] = bytes(BLOCK_BYTES)
    with pytest.raises(JournalCorrupt, match="their end is lost"):
        await replayed(journal_on(disk))


async def test_torn_tail_stays_harmless_after_the_next_start() -> None:
    disk = MemoryDisk()
    journal = journal_on(disk)
    await replayed(journal)
    async with running(journal):
        for number in range(3):
            await commit(journal, frame(number))
    data = disk.names["journal/0000000000000001.journal"].data
    data[3 * BLOCK_BYTES + 60] ^= 1  # the last group was cut short
    second = journal_on(disk, seed=2)
    assert await replayed(second) == [frame(0), frame(1)]
    async with running(second):
        await commit(second, frame(7))
    third = journal_on(disk, seed=3)
    assert await replayed(third) == [frame(0), frame(1), frame(7)]


async def test_journal_goes_on_when_all_before_the_mark_is_damaged() -> None:
    disk = MemoryDisk()
    journal = journal_on(disk)
    await replayed(journal)
    async with running(journal):
        await commit(journal, frame(0))
        await commit(journal, frame(1))
    mark = journal.mark
    data = disk.names["journal/0000000000000001.journal"].data
    data[BLOCK_BYTES : 3 * BLOCK_BYTES] = b"?" * 2 * BLOCK_BYTES
    for life in range(3):  # the sequence that was is unknown, and stays so
        again = journal_on(disk, seed=10 + life)
        assert await replayed(again, mark) == [frame(10 + n) for n in range(life)]
        async with running(again):
            await commit(again, frame(10 + life))


@pytest.mark.parametrize("size", [0, 100, BLOCK_BYTES, 2 * BLOCK_BYTES])
async def test_file_shorter_than_the_mark_is_refused(size: int) -> None:
    disk = MemoryDisk()
    journal = journal_on(disk)
    await replayed(journal)
    async with running(journal):
        await commit(journal, frame(0))
        await commit(journal, frame(1))
    del disk.names["journal/0000000000000001.journal"].data[size:]
    with pytest.raises(JournalCorrupt, match="before the mark at 12288"):
        await replayed(journal_on(disk), journal.mark)


async def test_group_replayed_from_the_cache_of_a_killed_process_survives_power_loss() -> None:
    disk = MemoryDisk()
    journal = journal_on(disk)
    await replayed(journal)
    async with running(journal):
        await commit(journal, frame(0))
    inode = disk.names["journal/0000000000000001.journal"]
    inode.synced = bytes(inode.data[:BLOCK_BYTES]).ljust(FILE_BYTES, b"\0")  # killed in the write
    second = journal_on(disk, seed=2)
    assert await replayed(second) == [frame(0)]
    async with running(second):
        await commit(second, frame(1))
    for seed in range(20):
        disk.rng.seed(seed)
        assert await replayed(journal_on(disk.after_crash())) == [frame(0), frame(1)]


async def write_until_power_is_lost(
    disk: MemoryDisk, mark: Mark, seed: int, numbers: range
) -> tuple[list[bytes], list[int], list[int], Mark]:
    """What was replayed, then which frames were queued and which acknowledged, and the mark
    that a checkpoint made durable last."""
    journal = journal_on(disk, seed=seed, loop_writes=EveryOtherInLoop())
    queued: list[int] = []
    durable: list[int] = []
    taken = (mark, 0)
    rng = random.Random(seed)
    found = await replayed(journal, mark)

    def queue(number: int) -> None:
        queued.append(number)
        data = frame(number, size=rng.choice([50, 50, 6000]))
        is_chunk = rng.random() < 0.5
        journal.queue(data, on_durable=lambda: durable.append(number), is_urgent=not is_chunk)
        if is_chunk:
            journal.commit()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.run)
            for number in numbers:
                queue(number)
                if rng.random() < 0.7:
                    await trio.testing.wait_all_tasks_blocked()
                if number % 10 == 3:  # a checkpoint begins
                    taken = (journal.mark, len(durable))
                if number % 10 == 9:  # and ends: all before its mark is safe elsewhere
                    mark = taken[0]
                    durable.insert(taken[1], -1)
                    await journal.trim_before(mark)
            nursery.cancel_scope.cancel()
    except* PowerLost:
        pass
    return found, queued, durable, mark


async def test_power_loss_at_every_step_loses_nothing_acknowledged() -> None:
    steps = MemoryDisk()
    await write_until_power_is_lost(steps, BEGINNING, 1, range(30))
    assert steps.steps > 50
    aftermaths = [*Aftermath, Aftermath.TORN, Aftermath.TORN]
    for seed in range(0, len(aftermaths) * steps.steps, stride(ci=7)):
        crash_at = 1 + seed % steps.steps
        disk = CrashDisk(rng=random.Random(seed), crash_at=crash_at)
        _, queued, durable, mark = await write_until_power_is_lost(disk, BEGINNING, 1, range(30))
        aftermath = aftermaths[seed // steps.steps]
        await check_survivors(disk.after_crash(aftermath), queued, durable, mark, seed)


async def check_survivors(
    disk: MemoryDisk, queued: list[int], durable: list[int], mark: Mark, seed: int
) -> None:
    """Replays; then writes on, loses power again, replays again."""
    for life in range(2):
        base = len(durable) - durable[::-1].index(-1) if -1 in durable else 0
        must = [n for n in durable[base:] if n >= 0]
        may = [n for n in queued if n not in durable]
        disk.crash_at = 4 + seed % 13
        try:
            found, queued2, durable2, mark2 = await write_until_power_is_lost(
                disk, mark, seed + 1000 * life, range(100 * (life + 1), 100 * (life + 1) + 12)
            )
        except PowerLost:  # in the middle of the replay
            disk = disk.after_crash()
            continue
        numbers = numbers_in(found)
        assert numbers[: len(must)] == must
        assert numbers[len(must) :] == may[: len(numbers) - len(must)]
        # What was replayed counts as durable from now on: it was synced again.
        queued, durable, mark = numbers + queued2, numbers + durable2, mark2
        disk = disk.after_crash()


WRITER = """
import random, sys, trio
from bookie.core.journal import BEGINNING
from bookie.storage.journal.journal import Journal
from bookie.storage.disk.real_disk import RealDisk

async def main():
    journal = Journal(RealDisk(), sys.argv[1], rng=random.SystemRandom(), file_bytes_max=1 << 20)
    reader = journal.reader(BEGINNING)
    async for _ in reader.payloads():
        raise AssertionError("not empty")
    await journal.begin(reader)
    last, news = -1, trio.Event()
    def acknowledge(number):
        nonlocal last
        print(number, flush=True)
        last = number
        news.set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        number = 0
        while True:
            for _ in range(7):
                data = number.to_bytes(8, "big").ljust(100 + number % 3000, b".")
                journal.queue(data, on_durable=lambda n=number: acknowledge(n), is_urgent=False)
                number += 1
            journal.kick()
            await trio.sleep(0)
            while number > last + 200:  # else a slow sync is followed by one group of all
                news = trio.Event()
                await news.wait()

trio.run(main)
"""


def acknowledged_before_kill(directory: Path) -> int:
    """Runs WRITER, kills it, and gives the last number it said was durable."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(directory)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])},
    )
    assert process.stdout is not None
    last = -1
    try:
        with process.stdout:
            for line in process.stdout:
                if line.endswith(b"\n"):  # the kill may cut the last line
                    last = int(line)
                if last == 1500:
                    process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    return last


@pytest.mark.system
async def test_killed_process_has_lost_nothing_it_acknowledged(tmp_path: Path) -> None:
    directory = tmp_path / "journal"
    last = await trio.to_thread.run_sync(acknowledged_before_kill, directory)
    assert last >= 1500
    journal = Journal(RealDisk(), str(directory), rng=random.Random(), file_bytes_max=1 << 20)
    expected = 0
    reader = journal.reader(BEGINNING)
    async for payload in reader.payloads():
        position = 0
        while position < len(payload):
            number = int.from_bytes(payload[position : position + 8], "big")
            assert number == expected
            expected += 1
            position += 100 + number % 3000
    assert expected > last
    await journal.begin(reader)
    assert journal.mark.file_id > 1
