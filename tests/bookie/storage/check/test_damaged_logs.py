"""An index made again from damaged entry logs: what was left out of them stays where it is.

The new index does not know which ledgers lie behind a damaged head. So no collection and no
compaction may remove such a log, whatever the index says of it: only an operator does.
"""

from __future__ import annotations

import errno

import pytest

from bookie.storage.index.index import Index
from bookie.storage.index.key_value import KeyValue
from ledger.errors import LedgerError
from tests.bookie.storage.check.test_bookie import PAIRS, checked, payload_of
from tests.bookie.storage.check.test_index_rebuild import rebuilt
from tests.bookie.storage.garbage.test_compactor import OPTIONS, collect, logs, statistics
from tests.bookie.storage.memory_disk import MemoryDisk, MemoryFile
from tests.bookie.storage.simulated_storage import SimulatedStorage

HEAD = 32
"""Where the first record of a log begins."""


async def _filled() -> SimulatedStorage:
    """Of ledgers 1 to 3 there are records in each of several logs."""
    simulated = SimulatedStorage(options=OPTIONS, checkpoints_when_due=False)
    async with simulated.running():
        for i in range(20):
            for ledger in (1, 2, 3):
                simulated.add(ledger, i, payload_of(ledger, i, 100))
            await simulated.settle()
            if i % 5 == 4:
                await simulated.storage.checkpoint()
    return simulated


def _heads(pairs: KeyValue, log_id: int) -> list[int]:
    """Where the records of a log begin, which are all alive."""
    runs = [run for ledger in (1, 2, 3) for run in Index(pairs).runs(ledger)]
    return sorted(r.offset - 40 - 4 * len(r.lengths) for r in runs if r.log_id == log_id)


def _id_of(name: str) -> int:
    return int(name.removeprefix("ledgers/").removesuffix(".log"), 16)


async def _readable(simulated: SimulatedStorage) -> set[tuple[int, int]]:
    found = set()
    for key, entry in simulated.acked.items():
        try:
            assert bytes(await simulated.storage.read(*key)) == entry
        except LedgerError:
            continue
        found.add(key)
    return found


