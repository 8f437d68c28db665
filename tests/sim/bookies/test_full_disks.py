"""Disks fill up: writers change bookies or fail, reads continue, freed space restores all."""

from __future__ import annotations

import dataclasses
import random
from contextlib import aclosing

import pytest
import trio

from bookie.config import KIB, BookieConfig
from bookie.testing import (
    CrashKind,
    SimCluster,
    Simulation,
    run_simulated,
    simulate,
    small_config,
)
from bookie.testing.disk import SimDisk
from ledger.client import LedgerClient
from ledger.errors import LedgerError, NotEnoughBookies, RetryableError
from ledger.options import ClientOptions
from ledger.writing.writer import LedgerWriter
from tests.effort import scaled

IMPATIENT = ClientOptions(add_timeout_s=2.0, read_timeout_s=2.0, ensemble_change_timeout_s=3.0)
CAPACITY = 4096 * KIB
PAYLOAD = bytes(16 * KIB)


def _payload(number: int) -> bytes:
    return b"%08d" % number + PAYLOAD


async def _wait_writable(client: LedgerClient, count: int = 3) -> None:
    """Waits until this number of bookies take entries."""
    with trio.fail_after(120):
        async with aclosing(client.bookies.watch_available()) as changes:
            async for found in changes:
                if len(found) == count:
                    return


def _fill(disk: SimDisk, left_bytes: int = 0) -> None:
    """Somebody else takes the room."""
    disk.options.capacity_bytes = disk.used_bytes + left_bytes


async def _make_small(cluster: SimCluster) -> None:
    """Gives all disks `CAPACITY`; returns when the bookies have seen it."""
    for name in cluster.bookies:
        cluster.disk(name).options.capacity_bytes = CAPACITY
    await trio.sleep(11)


async def _write_until_refused(writer: LedgerWriter) -> int:
    """How many entries were confirmed."""

    async def write() -> None:
        for number in range(10_000):
            await writer.append(_payload(number))

    with pytest.raises(NotEnoughBookies, match="read only"):
        await write()
    return writer.last_add_confirmed + 1


async def _read_all(client: LedgerClient, ledger_id: int, confirmed: int) -> None:
    """Recovers the ledger, as often as connections to restarted bookies break; reads it all."""
    with trio.fail_after(60):
        while True:
            try:
                reader = await client.open_ledger(ledger_id)
                break
            except RetryableError:
                await trio.sleep(1)
    async with reader:
        assert reader.last_add_confirmed >= confirmed - 1
        for number in range(confirmed):
            assert bytes((await reader.read(number, number))[0].payload) == _payload(number)


def test_full_disks_refuse_adds_serve_recovery_and_reads_and_are_writable_again() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await _make_small(cluster)
        async with cluster.client(options=IMPATIENT) as client:
            writer = await client.create_ledger()
            confirmed = await _write_until_refused(writer)
            assert confirmed > 50
            assert all(cluster.is_up(name) for name in cluster.bookies)
            assert len(await client.bookies.read_only()) >= 2
            with pytest.raises(NotEnoughBookies):
                await client.create_ledger()
            # Recovery fences and writes to read-only bookies; then all is read.
            await _read_all(client, writer.ledger_id, confirmed)
            # Retention deletes; the bookies are not notified.
            await client.delete_ledger(writer.ledger_id)
            await _wait_writable(client)
            await trio.sleep(1)  # a bookie enters the one list before it leaves the other
            assert not await client.bookies.read_only()
            async with client.create_ledger() as again:
                await again.append(b"still alive!")
        assert cluster.restarts == 3, "no bookie died of it"

    for seed in range(scaled(ci=1, night=20)):
        simulate(scenario, seed)


def test_a_writer_moves_on_when_one_disk_is_full_and_reads_there_go_on() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client(options=IMPATIENT) as client:
            writer = await client.create_ledger(ensemble_size=3)
            for number in range(10):
                await writer.append(_payload(number))
            full = writer.metadata.last_fragment.bookies[0]
            name = full.partition(":")[0]
            _fill(cluster.disk(name), 200 * KIB)
            for number in range(10, 60):
                with trio.fail_after(5):
                    await writer.append(_payload(number))
            assert full not in writer.metadata.last_fragment.bookies
            assert list(await client.bookies.read_only()) == [full]
            assert cluster.is_up(name)
            async with client.open_ledger(writer.ledger_id, recover=False) as reader:
                for other in cluster.bookies:  # what is read now is read from the full one
                    if other != name:
                        cluster.kill_bookie_now(other)
                found = await reader.read(0, 8)
            assert [bytes(entry.payload) for entry in found] == [_payload(n) for n in range(9)]

    for seed in range(scaled(ci=1, night=20)):
        simulate(scenario, seed, bookies=4)


def _several_directories(name: str, chance: random.Random) -> BookieConfig:
    return dataclasses.replace(
        small_config(name, chance),
        journal_directories=("/journal", "/journal-1"),
        ledger_directories=("/ledgers", "/ledgers-1"),
    )


