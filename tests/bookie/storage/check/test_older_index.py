"""An index older than the entry logs: what it does not know is not what a crash left over.

The story has several logs and a compaction, so that logs that only the right index knows hold
entries that lie nowhere else. Whatever mix of index, mark and journals is brought back, a start
removes no log that is needed, and what an ordinary crash leaves is removed at the next start.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import pytest

from bookie.core.integrity_state import IntegrityStage, IntegrityState
from bookie.storage.entry_log.entry_logs import STRAY_SUFFIX
from bookie.storage.index.index import Index
from bookie.storage.integrity_state import write_integrity_state
from bookie.storage.journal.end_marker import read_end_marker
from ledger.errors import BookieIoError, LedgerError
from tests.bookie.storage.check.test_bookie import bad, checked, payload_of
from tests.bookie.storage.check.test_index_rebuild import rebuilt
from tests.bookie.storage.garbage.test_compactor import OPTIONS, collect, logs
from tests.bookie.storage.memory_disk import MemoryDisk
from tests.bookie.storage.simulated_storage import SimulatedStorage, is_crashing
from tests.bookie.storage.test_damage import INDEX, MARK, Kept, begun, kept_of


class Scenario(NamedTuple):
    simulated: SimulatedStorage
    now: Kept
    ages: list[Kept]
    """As it was at each checkpoint; after the fourth a ledger was deleted, and
    what lived beside it was moved."""
    journals: dict[str, bytes]
    """Every file that there ever was, as it was last."""


async def _scenario() -> Scenario:
    simulated, ages = SimulatedStorage(options=OPTIONS), []
    journals: dict[str, bytes] = {}

    def note() -> Kept:
        kept = kept_of(simulated)
        journals.update({name: data for name, data in kept.files.items() if "journal/0" in name})
        return kept

    async with simulated.running():
        for i in range(40):
            for ledger in (1, 2, 3):
                simulated.add(ledger, i, payload_of(ledger, i, 100))
            await simulated.settle()
            note()
            if i % 5 == 4:
                await simulated.storage.checkpoint()
                ages.append(note())
                if i == 19:
                    simulated.deleted[2] = None
                    await collect(simulated)
            simulated.acked = {key: one for key, one in simulated.acked.items() if key[0] != 2}
    return Scenario(simulated, kept_of(simulated), ages, journals)


async def _reads(simulated: SimulatedStorage) -> set[tuple[int, int]]:
    """What is read; the rest are I/O errors, and nothing is denied."""
    read = set()
    for key, entry in simulated.acked.items():
        try:
            assert bytes(await simulated.storage.read(*key)) == entry
        except BookieIoError:
            continue
        read.add(key)
    return read


async def _refusal(simulated: SimulatedStorage) -> str:
    """ "" if it starts."""
    try:
        await simulated.storage.start()
    except LedgerError as error:
        return str(error)
    return ""


def _strays(simulated: SimulatedStorage) -> list[str]:
    return sorted(name for name in simulated.disk.names if name.endswith(STRAY_SUFFIX))


async def test_a_start_that_is_refused_leaves_every_entry_log() -> None:
    scenario = await _scenario()
    refused = 0
    older = [None, *range(0, len(scenario.ages) - 1, 2)]
    for index, mark in product(older, repeat=2):
        pairs = {} if index is None else scenario.ages[index].pairs[INDEX]
        marked = None if mark is None else scenario.ages[mark].files[MARK]
        kept = scenario.now.indexed(pairs).having(MARK, marked)
        simulated = await begun(kept, scenario.simulated)
        before = logs(simulated)
        refusal = await _refusal(simulated)
        if refusal:
            refused += 1
            assert "Cure: " in refusal
            assert logs(simulated) == before, (index, mark, refusal)
            left = kept_of(simulated)
            right = left.indexed(scenario.now.pairs[INDEX]).having(MARK, scenario.now.files[MARK])
            again = await begun(right, scenario.simulated)
            await again.storage.start()
            await again.check()
    assert refused > 5


async def test_copies_that_only_the_right_index_knew_are_set_aside_and_come_back() -> None:
    """With all journals still there the start succeeds. What the older index points to was moved
    and removed; the copies are in logs it does not know."""
    scenario = await _scenario()
    old = scenario.ages[3]
    kept = scenario.now.indexed(old.pairs[INDEX]).having(MARK, old.files[MARK])
    kept = Kept({**kept.files, **scenario.journals}, kept.pairs)
    simulated = await begun(kept, scenario.simulated)
    before = logs(simulated)
    async with simulated.running():
        gone = simulated.acked.keys() - await _reads(simulated)
        assert gone  # their logs were compacted away
        strays = _strays(simulated)
        [detail] = [one.details() for one in simulated.storage.directories]
        assert detail.storage.entry_logs_stray == len(strays) > 0
        for name in strays:
            log = name.removesuffix(STRAY_SUFFIX)
            assert len(simulated.disk.names[name].data) == before[log]
        assert all(name.removesuffix(STRAY_SUFFIX) in before for name in strays)
    assert any(finding.path in strays for finding in bad(await checked(simulated)))
    # The cure: they get their names back, and the index is made again.
    for name in strays:
        simulated.disk.names[name.removesuffix(STRAY_SUFFIX)] = simulated.disk.names.pop(name)
    assert (await rebuilt(simulated)).left_out == []
    successor = simulated.reopened()
    async with successor.running():
        await successor.check()
        assert not _strays(successor)


async def test_a_new_log_never_takes_the_name_of_one_set_aside() -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        simulated.add(1, 0, payload_of(1, 0))
        await simulated.settle()
        await simulated.storage.checkpoint()
    simulated.disk.names[f"ledgers/{9:016x}.log{STRAY_SUFFIX}"] = simulated.disk.names[
        next(iter(logs(simulated)))
    ]
    successor = simulated.reopened()
    async with successor.running():
        successor.add(1, 1, payload_of(1, 1))
        await successor.settle()
        await successor.storage.checkpoint()
        assert list(logs(successor))[-1] == f"ledgers/{10:016x}.log"


async def _left_by_a_crash(simulated: SimulatedStorage) -> SimulatedStorage:
    """Killed in a checkpoint, after it wrote a log and before the index knew."""

    async def checkpoint(crashing: SimulatedStorage) -> None:
        async with crashing.running():
            for i in range(5):
                crashing.add(8, len(crashing.acked) + i, payload_of(8, len(crashing.acked) + i))
            await crashing.settle()
            crashing.disk.crash_at = crashing.disk.steps + 3
            await crashing.storage.checkpoint()

    known = Index(simulated.pairs[INDEX]).log_ids()
    assert await is_crashing(checkpoint, simulated)
    disk = MemoryDisk()
    disk.names = dict(simulated.disk.names)
    simulated.disk = disk
    assert len(logs(simulated)) > len(
        [one for one in known if f"ledgers/{one:016x}.log" in disk.names]
    )
    return simulated.reopened()


async def test_what_a_crash_left_is_removed_before_anything_is_written() -> None:
    """Even if every start is killed, no more than the last one's is there."""
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        simulated.add(1, 0, payload_of(1, 0))
        await simulated.settle()
        await simulated.storage.checkpoint()
    crashed = await _left_by_a_crash(simulated.reopened())
    [stray] = [name for name in logs(crashed) if not name.endswith("1.log")]
    async with crashed.running():
        assert stray not in logs(crashed)
        assert not _strays(crashed)
        await crashed.check()


