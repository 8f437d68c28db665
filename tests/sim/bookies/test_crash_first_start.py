"""A new bookie dies in each operation of its first start: the next start succeeds.

Directories, locks, cookies, journal, index and mark are made, and the bookie is registered. One
journal and one ledger directory, and several of both; whatever is kept of what was not synced.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest
import trio

from bookie.config import BookieConfig
from bookie.testing import CrashKind, SimCluster, Simulation, run_simulated, small_config
from ledger.errors import MetadataUnavailable
from tests.crash_counts import AFTERMATH_OF, crashed
from tests.effort import scaled, stride
from tests.sim.bookies.dying_starts import die_in

_OPERATIONS_MAX = 500


def _several(name: str, chance: random.Random) -> BookieConfig:
    config = small_config(name, chance)
    return dataclasses.replace(
        config,
        journal_directories=("/journal", "/journal-1"),
        ledger_directories=("/ledgers", "/ledgers-1", "/ledgers-2"),
        write_cache_bytes=3 * config.write_cache_bytes,
        read_cache_bytes=3 * config.read_cache_bytes,
    )


async def _serves(cluster: SimCluster, name: str) -> None:
    await cluster.start_bookie(name)
    assert cluster.is_up(name)
    async with cluster.client() as client:
        writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        assert await writer.append(b"here") == 0
        await writer.close()


@pytest.mark.parametrize("kind", list(CrashKind))
@pytest.mark.parametrize("config", [small_config, _several])
def test_a_first_start_that_was_broken_off_anywhere_is_made_again(
    config: Callable[[str, random.Random], BookieConfig],
    kind: CrashKind,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tried = 0

    async def main(simulation: Simulation) -> bool:
        async with SimCluster(simulation, bookies=0, config=config) as cluster:
            name = cluster.add_bookie()
            was_killed = await die_in(cluster, name, number, kind)
            # And once more during that start, at another operation.
            await die_in(cluster, name, simulation.chance("again").randint(1, 60), kind)
            await _serves(cluster, name)
            await cluster.kill_bookie(name, CrashKind.POWER_LOST_ALL)
            await _serves(cluster, name)
            return was_killed

    for number in range(1, _OPERATIONS_MAX, stride(ci=11)):
        if not run_simulated(main, number, time_limit_s=300):
            break
        tried += 1
    with capsys.disabled():
        print(f" {tried} crash points ", end="")
    assert 20 < number < _OPERATIONS_MAX - 1


@pytest.mark.parametrize("config", [small_config, _several])
def test_killed_at_any_moment_while_the_metadata_store_answers_badly(
    config: Callable[[str, random.Random], BookieConfig],
) -> None:
    """A change that was made though its answer was an error: the cookie or the registration is
    there, and the bookie that made it is not."""

    async def main(simulation: Simulation) -> None:
        async with SimCluster(simulation, bookies=0, config=config) as cluster:
            name, chance = cluster.add_bookie(), simulation.chance("moments")
            options = cluster.metadata.options
            options.error_before_probability = options.error_after_probability = 0.2
            options.delay_max_s = 0.05
            for _ in range(4):
                cluster.begin_bookie(name)
                await trio.sleep(chance.uniform(0, 2))
                kind = chance.choice(list(CrashKind))
                crashed("VERSION", "registration", AFTERMATH_OF[kind.name])
                await cluster.kill_bookie(name, kind)
            options.error_before_probability = options.error_after_probability = 0.0
            while True:
                try:
                    await _serves(cluster, name)
                    break
                except MetadataUnavailable:
                    continue

    for seed in range(scaled(ci=8, night=400)):
        run_simulated(main, seed, time_limit_s=300)
