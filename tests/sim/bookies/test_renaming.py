"""Bookies get another id, and die in each operation of the rename, on the disk and in metadata."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from bookie.startup.rename import path_of
from bookie.startup.start_count import start_count_path
from bookie.testing import CrashKind, SimCluster, Simulation, run_simulated
from ledger.client import LedgerClient
from ledger.core.metadata import LedgerMetadata
from ledger.core.placement.topology import Location
from ledger.errors import NoSuchNode, Status
from ledger.metastore.decommissions import Decommission, Decommissions
from ledger.wire.messages import ReadRequest
from ledger.writing.writer import LedgerWriter
from tests.effort import stride
from tests.sim.bookies.dying_starts import die_in
from tests.sim.bookies.test_changing_directories import two_directories

NAME, PORT = "bookie-1", 3199
OLD, NEW = f"{NAME}:3181", f"{NAME}:{PORT}"
ENTRIES = 3
LEDGERS = 4
_OPERATIONS_MAX = 2000


async def write(client: LedgerClient, *, closes: bool = True) -> LedgerWriter:
    """Writes a ledger with a copy at each of three bookies."""
    writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3)
    for entry in range(ENTRIES):
        await writer.append(b"%d" % entry * 1000)
    if closes:
        await writer.close()
    else:
        writer.abandon()
    return writer


async def statuses(client: LedgerClient, bookie: str, ledger_id: int) -> list[Status]:
    """Returns how a bookie answers reads of the entries of a ledger."""
    return [
        (await client.pool.call(bookie, ReadRequest(ledger_id, entry), timeout_s=10)).status
        for entry in range(ENTRIES)
    ]


def named(metadata: LedgerMetadata) -> set[str]:
    return {bookie for fragment in metadata.fragments for bookie in fragment.bookies}


async def prepare(cluster: SimCluster) -> list[int]:
    """Writes ledgers, of which one is marked and one stays open, and gives the bookie a location
    and a decommission of another one by it. Returns the ledgers; the bookie is down then."""
    async with cluster.client("writer") as client:
        found = [(await write(client)).ledger_id for _ in range(LEDGERS)]
        found.append((await write(client, closes=False)).ledger_id)
        await client.underreplication.mark(found[0], [OLD])
        await client.bookies.locations.place(OLD, Location.parse("/eu/rack-7"))
        await Decommissions(client.store).begin(
            Decommission(bookie="gone:3181", begun_ms=1, replacement=OLD)
        )
    cluster.metadata.freeze("writer")  # its process has ended
    await cluster.stop_bookie(NAME)
    async with cluster.client() as client:
        opened, _ = await client.ledgers.read(found[-1])
        while await client.bookies.info(OLD) is not None or await client.ledgers.is_writer_alive(
            opened
        ):
            await cluster.simulation.sleep(0.5)
    return found


async def check_renamed(cluster: SimCluster, ledger_ids: list[int]) -> None:
    """Checks that nothing names the old id, and that the bookie serves what it has by its new."""
    await cluster.start_bookie(NAME)
    assert cluster.is_up(NAME)
    async with cluster.client() as client:
        assert OLD not in await client.bookies.all()
        assert NEW in await client.bookies.available()
        for ledger_id in ledger_ids:
            assert OLD not in named((await client.ledgers.read(ledger_id))[0])
            assert NEW in named((await client.ledgers.read(ledger_id))[0])
            assert await statuses(client, NEW, ledger_id) == [Status.OK] * ENTRIES
            reader = await client.open_ledger(ledger_id)
            entries = [bytes(one.payload) for one in await reader.read(0, ENTRIES - 1)]
            assert entries == [b"%d" % entry * 1000 for entry in range(ENTRIES)]
        mark = await client.underreplication.read(ledger_ids[0])
        assert mark is not None
        assert NEW in mark.replicas
        assert await client.bookies.locations.read() == {NEW: Location.parse("/eu/rack-7")}
        [left] = await Decommissions(client.store).list()
        assert left.replacement == NEW
        for path in (path_of(NEW), start_count_path(OLD), client.bookies.cookie_path(OLD)):
            with pytest.raises(NoSuchNode):
                await client.store.get(path)


async def check_serves_under_one_id(cluster: SimCluster, ledger_ids: list[int]) -> None:
    """Starts the bookie under either id: if it serves, no ledger names it by the other."""
    for port, other in ((3181, NEW), (PORT, OLD)):
        cluster.configure(NAME, port=port)
        await cluster.start_bookie(NAME)
        if cluster.is_up(NAME):
            async with cluster.client() as client:
                for ledger_id in ledger_ids:
                    assert other not in named((await client.ledgers.read(ledger_id))[0])
            await cluster.stop_bookie(NAME)
            async with cluster.client() as client:
                while await client.bookies.info(f"{NAME}:{port}") is not None:
                    await cluster.simulation.sleep(0.5)
    cluster.configure(NAME, port=3181)


async def die_in_call(cluster: SimCluster, number: int, act: Callable[[], Awaitable[bool]]) -> bool:
    """Does `act`, in which the bookie's process dies before its call `number` of the metadata
    store takes effect; False if it makes fewer."""
    left, is_killed = number, False

    def look(node: str, _kind: str, _path: str) -> None:
        nonlocal left, is_killed
        if node != NAME:
            return
        left -= 1
        if left == 0:
            cluster.metadata.on_call = None
            is_killed = True
            cluster.kill_bookie_now(NAME)

    cluster.metadata.on_call = look
    await act()
    cluster.metadata.on_call = None
    await cluster.kill_bookie(NAME)
    return is_killed


async def end_rename(cluster: SimCluster) -> None:
    """Repeats the command until it ends; at the end the bookie has its new port."""
    assert await cluster.rename_bookie(NAME, PORT)


async def _interrupted(
    simulation: Simulation, die: Callable[[SimCluster], Awaitable[bool]]
) -> bool:
    async with SimCluster(simulation, bookies=3, config=two_directories) as cluster:
        written = await prepare(cluster)
        was_killed = await die(cluster)
        cluster.configure(NAME, port=3181)
        if was_killed:
            await check_serves_under_one_id(cluster, written)
        await end_rename(cluster)
        await check_renamed(cluster, written)
        return was_killed


@pytest.mark.parametrize("kind", list(CrashKind))
def test_a_rename_that_dies_in_any_operation_of_the_disk_is_completed(kind: CrashKind) -> None:
    async def main(simulation: Simulation) -> bool:
        async def die(cluster: SimCluster) -> bool:
            return await die_in(
                cluster,
                NAME,
                simulation.seed,
                kind,
                lambda: cluster.rename_bookie(NAME, PORT),
            )

        return await _interrupted(simulation, die)

    assert 8 < _tried(main, stride(ci=2)) < _OPERATIONS_MAX


def test_a_rename_that_dies_in_any_call_of_the_metadata_store_is_completed() -> None:
    async def main(simulation: Simulation) -> bool:
        async def die(cluster: SimCluster) -> bool:
            return await die_in_call(
                cluster, simulation.seed, lambda: cluster.rename_bookie(NAME, PORT)
            )

        return await _interrupted(simulation, die)

    assert 40 < _tried(main, stride(ci=5)) < _OPERATIONS_MAX


def _tried(main: Callable[[Simulation], Awaitable[bool]], step: int) -> int:
    """Runs `main` with each crash point as the seed, until it has no such; returns that."""
    for number in range(1, _OPERATIONS_MAX, step):
        if not run_simulated(main, number, time_limit_s=600):
            return number
    return _OPERATIONS_MAX
