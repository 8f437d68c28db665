"""Runs cut from the write cache against a dumb twin; logs written, scanned, damaged, rolled."""

from __future__ import annotations

import errno
import random
import struct
from array import array
from itertools import pairwise

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from bookie.core import entry_log as core
from bookie.core.caches import WriteCache
from bookie.core.entry_log import Run, flush_steps, make_run
from bookie.storage.entry_log import entry_logs
from bookie.storage.entry_log.entry_logs import EntryLogs, log_name
from bookie.storage.index.index import PlacedRun
from ledger.core.entry import Digest, DigestType
from ledger.errors import BookieIoError
from tests.bookie.core.test_caches import make_entry, make_frame
from tests.bookie.storage.memory_disk import MemoryDisk
from tests.effort import scaled


def with_crc(ledger_id: int, entry_id: int, payload: bytes = b"") -> bytes:
    """An entry whose header holds its CRC32C, as nearly all do."""
    digest = Digest(DigestType.CRC32C)
    return b"".join(digest.encode_entry(ledger_id, entry_id, -1, len(payload), payload))


def _entries_of(run: Run) -> dict[tuple[int, int], bytes]:
    found = {}
    begin = 0
    body = b"".join(run.pieces)
    for i, length in enumerate(run.lengths):
        found[run.ledger_id, run.first + i] = body[begin : begin + length]
        begin += length
    assert begin == len(body) == run.body_bytes
    return found


adds = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(0, 40), st.sampled_from([0, 5, 5, 5, 5, 30, 3000, 6000])
    ),
    max_size=80,
)


@settings(max_examples=scaled(ci=80, night=2000))
@given(adds, st.sampled_from([600, 1 << 20]))
def test_every_entry_is_in_exactly_one_run(adds: list[tuple[int, int, int]], own: int) -> None:
    """Small segments mix the ways of gathering: many segments, one, frames of one size."""
    cache = WriteCache(bytes_max=own)
    twin: dict[tuple[int, int], bytes] = {}
    for ledger, entry, size in adds:
        payload = bytes([entry]) * size
        cache.put_frame(make_frame(ledger, entry, payload))
        twin[ledger, entry] = make_entry(ledger, entry, payload)
    runs = [run for step in flush_steps(cache.active, cache.segments) for run in step]
    found: dict[tuple[int, int], bytes] = {}
    for run in runs:
        entries = _entries_of(run)
        assert not found.keys() & entries.keys()
        found |= entries
    assert found == twin
    # In order, and a hole ends a run: no two runs that follow each other could be one.
    places = [(run.ledger_id, run.first, run.first + len(run.lengths)) for run in runs]
    assert places == sorted(places)
    assert all(a[0] != b[0] or a[2] < b[1] for a, b in pairwise(places))


def test_runs_end_at_a_thousand_entries_and_at_their_bytes() -> None:
    cache = WriteCache(bytes_max=1 << 24)
    for i in range(2500):
        cache.put_frame(make_frame(1, i, b"x"))
    for i in range(30):
        cache.put_frame(make_frame(2, i, b"y" * 100_000))
    cache.put_frame(make_frame(2, 30, b"z" * (core.RUN_BYTES_MAX + 1)))
    steps = list(flush_steps(cache.active, cache.segments))
    runs = [run for step in steps for run in step]
    assert [len(run.lengths) for run in runs] == [1000, 1000, 500, 5, 5, 5, 5, 5, 5, 1]
    assert max(sum(run.body_bytes for run in step) for step in steps) <= core.RUN_BYTES_MAX + 40