async def test_a_log_that_is_missing_keeps_what_a_crash_left_once_not_for_ever() -> None:
    """It looks like an older index, so existing data is kept the first time. The
    index remembers that, and later crashes leave nothing behind."""
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        simulated.add(1, 0, payload_of(1, 0))
        await simulated.settle()
        await simulated.storage.checkpoint()
    lost = next(iter(logs(simulated)))
    crashed = await _left_by_a_crash(simulated.reopened())
    inode = crashed.disk.names.pop(lost)
    del crashed.acked[1, 0]
    again = crashed.reopened()
    async with again.running():
        await again.check()
        strays = _strays(again)
        assert len(strays) == 1
    crashed = await _left_by_a_crash(again.reopened())
    async with crashed.running():
        assert _strays(crashed) == strays
        await crashed.check()
        # It may reappear: then it is a log like any other.
    crashed.disk.names[lost] = inode
    back = crashed.reopened()
    async with back.running():
        assert Index(back.pairs[INDEX]).logs_set_aside() == {}


@pytest.mark.parametrize("sign", ["a lost end", "a doubt"])
async def test_where_something_is_lost_what_a_crash_left_is_kept(sign: str) -> None:
    """A journal whose end is gone does not have what the log has that its checkpoint wrote."""
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        simulated.add(1, 0, payload_of(1, 0))
        await simulated.settle()
        await simulated.storage.checkpoint()
    crashed = await _left_by_a_crash(simulated.reopened())
    stray = list(logs(crashed))[-1]
    if sign == "a doubt":
        write_integrity_state(
            crashed.pairs[INDEX], IntegrityState(IntegrityStage.LEDGERS_UNKNOWN, "why not")
        )
    else:
        end = await read_end_marker(crashed.disk, "journal")
        assert end is not None
        name = f"journal/{end.file_id:016x}.journal"
        data = crashed.disk.names[name].data
        data[end.offset - 4096 :] = bytes(len(data) - end.offset + 4096)
    again = crashed.reopened()
    await again.storage.start()
    assert _strays(again) == [stray + STRAY_SUFFIX]
    assert stray not in logs(again)
    again.storage.close()


async def test_an_empty_journal_vouches_for_nothing() -> None:
    """An empty index, no mark, and journals without a frame: then the logs are all there is."""
    scenario = await _scenario()
    files = {
        name: data
        for name, data in scenario.now.files.items()
        if name.startswith("ledgers/") and name != MARK
    }
    simulated = await begun(Kept(files, {INDEX: {}}), scenario.simulated)
    before = logs(simulated)
    await simulated.storage.start()
    assert {name.removesuffix(STRAY_SUFFIX) for name in _strays(simulated)} == before.keys()