@pytest.mark.parametrize("place", [0, 1, -1])
@pytest.mark.parametrize("dead", [(), (1,), (1, 2, 3)])
async def test_a_log_of_which_something_was_left_out_is_never_removed(
    place: int, dead: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    simulated = await _filled()
    victim = list(logs(simulated))[1]
    data = simulated.disk.names[victim].data
    at = _heads(simulated.pairs[PAIRS], _id_of(victim))[place] + 10
    data[at] ^= 1
    before = bytes(data)
    done = await rebuilt(simulated)
    assert [line for line in done.left_out if victim in line]
    successor = simulated.reopened()
    successor.acked = {}  # `collect` reads all that was promised, and something is lost now
    async with successor.running():
        [reported] = [one for one in caplog.messages if "something was left out" in one]
        assert "logs=1. Cure: " in reported
        successor.deleted.update(dict.fromkeys(dead))
        for _ in range(3):
            await collect(successor)
        assert bytes(successor.disk.names[victim].data) == before
        assert statistics(successor).logs_set_aside == 1
        [reason] = Index(successor.pairs[PAIRS]).logs_set_aside().values()
        assert "left out" in reason
        # What is whole and alive was moved nevertheless: nothing points into it any more.
        report = await checked(successor)
        assert any(
            finding.path == victim and "nothing in the index points into it" in finding.what
            for finding in report.findings
        )
    # What was damaged, a cable say, is right again: then so is everything.
    data[at] ^= 1
    assert not [line for line in (await rebuilt(successor)).left_out if victim in line]
    again = successor.reopened()
    again.acked = {key: one for key, one in simulated.acked.items() if key[0] not in dead}
    async with again.running():
        await again.check()


async def test_it_goes_when_an_operator_has_removed_the_file() -> None:
    simulated = await _filled()
    victim = list(logs(simulated))[1]
    simulated.disk.names[victim].data[HEAD + 10] ^= 1
    await rebuilt(simulated)
    successor = simulated.reopened()
    successor.acked = {}
    async with successor.running():
        await collect(successor)
        assert victim in logs(successor)
        del successor.disk.names[victim]
        await collect(successor)
        assert statistics(successor).logs_set_aside == 0
        assert _id_of(victim) not in Index(successor.pairs[PAIRS]).log_ids()


async def test_a_log_taken_as_a_whole_goes_as_ever() -> None:
    simulated = await _filled()
    assert (await rebuilt(simulated)).left_out == []
    successor = simulated.reopened()
    async with successor.running():
        successor.deleted.update(dict.fromkeys((1, 2, 3)))
        await collect(successor)
        assert logs(successor) == {}


SECTOR = 64
"""Logs are small here; a disk gives up on 4096 bytes."""


def _make_unreadable(monkeypatch: pytest.MonkeyPatch, name: str, begin: int, end: int) -> None:
    whole = MemoryFile.read

    async def read(self: MemoryFile, offset: int, size: int, *, drops_cache: bool = False) -> bytes:
        if self.path == name and offset < end and begin < offset + size:
            raise OSError(errno.EIO, "Input/output error", name)
        return await whole(self, offset, size, drops_cache=drops_cache)

    monkeypatch.setattr(MemoryFile, "read", read)
    monkeypatch.setattr("bookie.storage.check.index_rebuild.BLOCK_BYTES", SECTOR)


@pytest.mark.parametrize("part", ["head", "body", "all"])
async def test_a_sector_that_cannot_be_read_costs_what_lies_in_it(
    monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    simulated = await _filled()
    victim = list(logs(simulated))[1]
    size = len(simulated.disk.names[victim].data)
    pairs = simulated.pairs[PAIRS]
    [_, second, *_] = _heads(pairs, _id_of(victim))
    runs = [run for ledger in (1, 2, 3) for run in Index(pairs).runs(ledger)]
    [run] = [
        one for one in runs if one.log_id == _id_of(victim) and second < one.offset < second + 80
    ]
    in_victim = {
        (one.ledger_id, entry)
        for one in runs
        if one.log_id == _id_of(victim)
        for entry in range(one.first, one.last + 1)
        if part == "all" or one.offset >= run.offset
    }
    begin, end, lost = second + 4, second + 5, in_victim
    if part == "body":  # of the run's second entry, and of it alone
        begin = (run.offset + run.lengths[0]) // SECTOR * SECTOR + SECTOR
        end, lost = begin + 1, {(run.ledger_id, run.first + 1)}
    elif part == "all":
        begin, end = 0, size
    with monkeypatch.context() as broken:
        _make_unreadable(broken, victim, begin, end)
        done = await rebuilt(simulated)
    reported = [line for line in done.left_out if victim in line]
    assert any("[Errno 5]" in line for line in reported)
    assert len(reported) == len(done.left_out)
    successor = simulated.reopened()
    async with successor.running():
        assert await _readable(successor) == successor.acked.keys() - lost
        successor.deleted.update(dict.fromkeys((1, 2, 3)))
        await collect(successor)
        assert list(logs(successor)) == [victim]


async def test_a_log_that_cannot_be_opened_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = await _filled()
    victim = list(logs(simulated))[1]
    whole = MemoryDisk.open

    async def opened(
        self: MemoryDisk, path: str, *, is_new: bool = False, has_own_thread: bool = False
    ) -> MemoryFile:
        if path == victim:
            raise OSError(errno.EIO, "Input/output error", path)
        return await whole(self, path, is_new=is_new, has_own_thread=has_own_thread)

    with monkeypatch.context() as broken:
        broken.setattr(MemoryDisk, "open", opened)
        done = await rebuilt(simulated)
    [line] = done.left_out
    assert line.startswith(f"{victim}: it cannot be opened: [Errno 5]")
    successor = simulated.reopened()
    in_victim = {
        (run.ledger_id, entry)
        for ledger in (1, 2, 3)
        for run in Index(simulated.pairs[done.old_index]).runs(ledger)
        if run.log_id == _id_of(victim)
        for entry in range(run.first, run.last + 1)
    }
    async with successor.running():
        assert await _readable(successor) == successor.acked.keys() - in_victim
        successor.deleted.update(dict.fromkeys((1, 2, 3)))
        await collect(successor)
        assert list(logs(successor)) == [victim]
