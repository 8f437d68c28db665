"""What one worker asks of the metadata store, among few and among many."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack

import pytest
import trio

from ledger.autorecovery.options import AutoRecoveryOptions
from ledger.autorecovery.worker_share import WorkerShare
from ledger.core.autorecovery.work_sharing import (
    FEW_WORKERS,
    LOOKS_PER_S_MAX,
    OTHERS_PER_LOOK,
    owner_of,
)
from ledger.metastore.election import AuditorElection
from ledger.metastore.memory import MemoryStore, MemoryTree
from ledger.metastore.underreplication import UnderreplicationStore

MARKED = range(500)


def share_of(
    store: MemoryStore, bookie: str, seed: int, options: AutoRecoveryOptions | None = None
) -> WorkerShare:
    """Returns the share of a worker that is no candidate yet."""
    chance = random.Random(seed)
    return WorkerShare(
        UnderreplicationStore(store, "/ledgers", lambda: 0),
        AuditorElection(store, "/ledgers", chance),
        options or AutoRecoveryOptions(),
        bookie_id=bookie,
        rng=chance,
    )


async def stand(share: WorkerShare, bookie: str) -> None:
    """Takes part in the election until cancelled."""
    async with share._election.elected(bookie):
        await trio.sleep_forever()


@pytest.mark.parametrize("count", [1, 3, 8, 60])
async def test_all_workers_together_take_each_mark_about_once(
    count: int, autojump_clock: trio.testing.MockClock
) -> None:
    tree = MemoryTree()
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        shares = []
        for number in range(count):
            store = await stack.enter_async_context(MemoryStore(tree, lambda: 0))
            shares.append(share_of(store, f"b{number}", number))
            nursery.start_soon(stand, shares[-1], f"b{number}")
        await trio.sleep(10)
        taken = []
        for share in shares:
            await share.wait_turn()
            assert share.workers == count
            taken += await share.take(MARKED, MARKED, is_idle=True)
        assert {*taken} == {*MARKED}
        assert len(taken) <= len(MARKED) + (count * OTHERS_PER_LOOK if count <= FEW_WORKERS else 0)
        nursery.cancel_scope.cancel()


async def test_locked_ledgers_are_left_to_those_that_hold_them(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with MemoryStore(MemoryTree(), lambda: 0) as store:
        share = share_of(store, "b1", 1)
        share.workers = 6
        share._own = 2
        owned = [one for one in MARKED if owner_of(one, 6) == 2]
        async with share._marks.lock(owned[0], "w7") as is_locked:
            assert is_locked
            assert await share.take(MARKED, MARKED, is_idle=True) == owned[1:]
        assert await share.take(MARKED, MARKED[:50], is_idle=True) == [
            one for one in owned if one < 50
        ]


async def test_a_worker_that_is_no_candidate_owns_nothing() -> None:
    async with MemoryStore(MemoryTree(), lambda: 0) as store:
        share = share_of(store, "b1", 1)
        for number in range(7):
            await store.create_numbered(
                "/ledgers/underreplication/auditorelection/V_", b'bookieId: "x" #%d' % number
            )
        assert await share._election.place_of("b1") == (None, 8)


async def test_many_workers_look_and_ask_no_more_than_their_part(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with MemoryStore(MemoryTree(), lambda: 0) as store:
        options = AutoRecoveryOptions(metadata_operations_per_s=2000.0)
        share = share_of(store, "b1", 1, options)
        share.workers = 1000
        assert share.interval_s(1.0) == 1000 / LOOKS_PER_S_MAX
        begun_s, operations = trio.current_time(), 0
        for count in (16, 2, 2, 16, 30):
            await share.pace(count)
            passed_s = trio.current_time() - begun_s
            assert operations <= 2.0 * passed_s + 1e-6
            operations += count
        assert share.queued_max == 4 * options.ledgers_at_once
        share.workers = 3
        assert share.queued_max > 1000


async def test_one_worker_looks_again_at_once_when_that_is_wanted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with MemoryStore(MemoryTree(), lambda: 0) as store:
        share, wanted = share_of(store, "b1", 1), trio.Event()
        begun_s = trio.current_time()
        await share.rest(wanted, 0)
        rested_s = trio.current_time() - begun_s
        assert rested_s == share.options.scan_interval_s
        await share.rest(wanted, 9000)
        assert trio.current_time() == begun_s + 11 * rested_s, "a long list is read less often"
        wanted.set()
        await share.rest(wanted, 9000)
        assert trio.current_time() == begun_s + 11 * rested_s
