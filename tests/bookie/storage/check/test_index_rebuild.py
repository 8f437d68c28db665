"""An index made again from entry logs has what they have, and knows that it may not know all."""

from __future__ import annotations

import random

import pytest

from bookie.core.integrity import CheckReport, Severity
from bookie.core.integrity_state import IntegrityStage
from bookie.core.marks import decode_marks
from bookie.storage.check.index_rebuild import REASON, IndexRebuild, Rebuilt
from bookie.storage.index.index import Index
from bookie.storage.index.key_value import KeyValue
from bookie.storage.integrity_state import read_integrity_state
from bookie.testing.memory_key_value import MemoryKeyValue
from ledger.errors import BookieIoError, UnknownLedgerState
from tests.bookie.core.test_caches import KEY
from tests.bookie.storage.check.test_bookie import PAIRS, bad, checked, filled, payload_of
from tests.bookie.storage.garbage.test_compactor import OPTIONS, collect, logs
from tests.bookie.storage.simulated_storage import SimulatedStorage, numbered


class Stopped(Exception):
    """The tool was killed."""


class BottleStores:
    """Stores that are entries of a storage's table. `renames_left`: then the tool is killed."""

    def __init__(self, pairs: dict[str, MemoryKeyValue], renames_left: int = 9) -> None:
        self.pairs = pairs
        self.renames_left = renames_left

    def open(self, path: str, *, is_read_only: bool) -> KeyValue:
        if is_read_only and path not in self.pairs:
            raise BookieIoError(f"index {path} is not there")
        return self.pairs.setdefault(path, MemoryKeyValue())

    async def names(self, directory: str) -> list[str]:
        return [
            path.removeprefix(directory + "/") for path in self.pairs if path.startswith(directory)
        ]

    async def remove(self, path: str) -> None:
        self.pairs.pop(path, None)

    async def rename(self, old: str, new: str) -> None:
        if not self.renames_left:
            raise Stopped
        self.renames_left -= 1
        self.pairs[new] = self.pairs.pop(old).after_crash()


async def rebuilt(simulated: SimulatedStorage, directory: str = "ledgers") -> Rebuilt:
    return await IndexRebuild(simulated.disk, directory, BottleStores(simulated.pairs)).run()


def _is_in_doubt_and_else_whole(report: CheckReport, directories: int = 1) -> None:
    indexes = [f"{path}/index" for path in numbered("ledgers", directories)]
    assert [finding.path for finding in bad(report)] == indexes
    for finding in bad(report):
        assert finding.severity is Severity.DOUBT
        assert REASON in finding.what


@pytest.mark.parametrize("is_old_readable", [True, False])
@pytest.mark.parametrize("directories", [1, 3])
async def test_every_entry_is_back(directories: int, is_old_readable: bool) -> None:
    simulated = SimulatedStorage(options=OPTIONS, directories=directories)
    async with simulated.running():
        await filled(simulated)
        # Added again: the newer copy must win, wherever the older one lies.
        simulated.add(1, 3, payload_of(1, 3, lac=2), lac=2, is_recovery=True)
        await simulated.settle()
        await simulated.storage.checkpoint()
    for path in numbered("ledgers", directories):
        if not is_old_readable:
            del simulated.pairs[f"{path}/index"]
        done = await rebuilt(simulated, path)
        assert done.left_out == []
        assert (done.old_index != "") == is_old_readable
    report = await checked(simulated)
    _is_in_doubt_and_else_whole(report, directories)
    successor = simulated.reopened()
    async with successor.running():
        await successor.check()
        for ledger_id in range(1, 6):
            state = successor.storage.state(ledger_id)
            assert state is not None
            assert state.is_limbo
            assert state.is_fenced
            assert (state.master_key == KEY) == is_old_readable
            with pytest.raises(UnknownLedgerState):
                await successor.storage.read(ledger_id, 99)
        state = successor.storage.state(1)
        assert state is not None
        assert state.lac >= 2


