"""Damage of each kind in each kind of file: the bookie starts, or refuses and destroys nothing.

Journals, marks, entry logs and index stores are removed, cut, zeroed, their blocks swapped, and
older versions of them brought back; exhaustively, block by block. Entries that were acknowledged
are never denied: where the journal lost its end, all that may have been there is in doubt. Flips of
bits are in test_check, RocksDB's own files in test_index_damage, cookies in test_cookies.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from bookie.testing.memory_key_value import MemoryKeyValue
from ledger.errors import (
    BookieIoError,
    LedgerError,
    NoSuchEntry,
    NoSuchLedger,
    UnknownLedgerState,
)
from tests.bookie.storage.check.test_bookie import bad, checked, payload_of
from tests.bookie.storage.garbage.test_compactor import OPTIONS
from tests.bookie.storage.memory_disk import MemoryDisk
from tests.bookie.storage.simulated_storage import SimulatedStorage

BLOCK = 4096
INDEX, MARK = "ledgers/index", "ledgers/lastmark"


class Kept(NamedTuple):
    """All that is on the disks."""

    files: dict[str, bytes]
    pairs: dict[str, dict[bytes, bytes]]

    def having(self, name: str, data: bytes | None) -> Kept:
        """With other bytes in a file, or without it."""
        files = {one: kept for one, kept in self.files.items() if one != name}
        return Kept(files if data is None else {**files, name: data}, self.pairs)

    def indexed(self, pairs: dict[bytes, bytes]) -> Kept:
        return Kept(self.files, {INDEX: pairs})


def kept_of(simulated: SimulatedStorage) -> Kept:
    return Kept(
        {name: bytes(inode.data) for name, inode in simulated.disk.names.items()},
        {path: dict(pairs.items(b"", b"\xff")) for path, pairs in simulated.pairs.items()},
    )


async def begun(kept: Kept, promised: SimulatedStorage) -> SimulatedStorage:
    """A process that finds `kept`, and must keep the promises; not started."""
    disk = MemoryDisk()
    for name, data in kept.files.items():
        await disk.replace_file(name, data)
    pairs = {path: MemoryKeyValue(found.items()) for path, found in kept.pairs.items()}
    return promised.promised_by(SimulatedStorage(disk, pairs, options=OPTIONS))


class Outcome(NamedTuple):
    refusal: str
    """"" if it started."""
    denied: frozenset[tuple[int, int]]
    left: Kept
    is_seen: bool
    """A check of the stopped bookie told of damage."""


async def outcome(kept: Kept, promised: SimulatedStorage) -> Outcome:
    simulated = await begun(kept, promised)
    is_seen = bool(bad(await checked(simulated)))
    try:
        await simulated.storage.start()
    except LedgerError as error:
        return Outcome(str(error), frozenset(), kept_of(simulated), is_seen)
    if any(one.integrity.state is not None for one in simulated.storage.directories):
        return Outcome(
            "", frozenset(), kept_of(simulated), is_seen
        )  # it serves nothing before it asked
    denied = set()
    for key in simulated.acked:
        try:
            await simulated.storage.read(*key)  # readers look at digests themselves
        except (NoSuchEntry, NoSuchLedger):
            denied.add(key)
        except (BookieIoError, UnknownLedgerState):
            pass
    return Outcome("", frozenset(denied), kept_of(simulated), is_seen)


class Scenario(NamedTuple):
    """`ages`: as it was at each checkpoint."""

    simulated: SimulatedStorage
    now: Kept
    ages: list[Kept]


async def _scenario() -> Scenario:
    """Two files of the journal are left: the mark lies in the first, with groups behind it."""
    simulated, ages = SimulatedStorage(options=OPTIONS), []
    async with simulated.running():
        for i in range(19):
            for ledger in (1, 2):
                simulated.add(ledger, i, payload_of(ledger, i))
            await simulated.settle()
            if i in (3, 9):
                await simulated.storage.checkpoint()
                ages.append(kept_of(simulated))
    return Scenario(simulated, kept_of(simulated), ages)


def journals(kept: Kept) -> list[str]:
    return sorted(name for name in kept.files if name.endswith(".journal"))


def _in_blocks(data: bytes, block: int) -> Iterator[tuple[str, bytes]]:
    size = len(data)
    for at in range(0, size, block):
        yield f"cut at {at}", data[:at]
        yield f"zeros from {at}", data[:at] + bytes(size - at)
        for blocks in (1, 2):
            end = min(at + blocks * block, size)
            yield f"zeros {at}..{end}", data[:at] + bytes(end - at) + data[end:]
        for other in range(0, at, block):
            swapped = bytearray(data)
            swapped[at : at + block] = data[other : other + block]
            swapped[other : other + block] = data[at : at + block]
            yield f"{other} and {at} swapped", bytes(swapped[:size])


def _damaged(scenario: Scenario) -> Iterator[tuple[str, str, Kept]]:
    """What was done, to which file, and what is there then."""
    now, ages = scenario.now, scenario.ages
    for name, data in now.files.items():
        yield "gone", name, now.having(name, None)
        is_journal = name.endswith(".journal") or "/spare-" in name
        block = BLOCK if is_journal else 512 if name.endswith(".log") else 4
        for what, damaged in _in_blocks(data, block):
            if damaged != data:
                yield what, name, now.having(name, damaged)
        for age, old in enumerate(ages):
            if old.files.get(name, data) != data:
                yield f"of age {age}", name, now.having(name, old.files[name])
    stores = [("empty", {}), *((f"of age {age}", old.pairs[INDEX]) for age, old in enumerate(ages))]
    for what, pairs in stores:
        damaged_index = now.indexed(pairs)
        yield what, INDEX, damaged_index
        yield f"{what}, no mark", INDEX, damaged_index.having(MARK, None)
        for age, old in enumerate(ages):
            marked = damaged_index.having(MARK, old.files[MARK])
            yield f"{what}, mark of age {age}", INDEX, marked


@pytest.mark.parametrize("every", [16, pytest.param(1, marks=pytest.mark.slow)])
async def test_it_starts_or_refuses_with_a_cure_and_denies_and_destroys_nothing(every: int) -> None:
    """`every`: tries each n-th kind of damage; all of them take minutes."""
    scenario = await _scenario()
    refused = reported = 0
    for what, name, kept in itertools.islice(_damaged(scenario), 0, None, every):
        found = await outcome(kept, scenario.simulated)
        reported += found.is_seen
        assert not found.denied, (what, name, sorted(found.denied)[:3])
        if found.refusal:
            refused += 1
            assert "Cure: " in found.refusal, (what, name)
            assert found.is_seen, (what, name, found.refusal)
            await _mended(scenario, kept, found.left)
    assert refused > 100 // every
    assert reported > refused


async def _mended(scenario: Scenario, damaged: Kept, left: Kept) -> None:
    """What was wrong is put right again after a start that was refused: then all is there."""
    put_right = {
        name: data for name, data in scenario.now.files.items() if damaged.files.get(name) != data
    }
    pairs = left.pairs if damaged.pairs == scenario.now.pairs else scenario.now.pairs
    again = await begun(Kept(left.files | put_right, pairs), scenario.simulated)
    await again.storage.start()
    await again.check()


@pytest.mark.parametrize("begins_at", [1, 2, 3])
async def test_a_journal_whose_end_is_lost_from_before_the_mark_on_is_refused(
    begins_at: int,
) -> None:
    """Nothing before the mark is needed, so damage there is passed over. But then nobody knows
    with which group that file ended, and the next one must not be taken for its successor."""
    scenario = await _scenario()
    first = journals(scenario.now)[0]
    data = scenario.now.files[first]
    zeroed = data[: begins_at * BLOCK] + bytes(len(data) - begins_at * BLOCK)
    found = await outcome(scenario.now.having(first, zeroed), scenario.simulated)
    assert "its end may be lost" in found.refusal
    assert found.is_seen