def test_many_ledgers_are_sorted_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once they delay acknowledgements: 0.2 s for half a million."""
    monkeypatch.setattr(core, "SORTED_AT_ONCE", 10)
    ledgers = random.Random(4).sample(range(1000), 95)
    cache = WriteCache(bytes_max=1 << 20)
    for ledger in ledgers:
        cache.put_frame(make_frame(ledger, 0, b"x"))
    steps = list(flush_steps(cache.active, cache.segments))
    assert [run.ledger_id for step in steps for run in step] == sorted(ledgers)
    assert steps[:9] == [[]] * 9


def test_large_bodies_are_not_copied() -> None:
    cache = WriteCache(bytes_max=1 << 24)
    for i in range(10):
        cache.put_frame(make_frame(1, i, bytes([i]) * 50_000))
    (run,) = [run for step in flush_steps(cache.active, cache.segments) for run in step]
    assert list(map(bytes, run.pieces)) == [
        make_entry(1, i, bytes([i]) * 50_000) for i in range(10)
    ]
    assert len(run.pieces) == 10
    assert all(isinstance(piece, memoryview) for piece in run.pieces)


def test_frames_of_one_stride_but_other_lengths_are_not_taken_as_uniform() -> None:
    # A short frame of ledger 1, then one of ledger 2, again and again: distances are equal.
    cache = WriteCache(bytes_max=1 << 20)
    for i in range(50):
        cache.put_frame(make_frame(1, i, b"a" * 10))
        cache.put_frame(make_frame(2, i, b"b" * 20))
    for step in flush_steps(cache.active, cache.segments):
        for run in step:
            size = 10 if run.ledger_id == 1 else 20
            payload = (b"a" if run.ledger_id == 1 else b"b") * size
            assert list(_entries_of(run).values()) == [
                make_entry(run.ledger_id, i, payload) for i in range(50)
            ]


def test_a_shorter_last_frame_at_the_end_of_its_segment_is_not_taken_as_uniform() -> None:
    cache = WriteCache(bytes_max=1 << 20)
    frames = [make_frame(1, i, b"x" * (100 if i < 9 else 20)) for i in range(10)]
    segment = memoryview(bytearray(b"".join(frames)))  # ends where the last frame ends
    number = cache.add_segment(segment)
    cache.active[1] = {i: number << 32 | i * len(frames[0]) for i in range(10)}
    [[run]] = flush_steps(cache.active, cache.segments)
    assert list(_entries_of(run).values()) == [frame[28:] for frame in frames]


def test_the_bytes_of_a_record_never_change() -> None:
    body = with_crc(7, 3, b"one") + with_crc(7, 4)
    run = make_run(7, 3, array("I", [39, 36]), [body])
    fields = struct.pack(">IIqqQ", crc32c(body), 2, 7, 3, 75) + struct.pack("<II", 39, 36)
    assert run.head == b"RUN\x01" + struct.pack(">I", crc32c(fields)) + fields
    assert run.sums == b""
    one, two = make_entry(7, 3, b"one"), make_entry(7, 4)
    for pieces in ([one, two], [one + two]):
        run = make_run(7, 3, array("I", [35, 32]), pieces)
        fields = struct.pack(">IIqqQ", crc32c(one + two), 2, 7, 3, 67)
        fields += struct.pack("<II", 35, 32)
        assert run.head == b"RUN\x02" + struct.pack(">I", crc32c(b"RUN\x02" + fields)) + fields
        assert run.sums == struct.pack("<II", crc32c(one), crc32c(two))
    run = make_run(7, 3, array("I", [35]), [one])
    assert (run.head[:4], run.sums) == (b"RUN\x01", b"")
    header = core.encode_file_header(0x1F)
    assert header.hex() == (
        "4c53454c4f470001" + "000000000000001f" + f"{crc32c(header[:16]):08x}" + "00" * 12
    )


async def _write(disk: MemoryDisk, counts: list[int], log_bytes_max: int) -> list[PlacedRun]:
    logs = EntryLogs(disk, "d", log_bytes_max=log_bytes_max, write_bytes=200)
    await logs.start()
    placed = []
    for ledger, count in enumerate(counts):
        bodies = [with_crc(ledger, i, b"p" * i) for i in range(count)]
        run = make_run(ledger, 0, array("I", map(len, bodies)), bodies)
        placed.append(await logs.append(run))
    await logs.sync()
    logs.close()
    return placed


async def _scan(disk: MemoryDisk, log_id: int) -> list[tuple[PlacedRun, bytes]]:
    logs = EntryLogs(disk, "d", log_bytes_max=1)
    return [found async for found in logs.scan(log_id)]


async def test_logs_roll_and_report_the_same_when_scanned() -> None:
    disk = MemoryDisk()
    placed = await _write(disk, [3, 1, 9, 2, 2, 30, 1], log_bytes_max=760)
    logs = EntryLogs(disk, "d", log_bytes_max=760)
    log_ids = await logs.start()
    assert log_ids == [1, 2, 3, 4]
    found = [pair for log_id in log_ids for pair in await _scan(disk, log_id)]
    assert [run for run, _ in found] == placed
    for run, body in found:
        assert await logs.read(run.log_id, run.offset, len(body)) == body
        assert logs.read_nowait(run.log_id, run.offset, len(body)) == body
    for log_id in log_ids[:-2]:
        assert len(disk.names[f"d/{log_name(log_id)}"].data) <= 760
    # A run larger than a log gets one to itself, and old logs are never appended to.
    placed_later = await logs.append(make_run(1, 0, array("I", [16]), [b"e" * 16]))
    assert placed_later.log_id == 5


async def test_a_log_of_many_ledgers_is_full_however_small_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is held and written of each log is by ledger: with a million it would be megabytes."""
    monkeypatch.setattr(entry_logs, "LEDGERS_MAX", 3)
    logs = EntryLogs(MemoryDisk(), "d", log_bytes_max=1 << 20)
    await logs.start()
    placed = [
        await logs.append(make_run(ledger, first, array("I", [16]), [b"e" * 16]))
        for ledger, first in [(1, 0), (2, 0), (3, 0), (2, 1), (4, 0), (1, 1), (5, 0), (6, 0)]
    ]
    assert [run.log_id for run in placed] == [1, 1, 1, 1, 2, 2, 2, 3]
    assert logs.take_sealed() == {1: {1: 16, 2: 32, 3: 16}, 2: {4: 16, 1: 16, 5: 16}}
    assert logs.current_ledgers == {6: 16}
    logs.close()