@pytest.mark.parametrize("seed", range(30))
async def test_it_is_so_after_compactions_and_deletions(seed: int) -> None:
    rng = random.Random(seed)
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        for _ in range(rng.randrange(2, 5)):
            for _ in range(30):
                ledger, entry = rng.randrange(1, 7), rng.randrange(30)
                if ledger not in simulated.deleted:
                    lac = rng.randrange(-1, 5)
                    payload = payload_of(ledger, entry, 10 + entry, lac)
                    simulated.add(ledger, entry, payload, lac=lac, is_recovery=True)
                    await simulated.settle()
            await simulated.storage.checkpoint()
            simulated.deleted[rng.randrange(1, 7)] = None
            await collect(simulated)
    if rng.random() < 0.5:
        del simulated.pairs[PAIRS]
    assert (await rebuilt(simulated)).left_out == []
    _is_in_doubt_and_else_whole(await checked(simulated))
    successor = simulated.reopened()
    async with successor.running():
        await successor.check()


@pytest.mark.parametrize("seed", range(80))
async def test_damage_costs_no_more_than_what_was_damaged(seed: int) -> None:
    rng = random.Random(seed)
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        await filled(simulated)
    victim = rng.choice(list(logs(simulated)))
    log_id = int(victim.removeprefix("ledgers/").removesuffix(".log"), 16)
    index = Index(simulated.pairs[PAIRS])
    at_risk = {
        (ledger, entry)
        for ledger in range(1, 6)
        for run in index.runs(ledger)
        if run.log_id == log_id
        for entry in range(run.first, run.last + 1)
    }
    data = simulated.disk.names[victim].data
    at = rng.randrange(32, len(data))
    data[at] ^= 1 << rng.randrange(8)
    del simulated.pairs[PAIRS]
    done = await rebuilt(simulated)
    assert done.left_out
    assert all(victim in line for line in done.left_out)
    successor = simulated.reopened()
    lost = set()
    async with successor.running():
        for key, entry in successor.acked.items():
            try:
                assert bytes(await successor.storage.read(*key)) == entry
            except UnknownLedgerState:
                lost.add(key)
    assert lost <= at_risk


async def test_a_lost_log_makes_its_entries_unknown_not_absent() -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        await filled(simulated)
    del simulated.disk.names[next(iter(logs(simulated)))]
    del simulated.pairs[PAIRS]
    await rebuilt(simulated)
    doubt = read_integrity_state(simulated.pairs[PAIRS])
    assert doubt is not None
    assert doubt.stage is IntegrityStage.LEDGERS_UNKNOWN
    successor = simulated.reopened()
    unknown = 0
    async with successor.running():
        for key, entry in successor.acked.items():
            try:
                assert bytes(await successor.storage.read(*key)) == entry
            except UnknownLedgerState:
                unknown += 1
    assert unknown > 0


@pytest.mark.parametrize("renames", [0, 1])
async def test_killed_while_the_new_index_takes_its_place(renames: int) -> None:
    """The old index serves, or the bookie refuses; and the tool can be run again."""
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        await filled(simulated)
    stores = BottleStores(simulated.pairs, renames)
    with pytest.raises(Stopped):
        await IndexRebuild(simulated.disk, "ledgers", stores).run()
    if renames:
        simulated.pairs[PAIRS] = MemoryKeyValue()  # what a start would make
        with pytest.raises(BookieIoError, match="rebuild-index"):
            await simulated.reopened().storage.start()
    assert (await rebuilt(simulated)).left_out == []
    successor = simulated.reopened()
    async with successor.running():
        await successor.check()


async def test_a_damaged_mark_is_refused_and_nothing_changed() -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        await filled(simulated)
    simulated.disk.names["ledgers/lastmark"].data[9] ^= 1
    before = dict(simulated.pairs)
    with pytest.raises(BookieIoError, match="lastmark: wrong checksum"):
        await rebuilt(simulated)
    assert simulated.pairs == before


async def test_the_number_satisfies_the_mark() -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        await filled(simulated)
    await rebuilt(simulated)
    marked = decode_marks(bytes(simulated.disk.names["ledgers/lastmark"].data)).checkpoint_no
    assert Index(simulated.pairs[PAIRS]).checkpoint_no == marked > 0
