"""Readers that continue are read ahead for in large pieces and in bounds; others are not."""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from bookie.core.entry_log import RUN_BYTES_MAX
from bookie.core.read_ahead import CROWDED_BYTES_MAX, IN_FLIGHT_BYTES_MAX
from bookie.storage.bookie_storage import BookieStorage
from bookie.storage.disk.disk import Buffer
from bookie.storage.disk.real_disk import RealDisk
from bookie.storage.index.index import run_key
from bookie.storage.options import StorageOptions
from ledger.core.entry import HEADER_BYTES, Digest, DigestType
from ledger.errors import BookieIoError, NoSuchEntry, NoSuchLedger
from tests.bookie.storage.garbage.test_collector import Metadata
from tests.bookie.storage.memory_disk import MemoryDisk, MemoryFile
from tests.bookie.storage.simulated_storage import SimulatedStorage

KIB = 1024
MIB = 1024 * KIB
OPTIONS = StorageOptions(write_cache_bytes=64 * MIB, checkpoint_interval_s=1e9)
"""Those of reads are the defaults."""
LEDGER = 1


class LogDisk(MemoryDisk):
    """Entry logs are never in the page cache. `reads` has offset and bytes of each read of them,
    which waits for `gate` if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[int, int]] = []
        self.kept: list[tuple[int, int]] = []
        """The reads of these that go through the page cache."""
        self.read_gate: trio.Event | None = None

    async def open(
        self, path: str, *, is_new: bool = False, has_own_thread: bool = False
    ) -> MemoryFile:
        opened = await super().open(path, is_new=is_new, has_own_thread=has_own_thread)
        return _LogFile(self, opened.inode, path) if path.endswith(".log") else opened


class _LogFile(MemoryFile):
    disk: LogDisk

    def read_nowait(self, offset: int, size: int, *, drops_cache: bool = False) -> None:
        return None

    async def read(self, offset: int, size: int, *, drops_cache: bool = False) -> bytes:
        self.disk.reads.append((offset, size))
        if not drops_cache:
            self.disk.kept.append((offset, size))
        if self.disk.read_gate is not None:
            await self.disk.read_gate.wait()
        return await super().read(offset, size, drops_cache=drops_cache)


DIGEST = Digest(DigestType.CRC32C)


def entry_of(ledger_id: int, entry_id: int, size: int) -> bytes:
    """An entry with a payload of this size, as a client makes it."""
    data = entry_id.to_bytes(8, "big") * (size // 8)
    # `SimulatedStorage.add` writes the bytes after the header as the length.
    head, _ = DIGEST.encode_entry(ledger_id, entry_id, -1, DIGEST.size + len(data), data)
    return head + data


async def filled(
    disk: MemoryDisk,
    entry_ids: Iterable[int],
    size: int = 1000,
    *,
    ledgers: Sequence[int] = (LEDGER,),
    options: StorageOptions = OPTIONS,
) -> SimulatedStorage:
    """A storage to be reopened, with the entries of each ledger in one entry log."""
    simulated = SimulatedStorage(disk, options=options, checkpoints_when_due=False)
    async with simulated.running():
        for entry_id in entry_ids:
            for ledger_id in ledgers:
                data = entry_of(ledger_id, entry_id, size)[HEADER_BYTES:]
                simulated.add(ledger_id, entry_id, data)
        await simulated.settle()
        await simulated.storage.checkpoint()
    return simulated.reopened()


async def read_singly(storage: BookieStorage, entry_ids: Iterable[int], size: int = 1000) -> None:
    for entry_id in entry_ids:
        found = await storage.read(LEDGER, entry_id)
        assert bytes(found) == entry_of(LEDGER, entry_id, size)


async def read_batches(storage: BookieStorage, count: int, size: int, in_flight: int) -> None:
    """Reads all entries by batches of a MiB, of which some are requested at the same time."""
    batch = MIB // (size + 36)
    places = iter(range(0, count, batch))

    async def read() -> None:
        for first in places:
            entry_id, end = first, min(first + batch, count)
            while entry_id < end:
                found = await storage.read_batch(LEDGER, entry_id, end - entry_id, 2 * MIB)
                for data in found:
                    assert bytes(data) == entry_of(LEDGER, entry_id, size)
                    entry_id += 1

    async with trio.open_nursery() as nursery:
        for _ in range(in_flight):
            nursery.start_soon(read)


@pytest.mark.parametrize("others", [(), range(400, 4000, 900)])
async def test_a_reader_of_single_entries_gets_large_pieces(others: Sequence[int]) -> None:
    disk, count = LogDisk(), 4000
    again = await filled(disk, range(count))
    async with again.running():
        disk.reads.clear()
        await read_singly(again.storage, [*others, *range(count)])
        details = again.storage.directories[0].details().reads
    assert len(disk.reads) <= 8 + 2 * len(others), "16 KiB, 64, 256, and then much"
    assert max(size for _, size in disk.reads) <= 2 * MIB + 64 * KIB
    assert sum(size for _, size in disk.reads) <= 1.02 * count * 1040, "and nothing twice"
    assert details.read_ahead_entries == count - len(disk.reads)
    assert details.read_cache_misses == len(disk.reads)


@pytest.mark.parametrize(("in_flight", "reads_max"), [(1, 10), (2, 12), (8, 62)])
async def test_batches_in_flight_share_their_pieces(in_flight: int, reads_max: int) -> None:
    """A piece may be half of one of the 31 runs of 512 KiB; none is taken for a second reader's."""
    disk, count = LogDisk(), 1600
    again = await filled(disk, range(count), 10_000)
    async with again.running():
        disk.reads.clear()
        await read_batches(again.storage, count, 10_000, in_flight)
    assert len(disk.reads) <= reads_max
    assert sum(size for _, size in disk.reads) <= 1.01 * count * 10_040, "nothing twice"
    assert not disk.kept


