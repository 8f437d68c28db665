"""A disk that is lost: its bookie refuses to serve, and the others have its entries."""

from __future__ import annotations

import dataclasses
import random

import pytest
import trio

from bookie.config import BookieConfig
from bookie.testing import SimCluster, Simulation, run_simulated, small_config
from tests.effort import scaled

DIRECTORIES = ("/journal", "/journal-1", "/ledgers", "/ledgers-1")


def _config(name: str, chance: random.Random) -> BookieConfig:
    return dataclasses.replace(
        small_config(name, chance),
        journal_directories=DIRECTORIES[:2],
        ledger_directories=DIRECTORIES[2:],
    )


@pytest.mark.parametrize("lost", ["", *DIRECTORIES])
def test_a_bookie_without_one_of_its_disks_refuses_and_is_not_missed(lost: str) -> None:
    async def main(simulation: Simulation) -> None:
        async with SimCluster(simulation, bookies=4, config=_config) as cluster:
            async with cluster.client() as client:
                writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
                for number in range(20):
                    await writer.append(b"%d" % number)
                victim = writer.metadata.last_fragment.bookies[0].split(":")[0]
                await cluster.lose_disk(victim, lost)
                assert (cluster.is_up(victim), cluster.lost_bookies) == (False, [victim])
                # Its operator tries again, and it is the same.
                await cluster.start_bookie(victim)
                assert not cluster.is_up(victim)
                for number in range(20, 40):
                    await writer.append(b"%d" % number)
                assert victim not in str(writer.metadata.last_fragment.bookies)
                writer.abandon()
            async with cluster.client() as client, client.open_ledger(writer.ledger_id) as reader:
                assert reader.last_add_confirmed == 39
                entries = [bytes(entry.payload) for entry in await reader.read(0, 39)]
                assert entries == [b"%d" % number for number in range(40)]
            await cluster.start_all()
            assert victim not in cluster.bookies

    for seed in range(scaled(ci=1, night=12)):
        run_simulated(main, seed, time_limit_s=300)


def test_a_lost_disk_that_serves_ends_the_simulation() -> None:
    """With settings that allow a bookie to start with an empty disk: the check itself works."""

    def forgiving(name: str, chance: random.Random) -> BookieConfig:
        return dataclasses.replace(_config(name, chance), allow_empty_disk=True)

    async def main(simulation: Simulation) -> None:
        async with SimCluster(simulation, bookies=3, config=forgiving) as cluster:
            await cluster.lose_disk("bookie-0")
            await trio.sleep(1)

    with pytest.raises(AssertionError, match="bookie-0 serves although its disk is lost"):
        run_simulated(main, 0, time_limit_s=300)


def test_a_disk_that_is_lost_before_its_bookie_was_known_is_not_missed() -> None:
    """Such a bookie would rightly start as a new one: it never acknowledged anything."""

    async def main(simulation: Simulation) -> None:
        async with SimCluster(simulation, bookies=1) as cluster:
            name = cluster.add_bookie()
            cluster.begin_bookie(name)
            await trio.sleep(0.001)
            await cluster.lose_disk(name)
            assert (cluster.is_up(name), cluster.lost_bookies) == (False, [name])
            assert cluster.metadata.tree.get(f"/ledgers/cookies/{name}:3181") is None
            await trio.sleep(1)

    run_simulated(main, 0, time_limit_s=300)


def test_a_bookie_that_is_killed_before_it_ran_has_not_touched_its_disk() -> None:
    """Its first step mounts the disk: a dead process may not, or the disk counts as in use."""

    async def main(simulation: Simulation) -> None:
        async with SimCluster(simulation, bookies=0) as cluster:
            name = cluster.add_bookie()
            cluster.begin_bookie(name)
            await cluster.kill_bookie(name)
            cluster.disk(name).wipe()
            await cluster.start_bookie(name)
            assert cluster.is_up(name)

    run_simulated(main, 0, time_limit_s=300)
