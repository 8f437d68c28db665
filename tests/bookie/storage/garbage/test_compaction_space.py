"""Compaction on a disk with little or no free space, and how much space is freed."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.bookie.storage.garbage.test_compactor import (
    OPTIONS,
    collect,
    deleted,
    fill,
    logs,
    with_compaction,
)
from tests.bookie.storage.simulated_storage import SimulatedStorage


async def test_without_room_for_copies_logs_of_dead_ledgers_go_all_the_same() -> None:
    simulated = SimulatedStorage(options=with_compaction(free_bytes_min=1000))
    async with simulated.running():
        for ledger in range(1, 4):
            await fill(simulated, range(ledger, ledger + 1), 30)
        await fill(simulated, range(4, 8), 10)
        simulated.deleted.update(dict.fromkeys((1, 5, 6, 7)))
        simulated.disk.free_bytes = 1000
        collected = await collect(simulated)
        assert collected.logs_removed >= 1
        assert (collected.entries_moved, collected.logs_without_room > 0) == (0, True)
        simulated.disk.free_bytes = 5000
        collected = await collect(simulated)
        assert (collected.entries_moved > 0, collected.logs_without_room) == (True, 0)


async def test_a_disk_that_is_full_in_the_middle_ends_it_and_harms_nothing() -> None:
    for steps in range(1, 40):
        simulated = SimulatedStorage(options=OPTIONS)
        async with simulated.running():
            await fill(simulated)
            simulated.deleted.update(dict.fromkeys((1, 2)))
            simulated.disk.full_after = {"write_at": steps, "open": steps}
            [collected] = await simulated.storage.collect_garbage(
                deleted(simulated), is_forced=True
            )
            simulated.disk.full_after = {}
            await simulated.check()
            if not collected.ended_early:
                break
            assert "No space left" in collected.ended_early
            assert (await collect(simulated)).ended_early == ""
            kept = logs(simulated)
        successor = simulated.reopened()
        async with successor.running():
            await successor.check()
            assert logs(successor).keys() >= kept.keys()
    assert 2 < steps < 39


async def test_small_logs_are_joined_if_they_count_as_sparse() -> None:
    simulated = SimulatedStorage(options=with_compaction(is_small_log_sparse=True))
    for _ in range(6):
        async with simulated.running():
            simulated.add(1, len(simulated.acked), b"x" * 50)
            await simulated.settle()
            await simulated.storage.checkpoint()
        simulated = simulated.reopened()
    async with simulated.running():
        assert len(logs(simulated)) >= 6
        await collect(simulated)
        assert len(logs(simulated)) == 1
        await simulated.check()


async def test_space_stays_near_what_lives_over_a_long_life() -> None:
    """No more than 1.3 times what lives, with logs small against it."""
    rng = random.Random(6)
    simulated = SimulatedStorage(options=replace(OPTIONS, entry_log_bytes_max=4000))
    async with simulated.running():
        worst = 0.0
        ledger_id = 0
        for round_no in range(60):
            for _ in range(4):
                ledger_id += 1
                for i in range(rng.choice((5, 40))):
                    simulated.add(ledger_id, i, rng.randbytes(rng.choice((50, 200))))
                    await simulated.storage.wait_capacity()
                await simulated.settle()
            await simulated.storage.checkpoint()
            living = [ledger for ledger, _ in simulated.acked if ledger not in simulated.deleted]
            for ledger in rng.sample(sorted(set(living)), min(3, len(set(living)) // 4)):
                simulated.deleted[ledger] = None
            if round_no % 3 == 2:
                await simulated.storage.collect_garbage(deleted(simulated), is_forced=True)
                live = sum(
                    len(entry)
                    for (ledger, _), entry in simulated.acked.items()
                    if ledger not in simulated.deleted
                )
                if round_no > 20:
                    worst = max(worst, sum(logs(simulated).values()) / live)
        await simulated.check()
    assert 1.0 < worst < 1.3
