"""Nine bookies in three racks, of which one dies as a whole: no ledger loses its ack quorum."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
import trio

from bookie.config import BookieConfig
from bookie.testing import CrashKind, SimCluster, Simulation, run_simulated, small_config
from ledger.client import LedgerClient
from ledger.core.metadata import LedgerMetadata
from ledger.core.placement.grading import grade_ledger
from ledger.core.placement.policies import Grade, PlacementPolicy
from ledger.core.placement.topology import Location
from ledger.errors import NotEnoughBookies
from ledger.options import ClientOptions
from ledger.writing import creator
from ledger.writing.writer import LedgerWriter
from stream.namespace import Namespace, create_namespace
from tests.effort import scaled

T = TypeVar("T")
RACKS = 3
IMPATIENT = ClientOptions(add_timeout_s=0.5, read_timeout_s=0.5, ensemble_change_timeout_s=2.0)
RACK = PlacementPolicy("rack", 2, enforce=True)


def rack_of(bookie: str) -> int:
    return int(bookie.removesuffix(":3181").removeprefix("bookie-")) % RACKS


def placed(name: str, chance: random.Random) -> BookieConfig:
    location = f"/eu-1/rack-{rack_of(name)}"
    return dataclasses.replace(small_config(name, chance), location=location)


def bookies_of(cluster: SimCluster, rack: int) -> list[str]:
    return [name for name in cluster.bookies if rack_of(name) == rack]


async def lose_rack(cluster: SimCluster, rack: int) -> None:
    async with trio.open_nursery() as nursery:
        for name in bookies_of(cluster, rack):
            nursery.start_soon(cluster.kill_bookie, name, CrashKind.POWER_LOST_ALL)


def copies_left(metadata: LedgerMetadata, lost: int) -> int:
    """Returns the fewest copies that a write set has outside the rack `lost`."""
    size, quorum = metadata.ensemble_size, metadata.write_quorum
    return min(
        sum(rack_of(fragment.bookies[(start + step) % size]) != lost for step in range(quorum))
        for fragment in metadata.fragments
        for start in range(size)
    )


async def write(client: LedgerClient, policy: PlacementPolicy | None) -> list[LedgerWriter]:
    writers = []
    for number in range(12):
        size = 3 + number % 3
        writers.append(
            await client.create_ledger(ensemble_size=size, write_quorum=3, placement=policy)
        )
    for writer in writers:
        await writer.append_many([b"%d" % n for n in range(20)])
    return writers


async def lose_a_rack(cluster: SimCluster, policy: PlacementPolicy | None) -> list[int]:
    """Loses a rack under twelve writers; returns the copies that each ledger has left at least.
    Afterwards all of them are written, closed and read without that rack."""
    lost = cluster.chance.randrange(RACKS)
    async with cluster.client(options=IMPATIENT) as client:
        writers = await write(client, policy)
        left = [copies_left(writer.metadata, lost) for writer in writers]
        if policy is None:
            return left
        await lose_rack(cluster, lost)
        with trio.fail_after(60):
            for writer in writers:
                await writer.append_many([b"after", b"all"])
                assert writer.last_add_confirmed == 21
        async with client.create_ledger(placement=policy) as another:
            await another.append(b"new")
        assert len({rack_of(b) for b in another.metadata.fragments[0].bookies} - {lost}) == 2
        for writer in writers:
            await writer.close()
            async with client.open_ledger(writer.ledger_id) as reader:
                entries = await reader.read(0, 21)
            assert [bytes(one.payload) for one in entries][19:] == [b"19", b"after", b"all"]
            topology = await client.bookies.topology()
            is_bad = grade_ledger(writer.metadata, topology).grade is Grade.FAIL
            assert not is_bad or not policy.enforce
    return left


def run_cluster(scenario: Callable[[SimCluster], Awaitable[T]], seed: int) -> T:
    async def main(simulation: Simulation) -> T:
        async with SimCluster(simulation, bookies=9, config=placed) as cluster:
            return await scenario(cluster)

    return run_simulated(main, seed)


def run(policy: PlacementPolicy | None, seed: int) -> list[int]:
    return run_cluster(lambda cluster: lose_a_rack(cluster, policy), seed)


def test_no_ledger_loses_its_ack_quorum_with_a_rack_and_writers_continue() -> None:
    for seed in range(scaled(ci=2, night=40)):
        # With five bookies on three racks two of a write set can share one.
        left = run(PlacementPolicy("rack", 3), seed)
        assert all(copies == 2 for number, copies in enumerate(left) if number % 3 == 0)
        left = run(RACK, seed)
        assert all(copies >= 1 for copies in left)
        assert all(copies == 2 for number, copies in enumerate(left) if number % 3 == 0)


def test_without_a_policy_a_rack_takes_ack_quorums() -> None:
    assert min(copies for seed in range(3) for copies in run(None, seed)) < 2


async def wait_replaced(writer: LedgerWriter, gone: list[str]) -> None:
    """Writes until the ensemble has none of `gone`."""
    with trio.fail_after(60):
        while not set(gone).isdisjoint(writer.metadata.last_fragment.bookies):
            await writer.append(b"more")
            await trio.sleep(0.1)


def test_a_bookie_is_replaced_by_one_of_its_rack_while_there_is_one() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client(options=IMPATIENT) as client:
            writer = await client.create_ledger(placement=PlacementPolicy("rack", 3, True))
            rack, seen = rack_of(writer.metadata.last_fragment.bookies[1]), list[str]()
            for _ in range(RACKS):
                await wait_replaced(writer, seen)
                bookie = writer.metadata.last_fragment.bookies[1]
                assert rack_of(bookie) == rack
                seen.append(bookie)
                await cluster.kill_bookie(bookie.removesuffix(":3181"), CrashKind.POWER_LOST_ALL)
            # The rack is gone. Its copies are made nowhere else: the rule is hard.
            with trio.fail_after(60):
                await writer.append_many([b"%d" % number for number in range(50)])
            await trio.sleep(20)  # until its registration has ended
            await writer.append_many([b"%d" % number for number in range(50)])
            assert writer.metadata.last_fragment.bookies[1] == seen[-1]
            with pytest.raises(NotEnoughBookies, match=r"needs 3 racks .* are in 2 racks"):
                await client.create_ledger(placement=PlacementPolicy("rack", 3, True))
            await cluster.start_all()
            await trio.sleep(10)
            await writer.append(b"healed")
            assert {rack_of(b) for b in writer.metadata.last_fragment.bookies} == {0, 1, 2}
            await writer.close()

    run_cluster(scenario, 2)


def test_a_recovery_replaces_a_bookie_by_one_of_its_rack() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("old") as old, cluster.client(options=IMPATIENT) as new:
            writer = await old.create_ledger(placement=PlacementPolicy("rack", 3, True))
            await writer.append(b"a")
            for number in range(20):
                writer.append_nowait(b"%d" % number)
            await trio.sleep(0.002)
            bookies = writer.metadata.last_fragment.bookies
            cluster.network.partition(["old"], cluster.bookies)
            await cluster.kill_bookie(bookies[0].removesuffix(":3181"), CrashKind.POWER_LOST_ALL)
            async with new.open_ledger(writer.ledger_id) as reader:
                for fragment in reader.metadata.fragments:
                    assert {rack_of(b) for b in fragment.bookies} == {0, 1, 2}

    for seed in range(scaled(ci=3, night=20)):
        run_cluster(scenario, seed)


def test_a_client_reads_from_its_own_rack() -> None:
    async def scenario(cluster: SimCluster) -> None:
        options = dataclasses.replace(IMPATIENT, location="/eu-1/rack-2")
        async with cluster.client(options=options) as client:
            async with client.create_ledger(placement=PlacementPolicy("rack", 3)) as writer:
                await writer.append_many([b"%d" % number for number in range(100)])
            assert rack_of(writer.metadata.fragments[0].bookies[0]) == 2, "the first copy is near"
            await lose_rack(cluster, 0)
            await lose_rack(cluster, 1)
            async with client.open_ledger(writer.ledger_id) as reader:
                await trio.sleep(1)  # places are learned in the background
                await reader.read(0, 99)
                statistics = reader.statistics()
            assert (statistics.hedges, statistics.replica_failures) == (0, 0)
            known = client.bookies.known_topology
            assert known.place("bookie-2:3181").location == Location("eu-1", "rack-2")

    for seed in range(3):
        run_cluster(scenario, seed)


def test_free_space_is_asked_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creator, "SPACE_ASKED_S", 30.0)

    async def scenario(cluster: SimCluster) -> None:
        options = dataclasses.replace(IMPATIENT, weight_by_free_space=True)
        async with cluster.client(options=options) as client:
            await client.create_ledger()
            await trio.sleep(10)
            known = client.bookies.free_bytes
            assert sorted(known) == sorted(f"{name}:3181" for name in cluster.bookies)
            assert (await client.bookies.candidates()).all.weight == sum(known.values())
            await client.create_ledger()
            await trio.sleep(10)
            assert client.bookies.free_bytes is known
            await cluster.kill_bookie("bookie-4")
            await trio.sleep(30)
            await client.create_ledger()
            await trio.sleep(10)
            assert len(client.bookies.free_bytes) == 8

    run_cluster(scenario, 1)


def test_a_stream_follows_the_placement_of_its_namespace() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client(options=IMPATIENT) as client:
            await create_namespace(client, "n")
            namespace = Namespace(client, "n")
            await namespace.create_stream("log")
            async with namespace.writer("log") as writer:
                await writer.append(b"anywhere")
                await namespace.set_policy(placement_policy="rack", placement_min=3)
                await trio.sleep(5)
                await writer.append(b"in three racks")
            ledgers = [await client.ledger_metadata(one) for one in await client.list_ledgers()]
            [ruled] = [one for one in ledgers if b"rack,minimum=3" in one.custom.values()]
            assert {rack_of(b) for b in ruled.fragments[0].bookies} == {0, 1, 2}
            assert len(ledgers) == 2

    run_cluster(scenario, 3)
