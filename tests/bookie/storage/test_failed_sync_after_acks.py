"""A sync fails of a journal that acknowledged before it: the next start of the bookie may find less
than was acknowledged, although power was never lost."""

from __future__ import annotations

import dataclasses
import random

import pytest
import trio
import trio.testing

from bookie.core.integrity_state import IntegrityStage
from bookie.core.journal import FlushPolicy, JournalFailed
from bookie.startup.power_loss import noticing_power_loss
from bookie.testing import small_config
from bookie.testing.memory_key_value import MemoryKeyValue
from ledger.errors import NoSuchEntry
from tests.bookie.core.test_caches import KEY, make_frame
from tests.bookie.storage.crash_disk import CrashDisk
from tests.bookie.storage.simulated_storage import SimulatedStorage
from tests.crash_counts import Aftermath

FLUSH = FlushPolicy(flush_interval_ms=1e9)
CONFIG = dataclasses.replace(
    small_config("one", random.Random(0)),
    journal_sync_data=False,
    journal_directories=("journal",),
    ledger_directories=("ledgers",),
)


def _simulated(disk: CrashDisk, simulated: SimulatedStorage | None = None) -> SimulatedStorage:
    pairs = {"ledgers/index": MemoryKeyValue()}
    return SimulatedStorage(disk, simulated.pairs if simulated is not None else pairs, flush=FLUSH)


async def _acknowledge(simulated: SimulatedStorage, count: int) -> int:
    """Adds to a ledger as a connection does; how many were acknowledged."""
    storage, acknowledged = simulated.storage, 0

    def accepted() -> None:
        nonlocal acknowledged
        acknowledged += 1

    storage.create(1, KEY)
    journal = storage.journal_of(1)
    for entry_id in range(count):
        frame = make_frame(1, entry_id, b"x" * 600, -1)
        storage.directory_of(1).cache.put_frame(frame)
        journal.queue(frame, on_accepted=accepted)
        await trio.testing.wait_all_tasks_blocked()
    return acknowledged


async def _is_in_doubt(simulated: SimulatedStorage) -> bool:
    """Starts again on the machine that is still up."""
    async with (
        simulated.running(),
        noticing_power_loss(CONFIG, simulated.disk, simulated.storage, "boot"),
    ):
        doubt = simulated.storage.directories[0].integrity.state
        assert doubt is None or doubt.stage is IntegrityStage.LEDGERS_UNKNOWN
        assert doubt is None or "sync" in doubt.reason
        return doubt is not None


async def _lost(simulated: SimulatedStorage, count: int) -> int:
    lost = 0
    for entry_id in range(count):
        try:
            await simulated.storage.read(1, entry_id)
        except NoSuchEntry:
            lost += 1
    return lost


async def test_what_a_failed_sync_may_have_lost_is_in_doubt() -> None:
    lost = 0
    for seed in range(10):
        disk = CrashDisk(rng=random.Random(seed))
        simulated = _simulated(disk)
        with pytest.RaisesGroup(JournalFailed, flatten_subgroups=True):
            async with (
                simulated.running(),
                noticing_power_loss(CONFIG, disk, simulated.storage, "boot"),
            ):
                assert await _acknowledge(simulated, 8) == 8
                disk.sync_fails_at = disk.syncs_tried + 1
                simulated.storage.journals[0].when_durable(lambda: pytest.fail("it is not"))
                await trio.sleep_forever()
        successor = _simulated(disk.after_crash(Aftermath.KEPT), simulated)
        async with successor.running():
            lost += await _lost(successor, 8)
        assert await _is_in_doubt(_simulated(disk.after_crash(Aftermath.KEPT), simulated))
    assert lost, "nothing was ever lost: nothing was tested"


async def test_a_sync_that_fails_at_an_orderly_end_is_a_doubt() -> None:
    disk = CrashDisk()
    simulated = _simulated(disk)
    async with simulated.running(), noticing_power_loss(CONFIG, disk, simulated.storage, "boot"):
        assert await _acknowledge(simulated, 8) == 8
        disk.sync_fails_at = disk.syncs_tried + 1
    assert await _is_in_doubt(_simulated(disk.after_crash(Aftermath.KEPT), simulated))


@pytest.mark.parametrize("is_orderly", [False, True])
async def test_without_a_failure_there_is_no_doubt(is_orderly: bool) -> None:
    disk = CrashDisk()
    simulated = _simulated(disk)
    async with simulated.running(), noticing_power_loss(CONFIG, disk, simulated.storage, "boot"):
        assert await _acknowledge(simulated, 8) == 8
        if not is_orderly:
            found = disk.after_crash(Aftermath.KEPT)
    if is_orderly:
        found = disk.after_crash(Aftermath.KEPT)
    assert not await _is_in_doubt(_simulated(found, simulated))
