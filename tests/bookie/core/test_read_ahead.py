"""Readers in turn must not push what was read for each other out of the read cache."""

from __future__ import annotations

import random
from contextlib import ExitStack
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from bookie.core.read_ahead import CROWDED_BYTES_MAX, IN_FLIGHT_BYTES_MAX, ReadAhead
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
    assert await blocks_read(1) <= 10
    assert await blocks_read(3) <= 3 * 25, "each entry would be read again: 1500"


async def test_twenty_readers_in_turn_do_not_thrash_either() -> None:
    assert await blocks_read(20) <= 20 * ENTRIES / 2


def test_a_reader_that_continues_gets_more_each_time_up_to_all_that_may_be_read() -> None:
    ahead = ReadAhead(64 * MIB, bytes_max=2 * MIB, entries_max=1000)
    entry_id, pieces = 0, []
    for _ in range(7):
        nbytes = ahead.piece_bytes(7, entry_id)
        pieces.append(nbytes // KIB)
        ahead.begins(7, entry_id, entry_id + 10, nbytes, nbytes)
        entry_id += 10
    assert pieces == [16, 64, 256, 1024, 2048, 2048, 2048]
    assert ahead.readers == 1


def test_a_reader_of_every_third_entry_continues_too() -> None:
    ahead = ReadAhead(64 * MIB, bytes_max=2 * MIB, entries_max=1000)
    ahead.begins(7, 0, 2, 1000, 16 * KIB)
    assert ahead.piece_bytes(7, 3) == 64 * KIB
    ahead.begins(7, 3, 5, 1000, 64 * KIB)
    assert ahead.readers == 1
    assert ahead.piece_bytes(7, 60) == 16 * KIB


def test_random_reads_get_nothing_and_take_nothing_from_a_reader_in_order() -> None:
    rng = random.Random(1)
    ahead = ReadAhead(64 * MIB, bytes_max=2 * MIB, entries_max=1000)
    entry_id = 0
    for turn in range(200):
        nbytes = ahead.piece_bytes(7, entry_id)
        ahead.begins(7, entry_id, entry_id + 1000, nbytes, nbytes)
        entry_id += 1000
        assert nbytes == 2 * MIB or turn < 4
        for _ in range(20):
            place = 100 * rng.randrange(1 << 40)
            assert ahead.piece_bytes(8, place) == 16 * KIB
            ahead.begins(8, place, place + 3, 16 * KIB, 16 * KIB)


def test_what_was_requested_is_read_at_once_wherever_it_is() -> None:
    ahead = ReadAhead(64 * MIB, bytes_max=2 * MIB, entries_max=1000)
    assert ahead.piece_bytes(7, 500, 3 * MIB) == 3 * MIB
    off = ReadAhead(64 * MIB, bytes_max=0, entries_max=1)
    assert (off.piece_bytes(7, 0), off.piece_bytes(7, 0, 5000)) == (0, 5000)


def test_pieces_are_small_while_much_is_read_or_adds_wait() -> None:
    ahead = ReadAhead(64 * MIB, bytes_max=2 * MIB, entries_max=1000)
    for reader in range(20):
        ahead.begins(reader, 0, 10, 2 * MIB, 2 * MIB)
    with ExitStack() as in_flight:
        begun = []
        for reader in range(20):
            begun.append(ahead.piece_bytes(reader, 10))
            in_flight.enter_context(ahead.reading(begun[-1]))
        # A sync of a journal waits behind these at most, and no reader for the others.
        assert ahead.in_flight <= IN_FLIGHT_BYTES_MAX + 20 * CROWDED_BYTES_MAX
        assert min(begun) == CROWDED_BYTES_MAX
        assert max(begun) > MIB
    assert ahead.in_flight == 0
    assert ahead.piece_bytes(3, 10) > MIB
    assert ahead.piece_bytes(3, 10, is_pressed=True) == 16 * KIB
    assert ahead.piece_bytes(3, 10, 3 * MIB, is_pressed=True) == CROWDED_BYTES_MAX


def test_readers_that_left_are_forgotten_and_never_too_many_remembered() -> None:
    ahead = ReadAhead(MIB, bytes_max=256 * KIB, entries_max=1000)
    for ledger_id in range(10_000):
        ahead.begins(ledger_id, 0, 1, 10, 10)
    assert ahead.readers <= 33
    assert ahead.piece_bytes(1, 0) == 16 * KIB
    for number in range(100):
        ahead.begins(7, number, number + 1, 64 * KIB, 64 * KIB)
    assert ahead.readers == 1
    assert ahead.piece_bytes(7, 100) == 256 * KIB


@given(st.integers(0, 2**32), st.integers(1, 64))
def test_the_pieces_of_all_readers_fit_into_the_cache(seed: int, readers: int) -> None:
    """In whatever turn they read, and whether in order or not: those in order share half of the
    cache, and the small pieces of all others are less than the other half."""
    rng = random.Random(seed)
    cache = MIB
    ahead = ReadAhead(cache, bytes_max=2 * MIB, entries_max=1000)
    places = dict.fromkeys(range(readers), 0)
    for _ in range(300):
        reader = rng.randrange(readers)
        if rng.random() < 0.1:
            places[reader] = rng.randrange(1 << 40)
        entry_id = places[reader]
        nbytes = ahead.piece_bytes(reader, entry_id)
        own = ahead._key(reader, entry_id)
        others = sum(one.is_continuing for key, one in ahead._readers.items() if key != own)
        assert nbytes == 16 * KIB or own is not None
        assert 16 * KIB <= nbytes <= max(16 * KIB, cache // 2 // (others + 1))
        places[reader] = entry_id + 1 + rng.randrange(50)
        ahead.begins(reader, entry_id, places[reader], nbytes, nbytes)
        assert ahead.readers <= 33
        continuing = sum(one.is_continuing for one in ahead._readers.values())
        assert continuing == ahead._continuing
