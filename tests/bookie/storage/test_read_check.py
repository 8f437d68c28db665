"""A bookie serves from its disk only what matches the checksums stored with it."""

from __future__ import annotations

import logging
import random
from array import array

import crc32c
import pytest

from bookie.core import entry_log
from bookie.core.compaction import CompactionKind
from bookie.storage import read_check
from bookie.storage.bookie_storage import BookieStorage
from bookie.storage.metrics import ReadStatistics
from bookie.storage.options import StorageOptions
from bookie.storage.read_check import DamagedEntry
from ledger.core.entry import HEADER_BYTES, Digest, DigestType
from ledger.errors import BookieIoError, Status
from tests.bookie.storage.garbage.test_compactor import OPTIONS as COMPACTING
from tests.bookie.storage.garbage.test_compactor import deleted
from tests.bookie.storage.memory_disk import MemoryDisk
from tests.bookie.storage.simulated_storage import SimulatedStorage

ENTRIES = 200
PAYLOAD_BYTES = 90
WHOLE_RUNS = StorageOptions(write_cache_bytes=1 << 22, checkpoint_interval_s=1e9)
PARTS = StorageOptions(write_cache_bytes=1 << 22, checkpoint_interval_s=1e9, read_ahead_bytes=1000)
WITH_CRC = (DigestType.CRC32, DigestType.CRC32C)


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


async def stored(
    disk: MemoryDisk, bodies: list[bytes], options: StorageOptions = WHOLE_RUNS
) -> tuple[SimulatedStorage, str]:
    """A storage to be reopened that has the entries in an entry log, and the path of that log."""
    simulated = SimulatedStorage(disk, options=options)
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


def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are written as they were before those with a checksum of each entry."""
    monkeypatch.setattr(entry_log, "digest_that_fits", lambda entry: "CRC32C")


@pytest.mark.parametrize("digest_type", DigestType)
@pytest.mark.parametrize("options", [WHOLE_RUNS, PARTS], ids=["whole runs", "parts of runs"])
@pytest.mark.parametrize("seed", range(4))
async def test_a_flipped_bit_costs_the_entry_it_is_in_and_no_other(
    digest_type: DigestType, options: StorageOptions, seed: int
) -> None:
    disk, bodies = MemoryDisk(), bodies_of(digest_type)
    simulated, path = await stored(disk, bodies, options)
    data = disk.names[path].data
    victim = random.Random(seed).randrange(ENTRIES)
    at = bytes(data).index(bodies[victim]) + random.Random(seed).randrange(len(bodies[victim]))
    data[at] ^= 1 << seed
    again = simulated.reopened()
    async with again.running():
        found = await served(again.storage)
        assert found == {i: body for i, body in enumerate(bodies) if i != victim}
        assert reads_of(again.storage).entries_damaged == 1
        assert reads_of(again.storage).entries_unverified == 0
        with pytest.raises(DamagedEntry) as refused:
            await again.storage.read(1, victim)
        begin = bytes(data).index(bodies[0]) + victim * len(bodies[0])
        assert bytes(refused.value.data) == bytes(data[begin : begin + len(bodies[0])])


@pytest.mark.parametrize("digest_type", DigestType)
async def test_a_zeroed_block_costs_the_entries_in_it(digest_type: DigestType) -> None:
    disk, bodies = MemoryDisk(), bodies_of(digest_type)
    simulated, path = await stored(disk, bodies)
    data = disk.names[path].data
    begin = bytes(data).index(bodies[0])
    data[4096:8192] = bytes(4096)
    size = len(bodies[0])
    touched = range((4096 - begin) // size, (8191 - begin) // size + 1)
    again = simulated.reopened()
    async with again.running():
        found = await served(again.storage)
        assert found == {i: body for i, body in enumerate(bodies) if i not in touched}
        batch = await again.storage.read_batch(1, 0, ENTRIES, 1 << 20)
        assert [bytes(entry) for entry in batch] == bodies[: touched[0]]
        batch = await again.storage.read_batch(1, touched[-1] + 1, ENTRIES, 1 << 20)
        assert [bytes(entry) for entry in batch] == bodies[touched[-1] + 1 :]
        with pytest.raises(DamagedEntry):
            await again.storage.read_batch(1, touched[3], ENTRIES, 1 << 20)


@pytest.mark.parametrize("digest_type", DigestType)
@pytest.mark.parametrize("where", ["head", "sums"])
async def test_damage_beside_the_entries_costs_none(digest_type: DigestType, where: str) -> None:
    disk, bodies = MemoryDisk(), bodies_of(digest_type)
    simulated, path = await stored(disk, bodies)
    data = disk.names[path].data
    begin = bytes(data).index(bodies[0])
    if where == "head":
        data[begin - 3] ^= 1
    else:
        end = begin + ENTRIES * len(bodies[0])
        assert len(data) - end == (0 if digest_type in WITH_CRC else 4 * ENTRIES)
        data[end:] = bytes(len(data) - end)
    again = simulated.reopened()
    async with again.running():
        assert await served(again.storage) == dict(enumerate(bodies))
        reads = reads_of(again.storage)
        assert (reads.entries_unverified, reads.entries_damaged) == (0, 0)


@pytest.mark.parametrize("digest_type", DigestType)
async def test_records_of_before_are_read_and_their_damage_is_marked(
    digest_type: DigestType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Their only checksum is that of up to a thousand entries together: where none of them has a
    CRC of its own, nobody can say which is damaged. The readers have the key that can."""
    as_before(monkeypatch)
    disk, bodies = MemoryDisk(), bodies_of(digest_type)
    simulated, path = await stored(disk, bodies)
    data = disk.names[path].data
    assert entry_log.RUN_MAGIC in data
    assert entry_log.SUMMED_RUN_MAGIC not in data
    again = simulated.reopened()
    async with again.running():
        assert await served(again.storage) == dict(enumerate(bodies))
        assert reads_of(again.storage).entries_unverified == 0
    data[bytes(data).index(bodies[7]) + 60] ^= 1
    again = simulated.reopened()
    async with again.running():
        found = await served(again.storage)
        reads = reads_of(again.storage)
        assert [i for i, body in found.items() if body != bodies[i]] == (
            [] if digest_type in WITH_CRC else [7]
        )
        if digest_type in WITH_CRC:
            assert (len(found), reads.entries_damaged) == (ENTRIES - 1, 1)
        else:
            assert (len(found), reads.entries_unverified) == (ENTRIES, ENTRIES)
    [line] = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert "damaged entry log" in line.getMessage()


