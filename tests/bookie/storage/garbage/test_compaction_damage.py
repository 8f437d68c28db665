"""A damaged entry log is set aside: what is whole in it is read, the other logs are collected."""

from __future__ import annotations

import random

import pytest

from bookie.core.compaction import CompactionKind
from bookie.storage.index.index import PlacedRun
from bookie.storage.metrics import GarbageCollectionReport
from ledger.errors import BookieIoError
from tests.bookie.storage.garbage.test_compactor import OPTIONS, deleted, fill, logs, statistics
from tests.bookie.storage.simulated_storage import SimulatedStorage

MINOR, MAJOR = CompactionKind.MINOR, CompactionKind.MAJOR


async def _filled(simulated: SimulatedStorage) -> None:
    await fill(simulated)
    # Ledger 6 lies in the last log only, beside what is deleted: so it is sealed, and sparse.
    simulated.add(1, 90, b"x" * 1000)
    simulated.add(6, 0, b"six")
    await simulated.settle()
    await simulated.storage.checkpoint()
    simulated.deleted.update(dict.fromkeys((1, 2, 3)))


async def _collect(simulated: SimulatedStorage) -> GarbageCollectionReport:
    [collected] = await simulated.storage.collect_garbage(deleted(simulated), is_forced=True)
    return collected


async def _unreadable(simulated: SimulatedStorage) -> list[tuple[int, int]]:
    """Entries that give an I/O error; all others are as they were written."""
    found = []
    for (ledger, entry_id), entry in simulated.acked.items():
        if ledger in simulated.deleted:
            continue
        try:
            assert bytes(await simulated.storage.read(ledger, entry_id)) == entry
        except BookieIoError:
            found.append((ledger, entry_id))
    return sorted(found)


def _runs(simulated: SimulatedStorage, log: str) -> list[PlacedRun]:
    """Living runs in a log, in the order of the file."""
    index = simulated.storage.directories[0]._index
    log_id = int(log.removeprefix("ledgers/").removesuffix(".log"), 16)
    runs = [run for ledger in (4, 5, 6) for run in index.runs(ledger) if run.log_id == log_id]
    return sorted(runs, key=lambda run: run.offset)


def _forget_memory(simulated: SimulatedStorage) -> None:
    """So that reads go to the disk."""
    for ledger in range(1, 7):
        simulated.storage.directories[0]._read_cache.drop_ledger(ledger)


@pytest.mark.parametrize("damage", ["body", "entry ids", "head", "truncated", "missing"])
async def test_one_damaged_log_stops_no_other(damage: str) -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        await _filled(simulated)
        before = logs(simulated)
        victim = next(
            log for log in before if len({run.ledger_id for run in _runs(simulated, log)}) > 1
        )
        runs = _runs(simulated, victim)
        last = runs[-1]
        names = simulated.disk.names
        lost: list[tuple[int, int]] = []
        if damage == "body":
            names[victim].data[last.offset + last.lengths[0] - 1] ^= 1
            lost = [(last.ledger_id, last.first)]
        elif damage == "entry ids":
            names[victim].data[last.offset] ^= 1
            lost = [(last.ledger_id, last.first)]
        elif damage == "head":
            names[victim].data[last.offset - 4 * len(last.lengths) - 1] ^= 1
        elif damage == "truncated":
            del names[victim].data[last.offset + 1 :]
            lost = [(last.ledger_id, last.first + i) for i in range(len(last.lengths))]
        else:
            del names[victim]
            simulated.storage.directories[0]._logs.close()
            lost = [(run.ledger_id, run.first + i) for run in runs for i in range(len(run.lengths))]
        _forget_memory(simulated)

        collected = await _collect(simulated)
        [reported] = collected.set_aside
        assert reported.startswith(victim + ": ")
        assert collected.ended_early == ""
        # All the others were compacted, and the damaged one is where it was.
        after = logs(simulated)
        assert not (before.keys() - {victim}) & after.keys()
        assert (victim in after) == (damage != "missing")
        assert collected.logs_compacted + collected.logs_removed == len(before) - 1
        assert statistics(simulated).logs_set_aside == 1
        assert await _unreadable(simulated) == sorted(lost)

        # It is reported once; a damaged entry stays an I/O error, never an absence.
        again = await _collect(simulated)
        assert again.set_aside == ()
        _forget_memory(simulated)
        assert await _unreadable(simulated) == sorted(lost)
    successor = simulated.reopened()
    async with successor.running():
        assert statistics(successor).logs_set_aside == 1
        assert await _unreadable(successor) == sorted(lost)
        # When the last ledger that has entries in it is deleted, it goes like any other.
        successor.deleted.update(dict.fromkeys((4, 5, 6)))
        await _collect(successor)
        assert logs(successor) == {}
        assert statistics(successor).logs_set_aside == 0