@pytest.mark.parametrize("directory", ["/journal", "/journal-1", "/ledgers", "/ledgers-1"])
def test_one_full_directory_of_several_makes_a_bookie_read_only_and_ends_nothing(
    directory: str,
) -> None:
    """Others fill it to the last byte, before a reserve was made: the journal waits for its next
    file, or a checkpoint for room. Nothing is restarted."""

    async def main(simulation: Simulation) -> None:
        cluster = SimCluster(simulation, bookies=4, config=_several_directories)
        for name in cluster.bookies:
            made = cluster.config(name)
            cluster.disk(name).separate((*made.journal_directories, *made.ledger_directories))
        async with cluster, cluster.client(options=IMPATIENT) as client:
            writers = [await client.create_ledger(ensemble_size=3) for _ in range(2)]
            full = writers[0].metadata.last_fragment.bookies[0]

            async def append(first: int, end: int) -> None:
                for number in range(first, end):
                    for writer in writers:
                        with trio.fail_after(5):
                            await writer.append(_payload(number))

            await append(0, 10)
            await trio.sleep(3)  # a checkpoint was made, and none is in progress
            name = full.partition(":")[0]
            disk = cluster.disk(name)
            options = disk.volumes.options[directory]
            options.capacity_bytes = disk.used_bytes_of(directory)
            number = 10

            def is_used() -> bool:
                return any(full in one.metadata.last_fragment.bookies for one in writers)

            with trio.fail_after(60):
                while full not in await client.bookies.read_only() or is_used():
                    await append(number, number + 1)
                    number += 1
                    await trio.sleep(0.05)
            assert list(await client.bookies.read_only()) == [full]
            assert cluster.is_up(name)
            async with client.open_ledger(writers[0].ledger_id, recover=False) as reader:
                for other in cluster.bookies:  # what is read now is read from the full one
                    if other != name:
                        cluster.network.block("client-1", other)
                found = await reader.read(0, 8)
                cluster.network.heal()
            assert [bytes(entry.payload) for entry in found] == [_payload(n) for n in range(9)]
            options.capacity_bytes = 1 << 40
            await _wait_writable(client, 4)
            async with client.create_ledger(ensemble_size=4, write_quorum=4, ack_quorum=4) as again:
                await again.append(b"still alive!")
            assert cluster.restarts == 4, "no bookie died of it"

    for seed in range(scaled(ci=1, night=12)):
        run_simulated(main, seed, time_limit_s=600)


@pytest.mark.parametrize("kind", list(CrashKind))
def test_a_disk_filled_by_others_to_the_last_byte_can_restart_and_collect(kind: CrashKind) -> None:
    async def scenario(cluster: SimCluster) -> None:
        await _make_small(cluster)
        async with cluster.client(options=IMPATIENT) as client:
            writer = await client.create_ledger()
            confirmed = await _write_until_refused(writer)
            for name in cluster.bookies:
                assert "/journal/RESERVE" in cluster.disk(name).inodes
                _fill(cluster.disk(name))
                await cluster.kill_bookie(name, kind)
            await cluster.start_all()
            assert all(cluster.is_up(name) for name in cluster.bookies)
            assert len(await client.bookies.read_only()) == 3
            await _read_all(client, writer.ledger_id, confirmed)
            await client.delete_ledger(writer.ledger_id)
            await trio.sleep(60)
            used = [cluster.disk(name).used_bytes for name in cluster.bookies]
            assert max(used) < CAPACITY / 2, "the entry logs are gone"
            for name in cluster.bookies:
                cluster.disk(name).options.capacity_bytes = CAPACITY
            await _wait_writable(client)

    for seed in range(scaled(ci=1, night=20)):
        simulate(scenario, seed)


def test_a_disk_that_fills_at_any_moment_loses_nothing_acknowledged() -> None:
    """Others take all room at once, at a random moment; then they give it back."""

    async def scenario(cluster: SimCluster) -> None:
        chance = cluster.simulation.chance("story")
        async with cluster.client(options=IMPATIENT) as client:
            writer = await client.create_ledger()
            confirmed: list[int] = []

            async def write() -> None:
                try:
                    for number in range(400):
                        await writer.append(_payload(number))
                        confirmed.append(number)
                except LedgerError:
                    pass  # what is confirmed is what counts

            async with trio.open_nursery() as nursery:
                nursery.start_soon(write)
                await trio.sleep(chance.uniform(0.0, 3.0))
                for name in cluster.bookies:
                    left = chance.choice((0, 1 * KIB, 50 * KIB, 300 * KIB))
                    _fill(cluster.disk(name), left)
                await trio.sleep(chance.uniform(0.0, 20.0))
                nursery.cancel_scope.cancel()
            for name in cluster.bookies:
                cluster.disk(name).options.capacity_bytes = 1 << 40
                if cluster.is_up(name) and chance.random() < 0.5:
                    await cluster.kill_bookie(name, chance.choice(list(CrashKind)))
            await cluster.start_all()
            await _wait_writable(client)
            await _read_all(client, writer.ledger_id, len(confirmed))

    for seed in range(scaled(ci=2, night=120)):
        simulate(scenario, seed)


def test_an_operator_makes_a_bookie_read_only_and_writable_again() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client(options=IMPATIENT) as client:
            await cluster.kill_bookie("bookie-1")
            node = cluster._nodes["bookie-1"]
            node.config = dataclasses.replace(node.config, force_read_only=True)
            await cluster.start_bookie("bookie-1")
            assert list(await client.bookies.read_only()) == ["bookie-1:3181"]
            async with client.create_ledger(
                ensemble_size=2, write_quorum=2, ack_quorum=2
            ) as writer:
                await writer.append(b"elsewhere")
                assert "bookie-1:3181" not in writer.metadata.last_fragment.bookies

    simulate(scenario, 1)