async def test_each_damaged_log_is_one_line_with_file_offset_and_cure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk, bodies = MemoryDisk(), bodies_of(DigestType.CRC32C)
    simulated, path = await stored(disk, bodies)
    data = disk.names[path].data
    begin = bytes(data).index(bodies[0])
    for victim in (3, 50, 120):
        data[begin + victim * len(bodies[0]) + 40] ^= 1
    again = simulated.reopened()
    async with again.running():
        for _ in range(2):
            assert len(await served(again.storage)) == ENTRIES - 3
        assert reads_of(again.storage).entries_damaged == 3
    [line] = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    assert f"path={path} offset={begin + 3 * len(bodies[0])} ledger=1 entry=3" in line
    assert "Cure: " in line


@pytest.mark.parametrize("damage", ["cut", "removed"])
async def test_entries_that_are_not_there_are_damaged_and_not_absent(damage: str) -> None:
    disk, bodies = MemoryDisk(), bodies_of(DigestType.CRC32C)
    simulated, path = await stored(disk, bodies)
    begin = bytes(disk.names[path].data).index(bodies[0])
    if damage == "cut":
        del disk.names[path].data[begin + 10 * len(bodies[0]) + 5 :]
    else:
        del disk.names[path]
    again = simulated.reopened()
    async with again.running():
        found = await served(again.storage)
        assert found == dict(enumerate(bodies[: 10 if damage == "cut" else 0]))
        with pytest.raises(DamagedEntry) as refused:
            await again.storage.read(1, 10)
        assert refused.value.data == bytes(len(bodies[0]))


