"""A bookie serves from its disk only what matches the checksums stored with it."""

from __future__ import annotations

import random

import pytest

from bookie.storage.bookie_storage import BookieStorage
from bookie.storage.metrics import ReadStatistics
from bookie.storage.options import StorageOptions
from bookie.storage.read_check import first_unproved
from ledger.core.entry import HEADER_BYTES, Digest, DigestType
from ledger.errors import BookieIoError, Status
from tests.bookie.storage.memory_disk import MemoryDisk
from tests.bookie.storage.simulated_storage import SimulatedStorage

OPTIONS = StorageOptions(write_cache_bytes=1 << 22, checkpoint_interval_s=1e9)
ENTRIES = 200
PAYLOAD_BYTES = 90


def bodies_of(digest_type: DigestType, ledger_id: int = 1) -> list[bytes]:
    digest = Digest(digest_type, b"secret")
    payloads = [bytes([i % 251]) * PAYLOAD_BYTES for i in range(ENTRIES)]
    return [
        # `SimulatedStorage.add` writes the bytes after the header as the length.
        b"".join(digest.encode_entry(ledger_id, i, -1, digest.size + PAYLOAD_BYTES, payload))
        for i, payload in enumerate(payloads)
    ]


def reads_of(storage: BookieStorage) -> ReadStatistics:
    return storage.directories[0].details().reads


async def stored(disk: MemoryDisk, bodies: list[bytes]) -> tuple[SimulatedStorage, str]:
    """A storage to be reopened that has the entries in an entry log, and the path of that log."""
    simulated = SimulatedStorage(disk, options=OPTIONS)
    async with simulated.running():
        for entry_id, body in enumerate(bodies):
            assert simulated.add(1, entry_id, body[HEADER_BYTES:]) is Status.OK
        await simulated.settle()
        await simulated.storage.checkpoint()
    [path] = [name for name in disk.names if name.endswith(".log")]
    return simulated, path


async def served(storage: BookieStorage) -> dict[int, bytes]:
    found = {}
    for entry_id in range(ENTRIES):
        try:
            found[entry_id] = bytes(await storage.read(1, entry_id))
        except BookieIoError:
            pass
    return found


@pytest.mark.parametrize("digest_type", DigestType)
@pytest.mark.parametrize("seed", range(6))
async def test_a_flipped_bit_is_never_served(digest_type: DigestType, seed: int) -> None:
    disk, bodies = MemoryDisk(), bodies_of(digest_type)
    simulated, path = await stored(disk, bodies)
    data = disk.names[path].data
    victim = random.Random(seed).randrange(ENTRIES)
    at = bytes(data).index(bodies[victim]) + random.Random(seed).randrange(len(bodies[victim]))
    data[at] ^= 1 << seed
    again = simulated.reopened()
    async with again.running():
        found = await served(again.storage)
        assert victim not in found
        assert all(body == bodies[entry_id] for entry_id, body in found.items())
        if digest_type in (DigestType.CRC32, DigestType.CRC32C):
            assert len(found) == ENTRIES - 1  # the others prove themselves
        assert reads_of(again.storage).entries_unverified == 0


@pytest.mark.parametrize("digest_type", DigestType)
async def test_whole_entries_are_served_and_verified(digest_type: DigestType) -> None:
    disk, bodies = MemoryDisk(), bodies_of(digest_type)
    simulated, _ = await stored(disk, bodies)
    again = simulated.reopened()
    async with again.running():
        batch = await again.storage.read_batch(1, 0, ENTRIES, 1 << 20)
        assert [bytes(entry) for entry in batch] == bodies
        reads = reads_of(again.storage)
        assert (reads.entries_unverified, reads.checksum_mismatches) == (0, 0)


async def test_an_entry_that_nothing_can_prove_is_counted() -> None:
    """A newer run has replaced a part of the record, whose head the index does not lead to."""
    disk, bodies = MemoryDisk(), bodies_of(DigestType.HMAC)
    simulated, _ = await stored(disk, bodies)
    again = simulated.reopened()
    async with again.running():
        for entry_id in range(10):
            assert again.add(1, entry_id, bodies[entry_id][HEADER_BYTES:]) is Status.OK
        await again.settle()
        await again.storage.checkpoint()
        assert await served(again.storage) == dict(enumerate(bodies))
        assert reads_of(again.storage).entries_unverified >= ENTRIES - 10


def test_the_place_of_the_first_unproved_entry_is_exact() -> None:
    for digest_type in (DigestType.CRC32C, DigestType.CRC32):
        bodies = bodies_of(digest_type)[:9]
        ends = [len(bodies[0]) * (i + 1) for i in range(9)]
        whole = b"".join(bodies)
        assert first_unproved(whole, ends) == 9
        for at in range(0, len(whole), 7):
            hurt = bytearray(whole)
            hurt[at] ^= 0x10
            assert first_unproved(hurt, ends) == at // len(bodies[0])
    assert first_unproved(b"short", [5]) == 0
