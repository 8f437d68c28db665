"""A bookie with several journals and ledger directories on real sockets and disks."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from bookie.startup.cookies import CookieMismatch
from ledger.errors import Status
from ledger.wire.messages import (
    AddResponse,
    ForceLedgerRequest,
    ForceLedgerResponse,
    GetBookieInfoRequest,
    GetBookieInfoResponse,
    ReadRequest,
    ReadResponse,
)
from tests.bookie.server.test_server import KEY, SETTINGS, Peer, add, entry_of, peer_of
from tests.real_cluster import RealCluster, real_cluster
from tests.task_count import TaskCount

LEDGERS = 24
ENTRIES = 20


@asynccontextmanager
async def bookie_with(directory: Path, journals: int, ledgers: int) -> AsyncIterator[RealCluster]:
    lists = {
        "journal_directories": tuple(f"{directory}/j{n}" for n in range(journals)),
        "ledger_directories": tuple(f"{directory}/l{n}" for n in range(ledgers)),
    }
    async with real_cluster(
        directory, 1, **{**SETTINGS, **lists, "read_cache_bytes": 2 << 20}
    ) as cluster:
        yield cluster


async def add_everywhere(peer: Peer, first: int, end: int) -> None:
    """Adds entries of all ledgers in turn, so that each chunk contains some of every directory."""
    answers: list[AddResponse] = []

    async def add_one(ledger_id: int, entry_id: int) -> None:
        version = 3 if ledger_id % 5 == 4 else 2
        answers.append(await peer.ask(AddResponse, add(ledger_id, entry_id), version, 30))

    async with trio.open_nursery() as nursery:
        for entry_id in range(first, end):
            for ledger_id in range(LEDGERS):
                nursery.start_soon(add_one, ledger_id, entry_id)
    assert {answer.status for answer in answers} == {Status.OK}
    assert len(answers) == (end - first) * LEDGERS


async def check_everywhere(peer: Peer, end: int) -> None:
    for ledger_id in range(LEDGERS):
        for entry_id in range(end):
            read = await peer.ask(ReadResponse, ReadRequest(ledger_id, entry_id), 2)
            assert read.status is Status.OK
            assert read.body is not None
            assert bytes(read.body) == entry_of(ledger_id, entry_id)


@pytest.mark.parametrize(("journals", "ledgers"), [(2, 3), (3, 2), (1, 2), (3, 1)])
async def test_entries_of_many_ledgers_on_one_connection(
    tmp_path: Path, journals: int, ledgers: int
) -> None:
    async with bookie_with(tmp_path, journals, ledgers) as cluster:
        async with peer_of(cluster) as peer:
            await add_everywhere(peer, 0, ENTRIES)
            await check_everywhere(peer, ENTRIES)
            storage = cluster.bookies[0].storage
            assert storage is not None
            await storage.checkpoint()
            await add_everywhere(peer, ENTRIES, 2 * ENTRIES)
            fence = ReadRequest(5, -1, KEY, is_fencing=True)
            assert (await peer.ask(ReadResponse, fence, 2)).status is Status.OK
            forced = await peer.ask(ForceLedgerResponse, ForceLedgerRequest(7))
            assert forced.status is Status.OK
            for journal in storage.journals:
                assert journal.statistics().entries > ENTRIES
            for directory in storage.directories:
                assert directory.statistics().entries_flushed > ENTRIES
        # Entries after the checkpoint are only in the journals.
        await cluster.stop(0)
        await cluster.start(0)
        async with peer_of(cluster) as peer:
            await check_everywhere(peer, 2 * ENTRIES)
            assert (await peer.ask(AddResponse, add(5, 99), 2)).status is Status.FENCED
            assert (await peer.ask(AddResponse, add(6, 99), 2)).status is Status.OK


async def test_segments_with_frames_of_all_directories_are_released(tmp_path: Path) -> None:
    async with bookie_with(tmp_path, 2, 3) as cluster:
        async with peer_of(cluster) as peer:
            for first in range(0, 10 * ENTRIES, ENTRIES):
                await add_everywhere(peer, first, first + ENTRIES)
        storage = cluster.bookies[0].storage
        assert storage is not None
        await storage.checkpoint()
        await storage.checkpoint()
        with trio.fail_after(10):  # the connections' own segments, once they are closed
            while any(directory.cache.segments for directory in storage.directories):
                await trio.testing.wait_all_tasks_blocked(0.01)
                await storage.checkpoint()
        for directory in storage.directories:
            assert directory.cache.released_bytes == directory.cache.nbytes == 0


async def test_adds_to_several_journals_start_no_task_each(tmp_path: Path) -> None:
    async with bookie_with(tmp_path, 2, 2) as cluster, peer_of(cluster) as peer:
        await add_everywhere(peer, 0, 1)
        count = TaskCount()
        trio.lowlevel.add_instrument(count)
        await add_everywhere(peer, 1, 5)
        trio.lowlevel.remove_instrument(count)
        # One for each request of this test, and hardly any in the bookie.
        assert count.count <= 4 * LEDGERS + 10


async def test_a_file_system_counts_once_in_the_free_space(tmp_path: Path) -> None:
    async with bookie_with(tmp_path, 2, 3) as cluster, peer_of(cluster) as peer:
        info = await peer.ask(GetBookieInfoResponse, GetBookieInfoRequest(3))
        found = os.statvfs(tmp_path)
        assert info.total_bytes == found.f_blocks * found.f_frsize
        assert info.free_bytes is not None
        assert info.free_bytes <= info.total_bytes


@pytest.mark.parametrize("change", ["added", "removed", "in another order"])
@pytest.mark.parametrize("name", ["journal_directories", "ledger_directories"])
async def test_other_directories_than_before_are_refused(
    tmp_path: Path, change: str, name: str
) -> None:
    async with bookie_with(tmp_path, 2, 2) as cluster:
        await cluster.stop(0)
        settings = cluster._settings
        first, second = settings[name]
        changed = {
            "added": (first, second, f"{tmp_path}/new"),
            "removed": (first,),
            "in another order": (second, first),
        }
        cluster._settings = {**settings, name: changed[change]}
        cure = "run another bookie"
        if name == "ledger_directories":
            cure = "expand-storage CONFIG" if change == "added" else "drop-directory CONFIG"
        with pytest.RaisesGroup(
            pytest.RaisesExc(CookieMismatch, match=cure), flatten_subgroups=True
        ):
            async with trio.open_nursery() as nursery:
                cluster._nursery = nursery
                await cluster.start(0)


@pytest.mark.parametrize("kind", ["j", "l"])
async def test_every_directory_is_locked(tmp_path: Path, kind: str) -> None:
    async with bookie_with(tmp_path, 2, 2) as cluster:
        disk = partial(_locked, f"{tmp_path}/{kind}1/LOCK")
        assert cluster.bookies[0].storage is not None
        assert await trio.to_thread.run_sync(disk)


def _locked(path: str) -> bool:
    import fcntl

    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