@pytest.mark.parametrize("digest_type", DigestType)
@pytest.mark.parametrize("options", [WHOLE_RUNS, PARTS], ids=["whole runs", "parts of runs"])
async def test_what_checking_costs(
    digest_type: DigestType, options: StorageOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is read as a whole costs two checksums, however many entries it has; and nothing
    is read again, except small checksums for entries without a CRC, once for each piece."""
    disk, bodies = MemoryDisk(), bodies_of(digest_type)
    simulated, _ = await stored(disk, bodies, options)
    sums = 0

    def counted(*args: int) -> int:
        nonlocal sums
        sums += 1
        return crc32c.crc32c(*args)  # type: ignore[arg-type]

    for module in (read_check, entry_log):
        monkeypatch.setattr(module, "crc32c", counted)
    again = simulated.reopened()
    async with again.running():
        reads = 0
        logs = again.storage.directories[0]._logs
        ordinary = logs.read

        async def read(*args: int, **settings: bool) -> bytes:
            nonlocal reads
            reads += 1
            return await ordinary(*args, **settings)

        monkeypatch.setattr(logs, "read", read)
        sums = 0
        found: list[bytes] = []
        size_max = (1 << 20) if options is WHOLE_RUNS else 1000
        while len(found) < ENTRIES:
            batch = await again.storage.read_batch(1, len(found), ENTRIES, size_max)
            found += map(bytes, batch)
        assert found == bodies
        pieces = reads_of(again.storage).read_cache_misses
        assert reads_of(again.storage).entries_unverified == 0
    if options is WHOLE_RUNS:
        assert sums == 2, "the head and the bodies"
        assert reads <= 1
    else:
        assert sums <= 3 * ENTRIES
        assert pieces > 10
        assert reads <= pieces + 1


async def test_an_entry_that_nothing_can_prove_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer run has replaced a part of the record, whose head the index does not lead to."""
    as_before(monkeypatch)
    disk, bodies = MemoryDisk(), bodies_of(DigestType.HMAC)
    simulated, _ = await stored(disk, bodies)
    again = simulated.reopened()
    async with again.running():
        for entry_id in range(10):
            assert again.add(1, entry_id, bodies[entry_id][HEADER_BYTES:]) is Status.OK
        await again.settle()
        await again.storage.checkpoint()
        assert await served(again.storage) == dict(enumerate(bodies))
        assert reads_of(again.storage).entries_unverified == ENTRIES - 10


@pytest.mark.parametrize("digest_type", DigestType)
async def test_parts_of_a_record_are_checked_by_their_own_checksums(
    digest_type: DigestType,
) -> None:
    disk, bodies = MemoryDisk(), bodies_of(digest_type)
    simulated, path = await stored(disk, bodies)
    data = disk.names[path].data
    again = simulated.reopened()
    async with again.running():
        for entry_id in (*range(10), *range(100, 110), *range(ENTRIES - 10, ENTRIES)):
            assert again.add(1, entry_id, bodies[entry_id][HEADER_BYTES:]) is Status.OK
        await again.settle()
        await again.storage.checkpoint()
        data[bytes(data).index(bodies[150]) + 60] ^= 1
        found = await served(again.storage)
        assert len(found) == ENTRIES - 1 if digest_type in WITH_CRC else 150 in found
        assert reads_of(again.storage).entries_damaged == (digest_type in WITH_CRC)


@pytest.mark.parametrize("digest_type", DigestType)
async def test_compaction_leaves_a_damaged_record_and_moves_all_others(
    digest_type: DigestType,
) -> None:
    simulated = SimulatedStorage(options=COMPACTING)
    digest = Digest(digest_type, b"secret")

    def payload(ledger_id: int, entry_id: int) -> bytes:
        body = b"".join(digest.encode_entry(ledger_id, entry_id, -1, digest.size + 30, bytes(30)))
        return body[HEADER_BYTES:]

    async with simulated.running():
        for ledger_id in (1, 2, 3, 4, 5):
            for entry_id in range(8):
                simulated.add(ledger_id, entry_id, payload(ledger_id, entry_id))
        await simulated.settle()
        await simulated.storage.checkpoint()
        directory = simulated.storage.directories[0]
        await directory._logs.seal()
        run = directory._index.find(3, 2)
        assert run is not None
        path = directory._logs.path(run.log_id)
        simulated.disk.names[path].data[run.offset + 2 * run.lengths[0] + 40] ^= 1
        simulated.deleted[1] = None
        [collected] = await simulated.storage.collect_garbage(
            deleted(simulated), compaction=CompactionKind.MAJOR, is_forced=True
        )
        [aside] = collected.set_aside
        assert "ledger 3" in aside
        # The damaged record is where it was: nothing gave it a checksum that is right.
        for ledger_id in (2, 3, 4, 5):
            found = directory._index.find(ledger_id, 2)
            assert found is not None
            assert (found.log_id == run.log_id) == (ledger_id == 3)
        simulated.acked.pop((3, 2))
        await simulated.check()
        with pytest.raises(DamagedEntry):
            await simulated.storage.read(3, 2)
    assert path in simulated.disk.names


def test_lengths_are_those_between_the_ends() -> None:
    assert read_check._lengths_of([3, 10, 11]) == array("I", [3, 7, 1])


@pytest.mark.parametrize("options", [WHOLE_RUNS, PARTS], ids=["whole runs", "parts of runs"])
@pytest.mark.parametrize("first_is_odd", [False, True])
async def test_an_entry_with_a_wrong_digest_of_its_writer_is_served_as_it_was_added(
    options: StorageOptions, first_is_odd: bool
) -> None:
    """Bookies do not compare the digest of what is added: what they promise are the same bytes."""
    bodies = bodies_of(DigestType.CRC32C)
    odd = [0, 60] if first_is_odd else [60]
    for entry_id in odd:
        bodies[entry_id] = bodies[entry_id][:-1] + b"?"
    simulated, path = await stored(disk := MemoryDisk(), bodies, options)
    again = simulated.reopened()
    async with again.running():
        assert await served(again.storage) == dict(enumerate(bodies))
        assert reads_of(again.storage).entries_damaged == 0
    data = disk.names[path].data
    data[bytes(data).index(bodies[90]) + 50] ^= 1
    again = simulated.reopened()
    async with again.running():
        found = await served(again.storage)
        # Where only the record has a checksum, such an entry looks like a damaged one.
        suspect = [90] if first_is_odd else [60, 90]
        assert found == {i: body for i, body in enumerate(bodies) if i not in suspect}
