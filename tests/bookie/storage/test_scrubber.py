"""Damage is found by reading, at a bounded rate, told once, and stops nothing."""

from __future__ import annotations

import logging
import random
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from bookie.storage import scrubber
from bookie.storage.entry_log.scan import WINDOW_BYTES
from bookie.storage.index.index import Index, PlacedRun
from tests.bookie.storage.check.test_bookie import filled
from tests.bookie.storage.garbage.test_compactor import OPTIONS, collect, logs, statistics
from tests.bookie.storage.memory_disk import MemoryFile
from tests.bookie.storage.simulated_storage import SimulatedStorage

SCRUBBED = replace(OPTIONS, scrub_bytes_per_s=1e12)


async def _sealed(simulated: SimulatedStorage) -> list[str]:
    current = simulated.storage.directories[0]._logs.current_id
    return [name for name in logs(simulated) if int(name[8:24], 16) != current]


async def test_whole_logs_are_read_and_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    simulated = SimulatedStorage(options=SCRUBBED)
    async with simulated.running():
        await filled(simulated)
        simulated.deleted[2] = None
        await collect(simulated)
        found = simulated.storage.directories[0].scrubber
        await found.round()
        assert found.statistics.damaged_logs == 0
        assert found.statistics.logs == len(await _sealed(simulated))
        assert found.statistics.bytes_read > 0
    assert "damaged" not in caplog.text


async def test_each_round_reads_the_logs_there_are_then(caplog: pytest.LogCaptureFixture) -> None:
    simulated = SimulatedStorage(options=SCRUBBED)
    async with simulated.running():
        await filled(simulated)
        scrubbing = simulated.storage.directories[0].scrubber
        await scrubbing.round()
        before = await _sealed(simulated)
        simulated.deleted[2] = None
        await collect(simulated)  # logs go, and others come
        await filled(simulated)
        after = await _sealed(simulated)
        assert before != after
        seen = scrubbing.statistics.logs
        await scrubbing.round()
        assert scrubbing.statistics.logs - seen == len(after)
        assert scrubbing.statistics.damaged_logs == statistics(simulated).logs_set_aside == 0
    assert "damaged" not in caplog.text


