"""A collection leaves others their turns: it goes in short steps, and undoes nobody's work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import trio
import trio.testing

from bookie.core.garbage import GarbageOptions
from bookie.storage.garbage import copy_removal
from bookie.storage.index.index import Index
from ledger.errors import NoSuchLedger, Status
from tests.bookie.storage.garbage.test_collector import OPTIONS, Metadata, logs
from tests.bookie.storage.memory_disk import MemoryFile
from tests.bookie.storage.simulated_storage import SimulatedStorage


async def test_a_round_looks_at_few_tombstones_and_the_next_goes_on() -> None:
    garbage = replace(
        OPTIONS.garbage,
        ledgers_per_round_max=1000,
        tombstones_max=250,
        tombstones_per_round_max=200,
    )
    simulated = SimulatedStorage(options=replace(OPTIONS, write_cache_bytes=10**6, garbage=garbage))
    async with simulated.running():
        for ledger in range(1000):
            simulated.add(ledger, 0)
        await simulated.storage.checkpoint()
        kept = []
        index = simulated.storage.directories[0]._index
        for _ in range(15):
            await simulated.storage.collect_garbage(Metadata(*range(1000)).is_deleted)
            kept.append(len(index.tombstones()))
        # Five rounds count them; then each forgets as many as it looks at, and no more than needed.
        assert kept[:5] == [1000] * 5
        assert kept[5:10] == [800, 600, 400, 250, 250]
        assert set(kept[10:]) == {250}
        assert [simulated.storage.state(ledger) is None for ledger in (0, 749, 750)] == [1, 1, 0]


async def test_checkpoints_go_on_while_a_large_ledger_is_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copy_removal, "BATCHES_PER_HOLD", 1)
    monkeypatch.setattr(Index, "BATCH_PAIRS_MAX", 1)
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        for i in range(10):
            simulated.add(1, 2 * i)
        await simulated.settle()
        await simulated.storage.checkpoint()
        simulated.deleted[1] = None
        task = simulated.storage.directories[0].task
        refused = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(simulated.storage.collect_garbage, Metadata(1).is_deleted)
            while 1 in simulated.storage.directories[0]._index.ledger_ids(-1, 9):
                assert simulated.add(2, task.checkpoints) is Status.OK
                refused += simulated.add(1, 99) is Status.FENCED
                await simulated.storage.checkpoint()
        assert refused >= 5
        await simulated.settle()
        await simulated.check()
        with pytest.raises(NoSuchLedger):
            await simulated.storage.read(1, 0)


async def test_what_is_read_while_other_ledgers_are_deleted_is_kept_in_memory() -> None:
    """Otherwise a reader that catches up would read the whole range again for each entry of it."""
    simulated = SimulatedStorage(
        options=replace(OPTIONS, read_cache_bytes=40_000, read_ahead_bytes=5000)
    )
    async with simulated.running():
        for i in range(10):
            simulated.add(1, i)
        simulated.add(2, 0)
        await simulated.settle()
        await simulated.storage.checkpoint()
        simulated.deleted[2] = None
        storage = simulated.storage.directories[0]
        storage._logs.close()  # so that the read opens its log again
        really_open, asked, gone = simulated.disk.open, trio.Event(), trio.Event()

        async def open_late(path: str, **how: bool) -> MemoryFile:
            asked.set()
            await gone.wait()
            return await really_open(path, **how)

        simulated.disk.open = open_late  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(simulated.storage.read, 1, 0)
            await asked.wait()
            simulated.disk.open = really_open  # type: ignore[method-assign]
            await simulated.storage.collect_garbage(Metadata(2).is_deleted)
            gone.set()
        for i in range(10):
            entry = simulated.storage.read_cached(1, i)
            assert entry is not None
            assert bytes(entry) == simulated.acked[1, i]


async def test_a_round_lets_others_run_between_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With thousands of living logs the event loop stood still for a second."""
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        for i in range(100):
            simulated.add(1, 2 * i, b"x" * 1500)
        await simulated.settle()
        await simulated.storage.checkpoint()
        most = asked = 0
        of_log = Index.log_ledger_ids

        def counted(index: Index, log_id: int) -> Iterator[int]:
            nonlocal asked, most
            asked += 1
            most = max(most, asked)
            return of_log(index, log_id)

        async def watch() -> None:
            nonlocal asked
            while True:
                asked = 0
                await trio.lowlevel.checkpoint()

        monkeypatch.setattr(Index, "log_ledger_ids", counted)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await simulated.storage.collect_garbage(Metadata().is_deleted)
            nursery.cancel_scope.cancel()
        assert len(logs(simulated)) > 50
        assert 1 <= most <= 2


async def test_a_forced_round_frees_space_before_all_were_asked_about() -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        for ledger in range(9):
            for i in range(20):
                simulated.add(ledger, i, b"x" * 100)
                await simulated.storage.wait_capacity()
            await simulated.settle()
            await simulated.storage.checkpoint()
        sizes: list[int] = []

        async def all_deleted(_: int) -> bool:
            await trio.lowlevel.checkpoint()
            sizes.append(len(logs(simulated)))
            return True

        [collected] = await simulated.storage.collect_garbage(all_deleted, is_forced=True)
        assert sizes[0] > sizes[3] > sizes[6]  # three are asked about at a time
        assert collected.logs_removed == sizes[0]
        assert collected.bytes_reclaimed_by_deletion > 9 * 20 * 100


async def test_questions_keep_to_their_rate_however_long_an_answer_takes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def slowly(_: int) -> bool:
        await trio.sleep(0.01)
        return False

    garbage = GarbageOptions(asks_per_s_max=50)
    simulated = SimulatedStorage(options=replace(OPTIONS, write_cache_bytes=10**6, garbage=garbage))
    async with simulated.running():
        for ledger in range(200):
            simulated.add(ledger, 0)
        await simulated.storage.checkpoint()
        started = trio.current_time()
        await simulated.storage.collect_garbage(slowly)
        assert 200 / 50 - 0.1 <= trio.current_time() - started <= 200 / 50 + 0.1
