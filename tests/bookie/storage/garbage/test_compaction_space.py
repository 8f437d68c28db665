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
from tests.bookie.storage.simulated_storage import Bottle


async def test_without_room_for_copies_logs_of_dead_ledgers_go_all_the_same() -> None:
    bottle = Bottle(options=with_compaction(free_bytes_min=1000))
    async with bottle.running():
        for ledger in range(1, 4):
            await fill(bottle, range(ledger, ledger + 1), 30)
        await fill(bottle, range(4, 8), 10)
        bottle.deleted.update(dict.fromkeys((1, 5, 6, 7)))
        bottle.disk.free_bytes = 1000
        collected = await collect(bottle)
        assert collected.logs_removed >= 1
        assert (collected.entries_moved, collected.logs_without_room > 0) == (0, True)
        bottle.disk.free_bytes = 5000
        collected = await collect(bottle)
        assert (collected.entries_moved > 0, collected.logs_without_room) == (True, 0)


async def test_a_disk_that_is_full_in_the_middle_ends_it_and_harms_nothing() -> None:
    for steps in range(1, 40):
        bottle = Bottle(options=OPTIONS)
        async with bottle.running():
            await fill(bottle)
            bottle.deleted.update(dict.fromkeys((1, 2)))
            bottle.disk.full_after = {"write_at": steps, "open": steps}
            [collected] = await bottle.storage.collect_garbage(deleted(bottle), is_forced=True)
            bottle.disk.full_after = {}
            await bottle.check()
            if not collected.ended_early:
                break
            assert "No space left" in collected.ended_early
            assert (await collect(bottle)).ended_early == ""
            kept = logs(bottle)
        successor = bottle.reopened()
        async with successor.running():
            await successor.check()
            assert logs(successor).keys() >= kept.keys()
    assert 2 < steps < 39


async def test_small_logs_are_joined_if_they_count_as_sparse() -> None:
    bottle = Bottle(options=with_compaction(is_small_log_sparse=True))
    for _ in range(6):
        async with bottle.running():
            bottle.add(1, len(bottle.acked), b"x" * 50)
            await bottle.settle()
            await bottle.storage.checkpoint()
        bottle = bottle.reopened()
    async with bottle.running():
        assert len(logs(bottle)) >= 6
        await collect(bottle)
        assert len(logs(bottle)) == 1
        await bottle.check()


async def test_space_stays_near_what_lives_over_a_long_life() -> None:
    """No more than 1.3 times what lives, with logs small against it."""
    rng = random.Random(6)
    bottle = Bottle(options=replace(OPTIONS, entry_log_bytes_max=4000))
    async with bottle.running():
        worst = 0.0
        ledger_id = 0
        for round_no in range(60):
            for _ in range(4):
                ledger_id += 1
                for i in range(rng.choice((5, 40))):
                    bottle.add(ledger_id, i, rng.randbytes(rng.choice((50, 200))))
                    await bottle.storage.wait_capacity()
                await bottle.settle()
            await bottle.storage.checkpoint()
            living = [ledger for ledger, _ in bottle.acked if ledger not in bottle.deleted]
            for ledger in rng.sample(sorted(set(living)), min(3, len(set(living)) // 4)):
                bottle.deleted[ledger] = None
            if round_no % 3 == 2:
                await bottle.storage.collect_garbage(deleted(bottle), is_forced=True)
                live = sum(
                    len(entry)
                    for (ledger, _), entry in bottle.acked.items()
                    if ledger not in bottle.deleted
                )
                if round_no > 20:
                    worst = max(worst, sum(logs(bottle).values()) / live)
        await bottle.check()
    assert 1.0 < worst < 1.3
