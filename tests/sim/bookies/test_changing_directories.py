"""Bookies gain ledger directories and lose them, and die in each operation of the change."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Awaitable, Callable, Mapping

import pytest
import trio

from bookie.config import KIB, BookieConfig
from bookie.startup.change_directories import DirectoriesKept
from bookie.testing import CrashKind, SimCluster, Simulation, run_simulated, small_config
from ledger.client import LedgerClient
from ledger.errors import Status
from ledger.metastore.bookies import BookieRegistry
from ledger.wire.messages import ReadRequest
from ledger.writing.writer import LedgerWriter
from tests.effort import scaled, stride
from tests.sim.bookies.dying_starts import die_in

JOURNALS = ("/journal", "/journal-1")
DIRECTORIES = ("/ledgers", "/ledgers-1")
NEW = "/ledgers-2"
ENTRIES = 3
LEDGERS = 6
_OPERATIONS_MAX = 2000
_ROUND_S = 31.0
"""A little more than the pause between two rounds of repair."""


def two_directories(name: str, chance: random.Random) -> BookieConfig:
    return dataclasses.replace(
        small_config(name, chance),
        journal_directories=JOURNALS,
        ledger_directories=DIRECTORIES,
        frame_bytes_max=16 * KIB,
        journal_file_bytes_max=32 * KIB,  # so that most of what is written is trimmed
        journal_files_recycled=0,
    )


async def _write(client: LedgerClient, *, closes: bool = True) -> LedgerWriter:
    writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3)
    for entry in range(ENTRIES):
        await writer.append(b"%d" % entry * (8 * KIB))
    if closes:
        await writer.close()
    else:
        writer.abandon()
    return writer


async def _statuses(client: LedgerClient, name: str, ledger_id: int) -> list[Status]:
    """Returns how the bookie answers reads of the entries of a ledger."""
    answers = [
        await client.pool.call(f"{name}:3181", ReadRequest(ledger_id, entry), timeout_s=10)
        for entry in range(ENTRIES)
    ]
    return [answer.status for answer in answers]


async def _registered(cluster: SimCluster, name: str) -> tuple[str, ...]:
    """Returns the ledger directories in the cluster's cookie."""
    found = await BookieRegistry(cluster.metadata.connect("operator")).read_cookie(f"{name}:3181")
    assert found is not None
    return found[0].ledger_directories


def _places(cluster: SimCluster, name: str) -> Mapping[int, str]:
    """Returns the directories in whose index or cache each ledger is; a ledger is in one."""
    storage = cluster.storage(name)
    found: dict[int, str] = {}
    for directory in storage.directories:
        for ledger_id in dict.fromkeys(directory.every_ledger_id(0)):
            assert ledger_id not in found, f"ledger {ledger_id} is in two directories"
            assert storage.directory_of(ledger_id) is directory
            found[ledger_id] = directory.directory
    return found


