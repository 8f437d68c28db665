"""Power is lost at every step of a bookie's storage whose journal acknowledges before it syncs.

What was forced is there afterwards, and so is each acknowledged fence. What was only acknowledged
may be gone, but then everything after it is gone, too; and no byte is wrong. If only the process
dies, nothing is gone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from bookie.core.journal import FlushPolicy
from bookie.storage.options import StorageOptions
from ledger.errors import NoSuchEntry, NoSuchLedger
from tests.bookie.core.test_caches import KEY, make_entry, make_frame
from tests.bookie.storage.crash_disk import CrashDisk
from tests.bookie.storage.memory_disk import MemoryDisk, PowerLost
from tests.bookie.storage.simulated_storage import CrashingKeyValue, SimulatedStorage
from tests.crash_counts import Aftermath
from tests.effort import stride

FLUSH = FlushPolicy(flush_interval_ms=1e9, flush_bytes=3 * 4096)
OPTIONS = StorageOptions(
    write_cache_bytes=4000,
    read_cache_bytes=2000,
    read_ahead_bytes=300,
    entry_log_bytes_max=1500,
    flush_entrylog_bytes=500,
    checkpoint_interval_s=1000,
    states_max=3,
)
Key = tuple[int, int]


@dataclass
class Promises:
    queued: list[Key] = field(default_factory=list)
    accepted: int = 0
    """How many of them were acknowledged."""
    forced: int = 0
    """The number of acknowledged ones."""
    fenced: list[int] = field(default_factory=list)


def storage_on(disk: MemoryDisk, pairs: CrashingKeyValue) -> SimulatedStorage:
    pairs.disk = disk
    return SimulatedStorage(
        disk, {"ledgers/index": pairs}, options=OPTIONS, flush=FLUSH, checkpoints_when_due=False
    )


def payload_of(key: Key) -> bytes:
    return b"%d/%d" % key * (1 + key[1] % 9)


def add(simulated: SimulatedStorage, key: Key, promises: Promises) -> None:
    """As the add path does it: acknowledged when the journal accepts it."""
    storage, (ledger_id, entry_id) = simulated.storage, key
    if storage.state(ledger_id) is None:
        storage.create(ledger_id, KEY)
    frame = make_frame(ledger_id, entry_id, payload_of(key), entry_id - 1)
    storage.directory_of(ledger_id).cache.put_frame(frame)
    journal = storage.journal_of(ledger_id)
    promises.queued.append(key)

    def accepted() -> None:
        promises.accepted += 1

    journal.queue(frame, on_accepted=accepted)


async def workload(simulated: SimulatedStorage, promises: Promises) -> None:
    storage = simulated.storage
    async with simulated.running():
        for i in range(14):
            for ledger in (1, 2, 3):
                add(simulated, (ledger, i), promises)
            await trio.testing.wait_all_tasks_blocked()
            assert promises.accepted == len(promises.queued)
            if i % 5 == 2:
                count = len(promises.queued)
                await simulated.settle()
                promises.forced = count
            if i in (4, 9):
                await storage.checkpoint()
                promises.forced = len(promises.queued)  # they are in entry logs
        storage.fence(storage.create(7, KEY), lambda: promises.fenced.append(7))
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(storage.checkpoint)
            for i in range(14, 26):
                add(simulated, (2, i), promises)
                await trio.lowlevel.checkpoint()
        await storage.checkpoint()
        add(simulated, (3, 14), promises)
        await trio.testing.wait_all_tasks_blocked()


async def survivors(simulated: SimulatedStorage, promises: Promises) -> int:
    """How many of what was queued are there, all before all others; bytes are right."""
    found = []
    for key in promises.queued:
        try:
            entry = bytes(await simulated.storage.read(*key))
        except (NoSuchEntry, NoSuchLedger):
            found.append(False)
        else:
            assert entry == make_entry(*key, payload_of(key), key[1] - 1)
            found.append(True)
    count = sum(found)
    assert all(found[:count]), "not a prefix"
    return count


@pytest.mark.parametrize("aftermath", Aftermath)
async def test_after_a_crash_at_any_point_a_prefix_is_left(
    aftermath: Aftermath, autojump_clock: trio.testing.MockClock
) -> None:
    whole = storage_on(CrashDisk(), CrashingKeyValue())
    await workload(whole, Promises())
    assert whole.disk.steps > 60
    lost = 0
    for crash_at in range(1, whole.disk.steps + 1, stride(ci=7)):
        rng = random.Random(crash_at)
        disk, pairs, promises = (
            CrashDisk(rng=rng, crash_at=crash_at),
            CrashingKeyValue(),
            Promises(),
        )
        simulated = storage_on(disk, pairs)
        try:
            await workload(simulated, promises)
        except* PowerLost:
            pass
        kept = CrashingKeyValue(
            pairs.after_crash(rng.randint(0, pairs.unflushed)).items(b"", b"\xff" * 20)
        )
        successor = storage_on(disk.after_crash(aftermath), kept)
        async with successor.running():
            count = await survivors(successor, promises)
            assert count >= promises.forced, crash_at
            lost += count < promises.accepted
            for ledger in promises.fenced:
                state = successor.storage.state(ledger)
                assert state is not None
                assert state.is_fenced
            assert successor.storage.statistics().entry_logs_missing == 0
            add(successor, (9, 0), Promises())
            await successor.settle()
    # If nothing acknowledged was ever lost with the power, nothing was tested.
    assert (lost == 0) == (aftermath is Aftermath.KEPT)
