"""Every sync of a workload fails once: of journal, entry logs, index, mark and directories.

The bookie stops, unless it was the sync of a file that holds nothing yet. What the sync should have
written may be there or not, be read as if it were and be gone later. Nothing that was acknowledged
depends on it: not when the process starts again, nor when power is lost then.
"""

from __future__ import annotations

import itertools
import random

import pytest
import trio.testing

from bookie.core.journal import JournalFailed
from bookie.storage.options import StorageFailed
from bookie.testing.scheduler import seeded_trio
from tests.bookie.storage.crash_disk import CrashDisk
from tests.bookie.storage.simulated_storage import is_crashing
from tests.bookie.storage.test_crash_points import (
    Counts,
    _after_crash,
    _check_after,
    _simulated,
    _workload,
)
from tests.crash_counts import Aftermath
from tests.effort import stride


@pytest.mark.parametrize("counts", [(1, 1), (2, 3)])
async def test_a_failed_sync_of_anything_loses_nothing_acknowledged(
    counts: Counts, capsys: pytest.CaptureFixture[str], autojump_clock: trio.testing.MockClock
) -> None:
    tried = stopped = 0
    step = stride(ci=11)
    for sync in itertools.count(0, step):
        rng = random.Random(sync)
        disk = CrashDisk(rng=rng)
        disk.sync_fails_at = sync + 1
        simulated = _simulated(disk, counts)
        try:
            with seeded_trio(sync):  # which sync is the nth does not depend on chance
                await _workload(simulated)
        except* (JournalFailed, StorageFailed, OSError):
            stopped += 1
        if disk.syncs_tried < disk.sync_fails_at:
            break
        tried += 1
        for aftermath in Aftermath:
            successor = _after_crash(simulated, rng, aftermath=aftermath)
            await _check_after(successor)
            await _check_after(_after_crash(successor, rng, aftermath=Aftermath.DROPPED))
            # Or soon after the start, when the marks are still where the replay ended.
            successor = _after_crash(simulated, rng, rng.randint(1, 25), aftermath)
            await is_crashing(_check_after, successor)
            await _check_after(_after_crash(successor, rng, aftermath=Aftermath.DROPPED))
    with capsys.disabled():
        print(f" {tried} syncs failed, {stopped} stopped the bookie ", end="")
    assert stopped * step > 80
    assert stopped <= tried
    assert stopped > 0.8 * tried