async def test_a_scan_ends_at_the_first_damaged_byte() -> None:
    disk = MemoryDisk()
    placed = await _write(disk, [3, 2, 4], log_bytes_max=1 << 20)
    data = disk.names[f"d/{log_name(1)}"].data
    whole = bytes(data)
    ends = [run.offset + sum(run.lengths) for run in placed]
    for position in range(core.FILE_HEADER_BYTES, len(whole), 3):
        data[position] ^= 0x10
        found = await _scan(disk, 1)
        assert [run for run, _ in found] == placed[: sum(end <= position for end in ends)]
        data[:] = whole
    rng = random.Random(1)
    for size in rng.sample(range(core.FILE_HEADER_BYTES, len(whole)), 30):
        data[:] = whole[:size]
        assert len(await _scan(disk, 1)) == sum(end <= size for end in ends)
    # What is wrong with checksums after the entries says nothing about the entries.
    run = make_run(9, 0, array("I", [35, 32]), [make_entry(9, 0, b"one") + make_entry(9, 1)])
    data[:] = whole + run.head + b"".join(run.pieces) + run.sums
    data += data[core.FILE_HEADER_BYTES : len(whole)]
    summed = [found async for found in EntryLogs(disk, "d", log_bytes_max=1).scan(1)]
    assert len(summed) == 2 * len(placed) + 1
    data[len(whole) + run.nbytes - 1] ^= 1
    assert len(await _scan(disk, 1)) == len(summed)
    data[:] = b"\0" * 100
    with pytest.raises(BookieIoError, match="header"):
        await _scan(disk, 1)


async def test_reads_beyond_a_log_or_of_a_missing_one_are_io_errors() -> None:
    disk = MemoryDisk()
    await _write(disk, [1], log_bytes_max=1000)
    logs = EntryLogs(disk, "d", log_bytes_max=1000)
    for log_id, offset in ((1, 90), (2, 0)):
        assert logs.read_nowait(log_id, offset, 100) is None
        with pytest.raises(BookieIoError):
            await logs.read(log_id, offset, 100)


async def test_open_files_are_bounded() -> None:
    disk = MemoryDisk()
    placed = await _write(disk, [2] * 8, log_bytes_max=100)
    logs = EntryLogs(disk, "d", log_bytes_max=100, files_open_max=3)
    await logs.start()
    for run in placed * 2:
        assert await logs.read(run.log_id, run.offset, 32) == make_entry(run.ledger_id, 0)
        assert len(logs._files) <= 3


async def test_foreign_names_are_left_alone() -> None:
    disk = MemoryDisk()
    for name in ("lastmark", "1.log", "000000000000000A.log", "zzzzzzzzzzzzzzzz.log"):
        await disk.open(f"d/{name}", is_new=True)
    assert await EntryLogs(disk, "d", log_bytes_max=100).start() == []


async def test_a_log_is_synced_bit_by_bit_while_it_is_written() -> None:
    """So that the sync at the end of a checkpoint finds little to do."""
    disk = MemoryDisk()
    logs = EntryLogs(disk, "logs", log_bytes_max=5000, write_bytes=100, flush_bytes=1000)
    await logs.start()
    unsynced: list[int] = []
    for entry_id in range(20):
        await logs.append(make_run(7, entry_id, array("I", [300]), [bytes(300)]))
        last = disk.names[sorted(disk.names)[-1]]
        unsynced.append(len(last.data) - len(last.synced))
    assert max(unsynced) < 1000 + 400
    assert disk.syncs >= 20 * 300 // 1400
    assert len(disk.names) > 1
    syncs = disk.syncs
    await logs.sync()
    assert disk.syncs > syncs  # what is left, and sealed logs
    assert all(bytes(inode.data) == inode.synced for inode in disk.names.values())


async def test_a_log_whose_sync_fails_on_the_way_is_not_written_on() -> None:
    disk = MemoryDisk()
    logs = EntryLogs(disk, "logs", log_bytes_max=5000, write_bytes=100, flush_bytes=1000)
    await logs.start()
    disk.errors["sync"] = OSError(errno.EIO, "the disk is gone")

    async def append() -> None:
        for entry_id in range(20):
            await logs.append(make_run(7, entry_id, array("I", [300]), [bytes(300)]))

    with pytest.raises(OSError, match="the disk is gone"):
        await append()