async def test_a_bookie_that_holds_two_of_three_entries_reads_ahead_over_its_gaps() -> None:
    disk = LogDisk()
    entry_ids = [entry_id for entry_id in range(3000) if entry_id % 3 < 2]
    again = await filled(disk, entry_ids)
    async with again.running():
        disk.reads.clear()
        await read_singly(again.storage, entry_ids)
        for absent in (2, 1502, 2999):
            with pytest.raises(NoSuchEntry):
                await again.storage.read(LEDGER, absent)
    assert len(disk.reads) <= len(entry_ids) / 80, "each run has two entries"


async def test_random_reads_read_nothing_ahead() -> None:
    disk, count = LogDisk(), 6000
    again = await filled(disk, range(count))
    places = random.Random(1).sample(range(0, count, 40), 150)
    async with again.running():
        disk.reads.clear()
        await read_singly(again.storage, places)
    assert len(disk.reads) == len(places)
    assert max(size for _, size in disk.reads) <= 16 * KIB, "a disk reads a page as slowly"


async def test_what_many_readers_have_in_flight_is_bounded() -> None:
    """A sync of the journal may wait behind all of it."""
    disk, readers = LogDisk(), range(20)
    again = await filled(disk, range(150), 10_000, ledgers=readers)
    async with again.running():
        for ledger_id in readers:
            await again.storage.read_batch(ledger_id, 0, 30, 2 * MIB)
        disk.reads.clear()
        disk.read_gate = trio.Event()
        async with trio.open_nursery() as nursery:
            for ledger_id in readers:
                nursery.start_soon(again.storage.read_batch, ledger_id, 60, 90, 2 * MIB)
            await trio.testing.wait_all_tasks_blocked()
            in_flight = sum(size for _, size in disk.reads)
            assert len(disk.reads) == len(readers)
            assert in_flight <= IN_FLIGHT_BYTES_MAX + len(readers) * CROWDED_BYTES_MAX
            disk.read_gate.set()


