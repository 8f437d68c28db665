"""Bookies that acknowledge before they sync: what a kill may not take, and what power may.

A process that is killed leaves its writes to the system: nothing is lost, however many die. A
machine that stops may forget what it acknowledged, so its bookie denies nothing afterwards; as
long as less than an ack quorum stopped, all that was confirmed is there.
"""

from __future__ import annotations

import dataclasses
import random

import pytest
import trio

from bookie.config import BookieConfig
from bookie.testing import CrashKind, SimCluster, Simulation, run_simulated, small_config
from ledger.client import LedgerClient
from ledger.errors import LedgerError, RetryableError
from ledger.options import ClientOptions
from tests.effort import scaled

IMPATIENT = ClientOptions(add_timeout_s=2.0, read_timeout_s=2.0, ensemble_change_timeout_s=3.0)
POWER = [CrashKind.POWER_LOST_ALL, CrashKind.POWER_LOST_TORN]


def _config(name: str, chance: random.Random) -> BookieConfig:
    return dataclasses.replace(
        small_config(name, chance),
        journal_sync_data=False,
        # Syncs come late enough for every crash to find something unsynced.
        journal_page_cache_flush_interval_ms=5000,
    )


async def _write(client: LedgerClient, seconds: float) -> tuple[int, list[bytes]]:
    """A ledger that was never closed, and all that was confirmed of it."""
    writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    confirmed: list[bytes] = []
    with trio.move_on_after(seconds):
        while True:
            payload = b"%d" % len(confirmed)
            await writer.append(payload)
            confirmed.append(payload)
    writer.abandon()
    return writer.ledger_id, confirmed


async def _recovered(client: LedgerClient, ledger_id: int, seconds: float) -> list[bytes]:
    """All entries, after recovery; TooSlowError if it cannot be recovered."""
    with trio.fail_after(seconds):
        while True:
            try:
                async with client.open_ledger(ledger_id) as reader:
                    last = reader.last_add_confirmed
                    return [bytes(one.payload) for one in await reader.read(0, last)]
            except RetryableError:
                await trio.sleep(0.5)


async def _nothing_is_lost(
    cluster: SimCluster, client: LedgerClient, ledger_id: int, confirmed: list[bytes]
) -> None:
    await cluster.start_all()
    found = await _recovered(client, ledger_id, 120)
    assert found[: len(confirmed)] == confirmed


def test_killed_processes_lose_nothing_they_acknowledged() -> None:
    async def main(simulation: Simulation) -> None:
        chance = simulation.chance("story")
        async with SimCluster(simulation, config=_config) as cluster, cluster.client() as client:
            ledger_id, confirmed = await _write(client, chance.uniform(0.5, 3))
            assert len(confirmed) > 5
            for name in cluster.bookies:
                await cluster.kill_bookie(name, CrashKind.PROCESS_KILLED)
            await cluster.start_all()
            found = await _recovered(client, ledger_id, 60)
            assert found[: len(confirmed)] == confirmed

    for seed in range(scaled(ci=1, night=40)):
        run_simulated(main, seed, time_limit_s=300)


@pytest.mark.parametrize("kind", POWER)
def test_one_machine_that_lost_power_takes_nothing_confirmed_with_it(kind: CrashKind) -> None:
    """The other, too, is killed; only who lost power has forgotten something."""

    async def main(simulation: Simulation) -> None:
        chance = simulation.chance("story")
        async with (
            SimCluster(simulation, config=_config) as cluster,
            cluster.client(options=IMPATIENT) as client,
        ):
            ledger_id, confirmed = await _write(client, chance.uniform(0.5, 3))
            first, second, _ = chance.sample(cluster.bookies, 3)
            cluster.kill_bookie_now(first, kind)
            cluster.kill_bookie_now(second, CrashKind.PROCESS_KILLED)
            await trio.sleep(chance.uniform(0, 2))
            await _nothing_is_lost(cluster, client, ledger_id, confirmed)

    for seed in range(scaled(ci=1, night=40)):
        run_simulated(main, seed, time_limit_s=300)


def test_one_journal_that_failed_takes_nothing_confirmed_with_it() -> None:
    """Its sync fails, and the system takes the pages for written; another bookie is killed, too."""

    async def main(simulation: Simulation) -> None:
        chance = simulation.chance("story")
        async with (
            SimCluster(simulation, config=_config) as cluster,
            cluster.client(options=IMPATIENT) as client,
        ):
            ledger_id, confirmed = await _write(client, chance.uniform(0.5, 3))
            first, second, _ = chance.sample(cluster.bookies, 3)
            cluster.disk(first).options.sync_error_probability = 1.0
            with trio.fail_after(30):
                while cluster.is_up(first):  # noqa: ASYNC110 - until its journal syncs
                    await trio.sleep(0.1)
            cluster.disk(first).options.sync_error_probability = 0.0
            cluster.kill_bookie_now(second, CrashKind.PROCESS_KILLED)
            await trio.sleep(chance.uniform(0, 2))
            await _nothing_is_lost(cluster, client, ledger_id, confirmed)

    for seed in range(scaled(ci=1, night=40)):
        run_simulated(main, seed, time_limit_s=300)


def test_where_all_machines_lost_power_a_ledger_is_not_closed_short() -> None:
    """What was confirmed may be gone. Then it is never reported as absent: the ledger stays
    open until somebody decides, or has all that was confirmed."""
    lost = 0

    async def main(simulation: Simulation) -> None:
        nonlocal lost
        chance = simulation.chance("story")
        async with (
            SimCluster(simulation, config=_config) as cluster,
            cluster.client(options=IMPATIENT) as client,
        ):
            ledger_id, confirmed = await _write(client, chance.uniform(0.5, 3))
            for name in cluster.bookies:
                cluster.kill_bookie_now(name, CrashKind.POWER_LOST_ALL)
            await trio.sleep(1)
            await cluster.start_all()
            try:
                found = await _recovered(client, ledger_id, 20)
            except (trio.TooSlowError, LedgerError):
                lost += 1
                metadata, _ = await client.ledgers.read(ledger_id)
                assert not metadata.is_closed
            else:
                assert found[: len(confirmed)] == confirmed

    for seed in range(scaled(ci=1, night=40)):
        run_simulated(main, seed, time_limit_s=300)
    assert lost > 0
