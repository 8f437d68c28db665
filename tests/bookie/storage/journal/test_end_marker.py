"""A journal that lost its end is detected, unless it only lost unacknowledged entries."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from bookie.core.journal import BLOCK_BYTES, END_BYTES, FlushPolicy, Mark, decode_end, encode_end
from bookie.storage.journal.end_marker import END_FILE
from ledger.errors import Status
from tests.bookie.storage.journal.test_journal import commit, frame, journal_on, replayed, running
from tests.bookie.storage.memory_disk import MemoryDisk
from tests.bookie.test_data_integrity import ask
from tests.real_cluster import SMALL, real_cluster

U64 = st.integers(0, (1 << 64) - 1)
END = f"journal/{END_FILE}"
GROUPS = 6


@given(U64, U64)
def test_an_end_is_read_as_it_was_written(file_id: int, offset: int) -> None:
    data = encode_end(Mark(file_id, offset))
    assert len(data) == END_BYTES
    assert decode_end(data) == decode_end(data + b"more") == (file_id, offset)


@given(st.integers(0, 8 * END_BYTES - 1), st.integers(0, END_BYTES - 1))
def test_a_damaged_end_says_nothing(bit: int, size: int) -> None:
    data = bytearray(encode_end(Mark(7, 81920)))
    assert decode_end(data[:size]) is None
    data[bit // 8] ^= 1 << bit % 8
    assert decode_end(data) is None
    assert decode_end(bytes(END_BYTES)) is None


def test_the_bytes_of_an_end() -> None:
    assert encode_end(Mark(3, 8192)).hex() == (
        "4c534a454e44000100000000000000030000000000002000e5774f04"
    )


def _cut(disk: MemoryDisk, name: str, size: int) -> None:
    data = disk.names[name].data
    data[size:] = bytes(len(data) - size)


def _newest(disk: MemoryDisk) -> str:
    return max(name for name in disk.names if name.endswith(".journal"))


async def _written() -> tuple[MemoryDisk, Mark]:
    disk = MemoryDisk()
    journal = journal_on(disk)
    await replayed(journal)
    async with running(journal):
        for number in range(GROUPS):
            await commit(journal, frame(number))
    end = decode_end(disk.names[END].data)
    assert end is not None
    return disk, end


@pytest.mark.parametrize("lost", [1, 2])
async def test_groups_that_were_acknowledged_and_are_gone_are_noticed(lost: int) -> None:
    disk, end = await _written()
    _cut(disk, _newest(disk), end.offset - lost * BLOCK_BYTES)
    again = journal_on(disk)
    assert len(await replayed(again)) == GROUPS - lost
    assert again.end.lost == end
    # Who runs it has made that known: from then on nothing is missing.
    async with running(again):
        await commit(again, frame(9))
    once_more = journal_on(disk)
    assert len(await replayed(once_more)) == GROUPS - lost + 1
    assert once_more.end.lost is None


async def test_the_last_file_is_gone() -> None:
    disk, end = await _written()
    assert end.file_id > 1
    del disk.names[_newest(disk)]
    again = journal_on(disk)
    await replayed(again)
    assert again.end.lost == end


async def test_a_loss_noticed_and_not_made_known_is_noticed_again() -> None:
    disk, end = await _written()
    _cut(disk, _newest(disk), end.offset - BLOCK_BYTES)
    for _ in range(2):
        again = journal_on(disk)
        await replayed(again)
        assert again.end.lost == end


async def test_what_late_syncs_owe_is_reported_before_it_is_paid() -> None:
    late = FlushPolicy(flush_interval_ms=3_600_000, flush_bytes=1 << 40)
    disk = MemoryDisk()
    journal = journal_on(disk, flush=late)
    await replayed(journal)
    async with running(journal):
        accepted = trio.Event()
        journal.queue(frame(0), on_accepted=accepted.set)
        await accepted.wait()
    end = decode_end(disk.names[END].data)
    newest = disk.names[_newest(disk)]
    newest.data[:] = newest.synced  # the page cache lost it, and not the note
    again = journal_on(disk, flush=late)
    await replayed(again)
    assert again.end.lost == end is not None


@pytest.mark.parametrize(
    "damage",
    [bytes(END_BYTES), b"", b"garbage", encode_end(Mark(1, BLOCK_BYTES))],
    ids=["zeros", "empty", "short", "older"],
)
async def test_a_note_that_is_damaged_or_old_does_no_harm(damage: bytes) -> None:
    disk, _ = await _written()
    disk.names[END].data[:] = damage
    again = journal_on(disk)
    assert len(await replayed(again)) == GROUPS
    assert again.end.lost is None


async def test_a_journal_goes_on_without_its_note(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDisk()
    journal = journal_on(disk)
    await replayed(journal)
    async with running(journal):
        await commit(journal, frame(0))
        reported = bytes(disk.names[END].data)

        def fail(*_: object) -> None:
            raise OSError(errno.EIO, "no more notes")

        monkeypatch.setattr("tests.bookie.storage.memory_disk.MemoryFile.write_now", fail)
        for number in range(1, GROUPS):
            await commit(journal, frame(number))
    assert disk.names[END].data == reported
    assert caplog.text.count("is no longer recorded") == 1
    assert len(await replayed(journal_on(disk))) == GROUPS


def _cut_off(path: Path, end: int) -> None:
    with path.open("r+b") as file:
        file.truncate(end)


def _removed(path: Path, _: int) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [_cut_off, _removed])
async def test_a_bookie_denies_nothing_it_may_have_lost_and_gets_it_back(
    tmp_path: Path, damage: Callable[[Path, int], None]
) -> None:
    settings = {**SMALL, "checkpoint_interval_ms": 60_000}  # no mark beyond what is cut off
    async with real_cluster(tmp_path, bookies=2, **settings) as cluster, cluster.client() as client:
        async with client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2) as writer:
            for i in range(20):
                await writer.append(b"%d" % i)
        name = cluster.bookies[0].bookie_id
        await cluster.stop(0)
        journal = tmp_path / "0" / "journal"
        damage(max(journal.glob("*.journal")), 2 * BLOCK_BYTES)
        await cluster.start(0)
        seen: set[Status] = set()
        with trio.fail_after(60):
            while seen != {Status.OK}:  # "unknown" until it has fetched them from the other bookie
                seen = {await ask(client, name, writer.ledger_id, entry) for entry in range(20)}
                assert seen <= {Status.OK, Status.IO_ERROR}