async def test_while_adds_wait_for_the_disk_pieces_are_small() -> None:
    disk = LogDisk()
    again = await filled(disk, range(2000))
    async with again.running():
        disk.reads.clear()
        cache = again.storage.directories[0].cache
        cache.charge(cache.bytes_max)  # as by adds
        await again.storage.read_batch(LEDGER, 0, 2000, 2 * MIB)
        await read_singly(again.storage, range(2000))
        assert cache.is_active_full
    assert max(size for _, size in disk.reads) <= CROWDED_BYTES_MAX + 8 * KIB


async def test_others_run_while_a_large_piece_is_checked() -> None:
    disk = LogDisk()
    again = await filled(disk, range(3000))
    async with again.running():
        await read_singly(again.storage, range(900))
        disk.reads.clear()
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            await trio.lowlevel.checkpoint()
            before = turns
            await read_singly(again.storage, range(900, 1200))
            nursery.cancel_scope.cancel()
    [(_, nbytes)] = disk.reads
    assert nbytes > 1.5 * MIB
    assert turns - before >= nbytes // RUN_BYTES_MAX - 1, "one between the runs"


async def test_readers_that_never_return_cost_no_more_than_the_cache() -> None:
    disk = LogDisk()
    options = replace(OPTIONS, read_cache_bytes=4 * MIB)
    again = await filled(disk, range(300), 10_000, ledgers=range(8), options=options)
    async with again.running():
        storage = again.storage
        for ledger_id in range(8):
            for entry_id in (0, 2, 12, 50, 120):
                await storage.read_batch(ledger_id, entry_id, 2, MIB)
        blocks = storage.directories[0]._read_cache._blocks.values()
        held = {id(block.data.obj): memoryview(block.data.obj).nbytes for block in blocks}
        assert sum(held.values()) <= options.read_cache_bytes, "no block keeps another's bytes"


async def test_what_a_reader_reads_stays_in_the_page_cache_for_one_that_comes_after_it() -> None:
    disk, count, behind = LogDisk(), 600, 200
    again = await filled(disk, range(count), 10_000, options=replace(OPTIONS, read_cache_bytes=MIB))
    async with again.running():
        disk.reads.clear()
        disk.kept.clear()
        for entry_id in range(count + behind):
            if entry_id < count:
                await read_singly(again.storage, [entry_id], 10_000)
            if entry_id == behind:
                assert not disk.kept
            if entry_id >= behind:
                await read_singly(again.storage, [entry_id - behind], 10_000)
    kept = sum(size for _, size in disk.kept)
    once = sum(size for _, size in disk.reads) - kept
    assert once < 1.3 * behind * 10_000, "what was read before the second reader came"
    assert kept > 0.9 * (2 * count - behind) * 10_000


@pytest.mark.parametrize("is_log_removed", [False, True])
async def test_a_ledger_may_be_deleted_while_it_is_read_ahead(is_log_removed: bool) -> None:
    disk = LogDisk()
    again = await filled(disk, range(2400))
    outcomes: list[str] = []
    async with again.running():
        storage = again.storage
        await read_singly(storage, range(500))
        disk.read_gate = trio.Event()

        async def read(entry_id: int) -> None:
            try:
                for data in await storage.read_batch(LEDGER, entry_id, 100, MIB):
                    assert bytes(data) == entry_of(LEDGER, entry_id, 1000)
                    entry_id += 1
                outcomes.append("read")
            except NoSuchLedger:
                outcomes.append("deleted")

        async with trio.open_nursery() as nursery:
            for entry_id in range(600, 2400, 150):
                nursery.start_soon(read, entry_id)
            await trio.testing.wait_all_tasks_blocked()
            again.deleted[LEDGER] = None
            is_deleted = Metadata(LEDGER).is_deleted
            collect = partial(storage.collect_garbage, is_deleted, is_forced=is_log_removed)
            nursery.start_soon(collect)
            await trio.testing.wait_all_tasks_blocked()
            disk.read_gate.set()
        assert len(outcomes) == 12
        assert not storage.directories[0]._read_cache.nbytes, "nothing of it is kept"
        with pytest.raises(NoSuchLedger):
            await storage.read(LEDGER, 600)