async def test_a_damaged_file_header_harms_nobody() -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        await _filled(simulated)
        before = logs(simulated)
        for name in before:
            simulated.disk.names[name].data[:32] = bytes(32)
        collected = await _collect(simulated)
        assert collected.set_aside == ()
        assert not before.keys() & logs(simulated).keys()
        await simulated.check()


async def test_a_log_that_can_be_read_again_is_compacted_after_all() -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        await _filled(simulated)
        victim = next(iter(logs(simulated)))
        data = simulated.disk.names[victim].data
        offset = _runs(simulated, victim)[-1].offset + 20
        data[offset] ^= 1
        assert len((await _collect(simulated)).set_aside) == 1
        data[offset] ^= 1
        [minor] = await simulated.storage.collect_garbage(
            deleted(simulated), compaction=MINOR, is_forced=True
        )
        assert minor.set_aside == ()
        await _collect(simulated)
        assert victim not in logs(simulated)
        assert statistics(simulated).logs_set_aside == 0
        await simulated.check()


@pytest.mark.parametrize("kind", [b"G", b"E"])
async def test_a_damaged_record_of_the_index_keeps_its_logs_and_no_others(kind: bytes) -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        await _filled(simulated)
        before = logs(simulated)
        pairs = simulated.pairs["ledgers/index"]
        if kind == b"G":
            [(key, value), *_] = pairs.items(b"G", b"H")
            kept = {next(iter(before))}
        else:
            key, value = next(
                (key, value)
                for key, value in pairs.items(b"E", b"F")
                if int.from_bytes(key[1:9], "big") == 6
            )
            kept = {f"ledgers/{value[:8].hex()}.log"}
        pairs.write([(key, value[:-1])])
        collected = await _collect(simulated)
        assert collected.set_aside == ()  # the log itself is as it was
        assert ("bad record of entry log" in collected.index_problem) == (kind == b"G")
        assert before.keys() & logs(simulated).keys() == kept
        assert await _unreadable(simulated) == ([] if kind == b"G" else [(6, 0)])


@pytest.mark.parametrize("seed", range(40))
async def test_whatever_happens_to_a_log_no_entry_is_ever_denied(seed: int) -> None:
    """Bit flips, zeros, cuts and swapped blocks anywhere in one log, before a compaction."""
    rng = random.Random(seed)
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        await _filled(simulated)
        before = logs(simulated)
        victim = rng.choice(list(before))
        data = simulated.disk.names[victim].data
        begin = rng.randrange(len(data))
        size = rng.randint(1, 200)
        match rng.randrange(4):
            case 0:
                data[begin] ^= 1 << rng.randrange(8)
            case 1:
                data[begin : begin + size] = bytes(len(data[begin : begin + size]))
            case 2:
                del data[begin:]
            case _:
                other = rng.randrange(len(data))
                size = min(size, len(data) - max(begin, other))
                data[begin : begin + size] = data[other : other + size]
        _forget_memory(simulated)
        runs = _runs(simulated, victim)
        collected = await _collect(simulated)
        assert len(collected.set_aside) <= 1
        assert not (before.keys() - {victim}) & logs(simulated).keys()
        _forget_memory(simulated)
        in_victim = {
            (run.ledger_id, run.first + i) for run in runs for i in range(len(run.lengths))
        }
        for (ledger, entry_id), entry in simulated.acked.items():
            if ledger in simulated.deleted:
                continue
            try:
                got = bytes(await simulated.storage.read(ledger, entry_id))
            except BookieIoError:
                assert (ledger, entry_id) in in_victim
                continue
            assert got == entry or (ledger, entry_id) in in_victim
            if victim not in logs(simulated):  # nothing wrong was ever moved
                assert got == entry