async def test_a_log_that_a_compaction_still_writes_is_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its last records are written and indexed just when the scrubber has come to its end."""
    simulated = SimulatedStorage(options=SCRUBBED)
    async with simulated.running():
        await filled(simulated)
        victim = (await _sealed(simulated))[0]
        inode = simulated.disk.names[victim]
        whole, index = bytes(inode.data), Index(simulated.pairs["ledgers/index"])
        runs = [run for ledger in range(1, 6) for run in index.runs(ledger)]
        first = min(run.offset + sum(run.lengths) for run in runs if run.log_id == 1)
        del inode.data[first:]
        read = MemoryFile.read

        async def read_then_grow(file: MemoryFile, offset: int, *rest: Any, **how: Any) -> bytes:
            data = await read(file, offset, *rest, **how)
            if file.path == victim and not data:
                inode.data[:] = whole
            return data

        monkeypatch.setattr(MemoryFile, "read", read_then_grow)
        scrubbing = simulated.storage.directories[0].scrubber
        await scrubbing.round()
        assert bytes(inode.data) == whole
        assert scrubbing.statistics.damaged_logs == 0


@pytest.mark.parametrize("seed", range(60))
async def test_every_flip_in_a_needed_record_is_found_and_reported_once(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(seed)
    simulated = SimulatedStorage(options=SCRUBBED)
    async with simulated.running():
        await filled(simulated)
        victim = rng.choice(await _sealed(simulated))
        data = simulated.disk.names[victim].data
        data[rng.randrange(32, len(data))] ^= 1 << rng.randrange(8)
        scrubbing = simulated.storage.directories[0].scrubber
        with caplog.at_level(logging.ERROR):
            await scrubbing.round()
            await scrubbing.round()
        assert [record for record in caplog.messages if victim in record] == caplog.messages
        assert len(caplog.messages) == 1
        assert scrubbing.statistics.damaged_logs == 1
        assert statistics(simulated).logs_set_aside == 1
        simulated.add(9, 0, b"the bookie is well")
        await simulated.settle()


@pytest.mark.parametrize("damage", ["missing", "truncated"])
async def test_lost_and_shortened_logs_are_found(damage: str) -> None:
    simulated = SimulatedStorage(options=SCRUBBED)
    async with simulated.running():
        await filled(simulated)
        [victim, *_] = await _sealed(simulated)
        if damage == "missing":
            del simulated.disk.names[victim]
        else:
            del simulated.disk.names[victim].data[100:]
        await simulated.storage.directories[0].scrubber.round()
        [reason] = Index(simulated.pairs["ledgers/index"]).logs_set_aside().values()
        assert ("cannot be opened" in reason) == (damage == "missing")


async def test_dead_bytes_may_be_damaged() -> None:
    simulated = SimulatedStorage(options=SCRUBBED)
    async with simulated.running():
        await filled(simulated)
        index = Index(simulated.pairs["ledgers/index"])
        [run, *_] = index.runs(3)
        # Added again: the old place is needed no more.
        for i in range(20):
            simulated.add(3, i, b"again", is_recovery=True)
        await simulated.settle()
        await simulated.storage.checkpoint()
        name = f"ledgers/{run.log_id:016x}.log"
        simulated.disk.names[name].data[run.offset + 20] ^= 1
        await simulated.storage.directories[0].scrubber.round()
        assert statistics(simulated).logs_set_aside == 0


async def test_the_rate_is_kept_and_0_is_off(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrubber, "PAUSE_S", 10.0)
    simulated = SimulatedStorage(options=replace(OPTIONS, scrub_bytes_per_s=100_000))
    async with simulated.running():
        await filled(simulated)
        scrubbing = simulated.storage.directories[0].scrubber
        begun = trio.current_time()
        await trio.sleep(600)
        seconds = trio.current_time() - begun
        read = scrubbing.statistics.bytes_read
        assert scrubbing.statistics.rounds > 3
        assert read <= 100_000 * seconds + 3 * 128 * 1024
    off = SimulatedStorage(options=OPTIONS)
    async with off.running():
        await filled(off)
        await trio.sleep(600)
        assert off.storage.directories[0].scrubber.statistics.rounds == 0


async def test_others_have_a_turn_while_many_small_records_are_looked_up() -> None:
    ledgers = 500
    options = replace(SCRUBBED, entry_log_bytes_max=1 << 20, write_cache_bytes=1 << 20)
    simulated = SimulatedStorage(options=options)
    async with simulated.running():
        for ledger in range(1, ledgers + 1):
            simulated.add(ledger, 0, b"x")
        await simulated.settle()
        await simulated.storage.checkpoint()
        directory = simulated.storage.directories[0]
        await directory._logs.seal()
        looked_up, most = [0, 0], 0  # in all, and when the others last had a turn
        scrubbing, parts_of = directory.scrubber, directory.scrubber._places.parts_of

        def counted(run: PlacedRun) -> list[PlacedRun]:
            looked_up[0] += 1
            return parts_of(run)

        scrubbing._places.parts_of = counted  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:

            async def others() -> None:
                nonlocal most
                while True:
                    most = max(most, looked_up[0] - looked_up[1])
                    looked_up[1] = looked_up[0]
                    await trio.lowlevel.checkpoint()

            nursery.start_soon(others)
            await scrubbing.round()
            nursery.cancel_scope.cancel()
    assert looked_up[0] >= ledgers
    assert 0 < most < 20


async def test_small_records_count_for_a_kib_each(autojump_clock: trio.testing.MockClock) -> None:
    """And each ledger once more at the end. What they cost is to be looked up: a bound on bytes
    alone let them take a core."""
    options = replace(
        OPTIONS, entry_log_bytes_max=1 << 20, write_cache_bytes=1 << 20, scrub_bytes_per_s=20_000
    )
    simulated = SimulatedStorage(options=options)
    async with simulated.running():
        for ledger in range(1, 501):
            simulated.add(ledger, 0, b"x")
        await simulated.settle()
        await simulated.storage.checkpoint()
        directory = simulated.storage.directories[0]
        await directory._logs.seal()
        begun = trio.current_time()
        await directory.scrubber.round()
        # The last ones are no whole step, and the bucket is full at first.
        least = (2 * 490 * 1024 - WINDOW_BYTES) / 20_000
        assert trio.current_time() - begun >= least > 40