async def test_a_damaged_record_of_the_index_costs_only_its_own_run() -> None:
    disk = LogDisk()
    again = await filled(disk, range(3000))
    pairs = again.pairs["ledgers/index"]
    async with again.running():
        runs = [run.first for run in again.storage.directories[0]._index.runs(LEDGER)]
        bad, after = runs[2], runs[3]
        pairs.write([(run_key(LEDGER, bad), b"damaged")])
        await read_singly(again.storage, range(bad))
        with pytest.raises(BookieIoError, match="bad run record"):
            await again.storage.read(LEDGER, bad)
        await read_singly(again.storage, range(after, 3000))


@pytest.mark.parametrize("seed", range(6))
async def test_readers_in_any_order_find_what_was_added(seed: int) -> None:
    """Against a twin that keeps everything: ledgers in stripes and in one piece, several logs, a
    cache that is too small, readers in turn and at once."""
    rng = random.Random(seed)
    options = replace(
        OPTIONS,
        read_cache_bytes=rng.choice((0, 2000, 30_000, MIB)),
        read_ahead_bytes=rng.choice((0, 3000, 2 * MIB)),
        read_ahead_entries_max=rng.choice((1, 20, 4096)),
        entry_log_bytes_max=rng.choice((20_000, 1 << 30)),
    )
    simulated = SimulatedStorage(LogDisk(), options=options)
    async with simulated.running():
        for entry_id in range(300):
            for ledger_id in range(4):
                if entry_id % 4 >= ledger_id:
                    simulated.add(ledger_id, entry_id, bytes([ledger_id]) * rng.randrange(600))
            if rng.random() < 0.02:
                await simulated.settle()
                await simulated.storage.checkpoint()
        await simulated.settle()
        await simulated.storage.checkpoint()
    again = simulated.reopened()

    async def read(ledger_id: int, entry_id: int) -> None:
        for _ in range(60):
            expected = again.acked.get((ledger_id, entry_id))
            if expected is None:
                with pytest.raises(NoSuchEntry):
                    await again.storage.read(ledger_id, entry_id)
                entry_id = (entry_id + 1) % 300
                continue
            if rng.random() < 0.5:
                found: Sequence[Buffer] = [await again.storage.read(ledger_id, entry_id)]
            else:
                count, nbytes = rng.randrange(1, 50), rng.randrange(100, 9000)
                found = await again.storage.read_batch(ledger_id, entry_id, count, nbytes)
            for data in found:
                assert bytes(data) == again.acked[ledger_id, entry_id]
                entry_id += 1
            if rng.random() < 0.1:
                entry_id = rng.randrange(300)

    async with again.running():
        async with trio.open_nursery() as nursery:
            for reader in range(8):
                nursery.start_soon(read, reader % 4, rng.choice((0, rng.randrange(300))))
        await again.check()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The system calls that read."""
    made: list[str] = []

    def counted(name: str) -> None:
        call: Callable[..., bytes | int] = getattr(os, name)

        def count(*arguments: int) -> bytes | int:
            made.append(name)
            return call(*arguments)

        monkeypatch.setattr(os, name, count)

    counted("preadv")
    counted("pread")
    return made


@pytest.mark.system
@pytest.mark.parametrize("way", ["singly", "in batches"])
async def test_what_a_thousand_entries_cost_in_system_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[str], way: str
) -> None:
    monkeypatch.chdir(tmp_path)
    count = 4000
    again = await filled(RealDisk(), range(count))  # type: ignore[arg-type]
    async with again.running():
        calls.clear()
        read: Callable[[], Awaitable[None]] = partial(read_singly, again.storage, range(count))
        if way == "in batches":
            read = partial(read_batches, again.storage, count, 1000, 2)
        await read()
    assert len(calls) <= 14, "4 MB; batches in flight share their pieces in one way or another"
