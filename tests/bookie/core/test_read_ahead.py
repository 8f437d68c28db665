"""Readers in turn must not push what was read for each other out of the read cache."""

from __future__ import annotations

from dataclasses import replace

from bookie.core.read_ahead import ReadAhead
from tests.bookie.server.simulated_server import KIB, OPTIONS, SlowDisk
from tests.bookie.storage.simulated_storage import SimulatedStorage

MIB = 1024 * KIB
ENTRIES = 500


async def blocks_read(readers: int) -> int:
    """Parts of entry logs that are read while this number of readers read one ledger each, in turn.
    The cache holds two pieces of full size."""
    options = replace(OPTIONS, read_cache_bytes=200 * KIB, read_ahead_bytes=90 * KIB)
    simulated = SimulatedStorage(SlowDisk(), options=options)
    async with simulated.running():
        for ledger_id in range(readers):
            for entry_id in range(ENTRIES):
                simulated.add(ledger_id, entry_id, bytes(1000))
        await simulated.settle()
        await simulated.storage.checkpoint()
        for entry_id in range(ENTRIES):
            for ledger_id in range(readers):
                await simulated.storage.read(ledger_id, entry_id)
        return simulated.storage.directories[0].details().reads.read_cache_misses


async def test_three_readers_in_turn_find_theirs_in_a_cache_of_two_pieces() -> None:
    assert await blocks_read(1) <= 7
    assert await blocks_read(3) <= 3 * 25, "each entry would be read again: 1500"


async def test_twenty_readers_in_turn_do_not_thrash_either() -> None:
    assert await blocks_read(20) <= 20 * ENTRIES / 2


def test_a_reader_alone_gets_all_that_may_be_read_ahead() -> None:
    ahead = ReadAhead(MIB, bytes_max=256 * KIB, entries_max=1000)
    entry_id = 0
    for _ in range(100):
        assert ahead.piece_bytes(7, entry_id) == 256 * KIB
        ahead.has_read(7, entry_id, entry_id + 10, 256 * KIB)
        entry_id += 10
    assert ahead.readers == 1


def test_readers_that_left_are_forgotten_and_never_too_many_remembered() -> None:
    ahead = ReadAhead(MIB, bytes_max=256 * KIB, entries_max=1000)
    for ledger_id in range(10_000):
        ahead.has_read(ledger_id, 0, 1, 10)
    assert ahead.readers <= 33
    assert ahead.piece_bytes(1, 0) == 16 * KIB
    for number in range(100):
        ahead.has_read(7, number, number + 1, 64 * KIB)
    assert ahead.readers == 1
    assert ahead.piece_bytes(7, 100) == 256 * KIB