@pytest.mark.parametrize("kind", list(CrashKind))
def test_an_expansion_that_was_interrupted_anywhere_moves_and_loses_nothing(
    kind: CrashKind, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main(simulation: Simulation) -> bool:
        number = simulation.seed
        async with SimCluster(simulation, bookies=3, config=two_directories) as cluster:
            async with cluster.client() as client:
                written = [await _write(client) for _ in range(LEDGERS)]
                written += [await _write(client, closes=False)]
            name = "bookie-1"
            places = _places(cluster, name)
            assert set(places.values()) == set(DIRECTORIES)
            await cluster.kill_bookie(name)
            was_killed = await die_in(
                cluster, name, number, kind, lambda: cluster.expand_storage(name, NEW)
            )
            if cluster.config(name).ledger_directories == DIRECTORIES:
                # The operator may give up, while the change is not valid yet.
                if await _registered(cluster, name) == DIRECTORIES:
                    await cluster.start_bookie(name)
                    assert cluster.is_up(name)
                    async with cluster.client() as client:
                        written += [await _write(client) for _ in range(2)]
                    places = _places(cluster, name)
                await cluster.kill_bookie(name, kind)
                assert await cluster.expand_storage(name, NEW)
            await cluster.start_bookie(name)
            assert cluster.is_up(name)
            async with cluster.client() as client:
                later = [await _write(client) for _ in range(LEDGERS)]
                for writer in (*written, *later):
                    assert await _statuses(client, name, writer.ledger_id) == [Status.OK] * ENTRIES
            now = _places(cluster, name)
            assert {one: now[one] for one in places} == places
            assert {now[writer.ledger_id] for writer in later} == {*DIRECTORIES, NEW}
            return was_killed

    number = _tried(main, capsys, range(1, _OPERATIONS_MAX, stride(ci=23)))
    assert 20 < number < _OPERATIONS_MAX - 1


def _tried(
    main: Callable[[Simulation], Awaitable[bool]], capsys: pytest.CaptureFixture[str], points: range
) -> int:
    """Runs `main` with each crash point as the seed, until it has no such; returns that."""
    tried = number = 0
    for number in points:
        if not run_simulated(main, number, time_limit_s=600):
            break
        tried += 1
    with capsys.disabled():
        print(f" {tried} crash points ", end="")
    return number


@pytest.mark.parametrize("kind", list(CrashKind))
def test_a_drop_that_was_interrupted_anywhere_denies_nothing_and_is_healed(
    kind: CrashKind, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main(simulation: Simulation) -> bool:
        number = simulation.seed
        async with SimCluster(simulation, bookies=4, config=two_directories) as cluster:
            async with cluster.client() as client:
                written = [await _write(client) for _ in range(LEDGERS)]
                open_one = await _write(client, closes=False)
            name = "bookie-1"
            ours = [w for w in written if f"{name}:3181" in str(w.metadata.fragments)]
            assert ours
            places = _places(cluster, name)
            await trio.sleep(5)  # several checkpoints
            await cluster.lose_disk(name, "/ledgers-1")
            was_killed = await die_in(
                cluster, name, number, kind, lambda: cluster.drop_directories(name, "/ledgers-1")
            )
            if name in cluster.lost_bookies:
                await cluster.start_bookie(name)
                assert not cluster.is_up(name)
                assert await cluster.drop_directories(name, "/ledgers-1")
            await die_in(cluster, name, number, kind)
            if not cluster.is_up(name):
                await cluster.start_bookie(name)
            assert cluster.is_up(name)
            async with cluster.client() as client:
                for writer in (*ours, open_one):
                    for status in await _statuses(client, name, writer.ledger_id):
                        assert status in (Status.OK, Status.IO_ERROR) or (
                            f"{name}:3181" not in str(writer.metadata.fragments)
                        )
                for writer in ours:
                    if places[writer.ledger_id] == "/ledgers":
                        found = await _statuses(client, name, writer.ledger_id)
                        assert found == [Status.OK] * ENTRIES
                await trio.sleep(_ROUND_S)
                for writer in ours:
                    found = await _statuses(client, name, writer.ledger_id)
                    assert found == [Status.OK] * ENTRIES
            assert set(_places(cluster, name).values()) == {"/ledgers"}
            return was_killed

    number = _tried(main, capsys, range(1, _OPERATIONS_MAX, stride(ci=7)))
    assert 5 < number < _OPERATIONS_MAX - 1


def test_what_was_dropped_is_refused_when_it_returns() -> None:
    async def main(simulation: Simulation) -> None:
        async with SimCluster(simulation, bookies=3, config=two_directories) as cluster:
            name = "bookie-0"
            async with cluster.client() as client:
                written = [await _write(client) for _ in range(LEDGERS)]
            disk = cluster.disk(name)
            await cluster.kill_bookie(name)
            assert await cluster.drop_directories(name, "/ledgers-1")  # it is there, all the time
            with pytest.raises(DirectoriesKept, match="a ledger directory was dropped"):
                await cluster.expand_storage(name, NEW)
            await cluster.start_bookie(name)
            await cluster.kill_bookie(name)
            with pytest.raises(DirectoriesKept, match=r"/ledgers-1 is new .* Cure: empty it"):
                await cluster.expand_storage(name, "/ledgers-1")
            disk.wipe("/ledgers-1")
            assert await cluster.expand_storage(name, "/ledgers-1")
            await cluster.start_bookie(name)
            await trio.sleep(_ROUND_S)
            async with cluster.client() as client:
                written += [await _write(client) for _ in range(LEDGERS)]
                for writer in written:
                    assert await _statuses(client, name, writer.ledger_id) == [Status.OK] * ENTRIES
            assert set(_places(cluster, name).values()) == set(DIRECTORIES)

    for seed in range(scaled(ci=1, night=20)):
        run_simulated(main, seed, time_limit_s=300)
