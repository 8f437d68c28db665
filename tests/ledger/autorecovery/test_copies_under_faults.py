"""Copies in simulated clusters: in virtual time, with bookies that die and lose what was not
synced."""

from __future__ import annotations

import random

import pytest
import trio

from bookie.testing import CrashKind, SimCluster, Simulation, run_simulated, simulate
from ledger.autorecovery.copier import Copier, CopierOptions, CopyReport
from ledger.client import LedgerClient
from ledger.core.entry import master_key
from ledger.core.metadata import LedgerMetadata
from ledger.options import ClientOptions
from tests.effort import scaled
from tests.ledger.autorecovery.copies import (
    lacking,
    other_bookie,
    raw_copies,
    written,
)

QUICK = ClientOptions(read_timeout_s=1, add_timeout_s=0.5, batch_read_bytes=4096)


def name_of(bookie_id: str) -> str:
    return bookie_id.split(":")[0]


@pytest.mark.parametrize("seed", range(scaled(ci=25, night=2000)))
def test_what_is_counted_survives_the_loss_of_power(seed: int) -> None:
    """Bookies are killed at random while a ledger is copied, again and again until all of it is;
    then the target loses its power: each entry counted in any of the copies is there."""

    async def scenario(cluster: SimCluster) -> None:
        rng = random.Random(seed)
        sizes = rng.choice([(2, 2, 2), (3, 2, 2)])
        version = rng.choice([2, 2, 3])
        options = ClientOptions(
            read_timeout_s=1, add_timeout_s=0.5, batch_read_bytes=4096, wire_version=version
        )
        async with cluster.client(options=options) as client:
            payloads = [rng.randbytes(rng.randrange(300)) for _ in range(rng.randrange(1, 600))]
            metadata = await written(client, payloads, sizes)
            target = await other_bookie(client, metadata)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(kill_some, cluster, rng)
                report = await copied(client, metadata, target, rng)
                nursery.cancel_scope.cancel()
            assert report.entries > 0
            await cluster.start_all()
            await cluster.kill_bookie(name_of(target), CrashKind.POWER_LOST_TORN)
            await cluster.start_all()
            wanted = [n for first, last in lacking(metadata) for n in range(first, last + 1)]
            stored = await raw_copies(client, target, metadata.ledger_id, wanted)
            source = metadata.fragments[0].bookies[0]
            assert stored == await raw_copies(client, source, metadata.ledger_id, wanted)

    simulate(scenario, seed, bookies=4)


async def kill_some(cluster: SimCluster, rng: random.Random) -> None:
    for _ in range(rng.randrange(4)):
        await trio.sleep(rng.random() * 0.3)
        name = rng.choice(cluster.bookies)
        await cluster.kill_bookie(name, rng.choice(list(CrashKind)))
        await trio.sleep(rng.random())
        if not cluster.is_up(name):
            await cluster.start_bookie(name)


async def copied(
    client: LedgerClient, metadata: LedgerMetadata, target: str, rng: random.Random
) -> CopyReport:
    """Copies until a copy is complete; what one of them counted, the later ones need not copy."""
    limits = CopierOptions(bytes_per_s=rng.choice([0, 100_000]), source_bytes_max=8192)
    async with Copier(client, limits) as copier:
        for _ in range(50):
            report = await copier.copy(metadata, target, lacking(metadata))
            if report.is_complete:
                return report
            assert all(one.is_doubt for one in report.failures), report
            await trio.sleep(2)
    raise AssertionError(f"it never ends: {report}")


def test_the_rate_is_kept() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client(options=QUICK) as client:
            metadata = await written(client, [b"x" * 1000] * 500)
            target = await other_bookie(client, metadata)
            async with Copier(client, CopierOptions(bytes_per_s=100_000)) as copier:
                began_s = trio.current_time()
                report = await copier.copy(metadata, target, lacking(metadata))
                seconds = trio.current_time() - began_s
            assert report.is_complete
            # 518 KB, less a tenth of a second and the last batch.
            assert 4.4 < seconds < 6.5, seconds

    simulate(scenario)


def test_all_copies_together_keep_the_rate() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client(options=QUICK) as client:
            ledgers = [await written(client, [b"x" * 1000] * 200) for _ in range(4)]
            began_s = trio.current_time()
            async with (
                Copier(client, CopierOptions(bytes_per_s=100_000)) as copier,
                trio.open_nursery() as nursery,
            ):
                for metadata in ledgers:
                    target = await other_bookie(client, metadata)
                    nursery.start_soon(copier.copy, metadata, target, lacking(metadata))
            assert copier.entries == 800
            assert 7.0 < trio.current_time() - began_s < 10.0

    simulate(scenario)


def test_a_target_without_power_in_the_middle_is_reported_and_counted_entries_are_there() -> None:
    async def main(simulation: Simulation) -> None:
        async with (
            SimCluster(simulation, bookies=3) as cluster,
            cluster.client(options=QUICK) as client,
        ):
            metadata = await written(client, [b"x" * 1000] * 500)
            target = await other_bookie(client, metadata)
            reports: list[CopyReport] = []
            async with (
                Copier(client, CopierOptions(bytes_per_s=200_000)) as copier,
                trio.open_nursery() as nursery,
            ):

                async def copy() -> None:
                    reports.append(await copier.copy(metadata, target, lacking(metadata)))

                nursery.start_soon(copy)
                await trio.sleep(1)
                await cluster.kill_bookie(name_of(target), CrashKind.POWER_LOST_TORN)
            (report,) = reports
            assert report.target_error
            assert 0 < report.entries < 500
            await cluster.start_all()
            stored = await raw_copies(client, target, metadata.ledger_id, range(500))
            assert len(stored) >= report.entries
            source = metadata.fragments[0].bookies[0]
            whole = await raw_copies(client, source, metadata.ledger_id, range(500))
            assert stored.items() <= whole.items()

    run_simulated(main, 3)


@pytest.mark.parametrize("wire_version", [2, 3])
def test_a_source_in_limbo_is_a_doubt_and_never_proof_of_absence(wire_version: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client(options=ClientOptions(wire_version=wire_version)) as client:
            metadata = await written(client, [b"x"] * 10, (1, 1, 1))
            target = await other_bookie(client, metadata)
            (holder,) = metadata.fragments[0].bookies
            (empty,) = {f"{one}:3181" for one in cluster.bookies} - {target, holder}
            bookie = cluster._nodes[name_of(empty)].bookie
            assert bookie is not None
            assert bookie.storage is not None
            state = bookie.storage.create(metadata.ledger_id, master_key(b"secret"))
            for is_limbo in (True, False):
                state.is_limbo = is_limbo
                async with Copier(client) as copier:
                    report = await copier.copy(
                        metadata, target, [(0, 9)], sources=lambda entry_id: [empty]
                    )
                (failure,) = report.failures
                assert failure.is_doubt is is_limbo, failure
                assert failure.entries == 10
                assert ("missing" in failure.reason) is not is_limbo
                assert empty in failure.reason

    simulate(scenario)


def test_without_any_other_bookie_there_is_no_doubt() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client(options=QUICK) as client:
            metadata = await written(client, [b"x"] * 10, (1, 1, 1))
            (holder,) = metadata.fragments[0].bookies
            async with Copier(client) as copier:
                report = await copier.copy(metadata, holder, [(3, 4)])
            (failure,) = report.failures
            assert failure.reason == "no other bookie is to have a copy"
            assert (failure.first_entry, failure.last_entry) == (3, 4)
            assert not failure.is_doubt

    simulate(scenario)
