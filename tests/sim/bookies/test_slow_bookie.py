"""One of three bookies is a hundred times slower than the others: by virtual time, exactly.

With two acks of three wanted, the log must not feel it: not in its latency, and not in the memory
of the writer.
"""

from __future__ import annotations

import dataclasses
import random
from contextlib import AsyncExitStack

import pytest
import trio

from bookie.config import BookieConfig
from bookie.testing import SimCluster, Simulation, run_simulated, simulate, small_config
from ledger.options import ClientOptions
from ledger.writing.writer import LedgerWriter
from tests.effort import scaled

KIB = 1024
SLOW_FACTOR = 100.0
OPTIONS = ClientOptions(window_bytes=256 * KIB, outbox_bytes_max=512 * KIB)


@dataclasses.dataclass(frozen=True)
class Load:
    """A burst of entries: number, size, interval, duration."""

    burst: int
    entry_bytes: int
    interval_s: float
    seconds: float


SINGLE = Load(1, 100, 0.002, scaled(ci=2, night=8))
BURSTS = Load(20, KIB, 0.010, scaled(ci=2, night=5))
LOADS = {"single": SINGLE, "bursts": BURSTS}
DIRECTORIES = ("/journal", "/journal-1", "/ledgers", "/ledgers-1")


@dataclasses.dataclass
class Seen:
    latencies_ms: list[float] = dataclasses.field(default_factory=list)
    pending_bytes_max: int = 0
    outbox_bytes_max: int = 0
    changes: int = 0

    def at(self, share: float) -> float:
        ordered = sorted(self.latencies_ms)
        return ordered[int(share * (len(ordered) - 1))]


async def _append(writer: LedgerWriter, load: Load, seen: Seen) -> None:
    """At a fixed rate, whatever becomes of the entries; a latency begins when it was due."""
    sent_s = [trio.current_time()] * (writer.last_add_pushed + 1)

    def confirmed(last: int) -> None:
        now_s = trio.current_time()
        while len(seen.latencies_ms) <= last:
            seen.latencies_ms.append(1000 * (now_s - sent_s[len(seen.latencies_ms)]))

    writer.on_confirmed = confirmed
    started_s = trio.current_time()
    for number in range(int(load.seconds / load.interval_s)):
        due_s = started_s + number * load.interval_s
        await trio.sleep_until(due_s)
        for _ in range(load.burst):
            while not writer.has_room:
                await writer.wait_room()
            sent_s.append(due_s)
            writer.append_nowait(bytes(load.entry_bytes))
        seen.pending_bytes_max = max(seen.pending_bytes_max, writer.bytes_pending)
        outboxes = [
            connection.statistics().outbox_bytes
            for connection in writer.connections
            if connection is not None
        ]
        seen.outbox_bytes_max = max(seen.outbox_bytes_max, *outboxes)
    await writer.flush()
    seen.changes = writer.statistics().ensemble_changes


def _config(name: str, chance: random.Random) -> BookieConfig:
    return dataclasses.replace(
        small_config(name, chance),
        journal_directories=DIRECTORIES[:2],
        ledger_directories=DIRECTORIES[2:],
    )


def _run(load: Load, seed: int, slow: str | None, directory: str = "", shard: int = 0) -> Seen:
    """`directory`: the only slow one, on a disk of its own, as each is then. `shard`: ids of the
    ledgers that lie there, modulo 2."""

    async def scenario(simulation: Simulation) -> Seen:
        seen = Seen()
        cluster = SimCluster(simulation, bookies=3, config=_config if directory else None)
        for name in cluster.bookies if directory else ():
            cluster.disk(name).separate(DIRECTORIES)
        async with cluster:
            network = cluster.network.options
            network.latency_min_s = network.latency_max_s = 0.0005
            network.spike_probability = network.split_probability = 0.0
            async with AsyncExitStack() as stack:
                client = await stack.enter_async_context(cluster.client("writer", OPTIONS))
                while True:
                    ledger = client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
                    writer = await stack.enter_async_context(ledger)
                    if not directory or writer.ledger_id % 2 == shard:
                        break
                await writer.append(b"warm")
                seen.latencies_ms.append(0.0)
                if slow is not None:
                    disk = cluster.disk(slow).volumes.options[directory]
                    disk.slow_factor = SLOW_FACTOR
                await _append(writer, load, seen)
                if slow is not None:
                    disk.slow_factor = 1.0
        return seen

    return run_simulated(scenario, seed, time_limit_s=600)


@pytest.mark.parametrize("name", LOADS)
def test_the_99th_percentile_of_appends_stays_within_twice_that_of_healthy_bookies(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    load = LOADS[name]
    healthy = _run(load, 0, None)
    assert healthy.changes == 0
    for seed, slow in enumerate(("bookie-0", "bookie-1", "bookie-2")[: scaled(ci=1, night=3)]):
        seen = _run(load, seed, slow)
        with capsys.disabled():
            print(
                f"\n{name}, {slow} slow: p50 {seen.at(0.5):.2f} ms "
                f"(healthy {healthy.at(0.5):.2f}), p99 {seen.at(0.99):.2f} ms "
                f"({healthy.at(0.99):.2f}), outbox {seen.outbox_bytes_max} bytes, "
                f"{seen.changes} ensemble changes",
                end="",
            )
        assert seen.at(0.99) <= 2 * healthy.at(0.99)
        assert seen.pending_bytes_max <= OPTIONS.window_bytes + load.burst * 2 * KIB
        assert seen.outbox_bytes_max <= OPTIONS.outbox_bytes_max + OPTIONS.window_bytes


@pytest.mark.parametrize("directory", DIRECTORIES[1::2])
def test_one_slow_directory_of_one_bookie_is_not_felt(
    directory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    load = Load(1, 100, 0.002, scaled(ci=1, night=3))
    for shard in (0, 1):  # those of the ledgers beside it, and its own
        healthy = _run(load, 0, None, directory, shard)
        seen = _run(load, 0, "bookie-1", directory, shard)
        with capsys.disabled():
            print(
                f"\n{directory} slow, ledgers {'in' if shard else 'beside'} it: "
                f"p99 {seen.at(0.99):.2f} ms (healthy {healthy.at(0.99):.2f})",
                end="",
            )
        assert seen.at(0.99) <= 2 * healthy.at(0.99)


def test_a_bookie_that_stays_too_slow_does_not_change_the_ensemble_for_ever() -> None:
    """Its disk syncs, but never within the add timeout: in a cluster of three there is no other
    bookie to take. It is tried again, later each time, and used when it is well."""
    options = dataclasses.replace(OPTIONS, add_timeout_s=1.0)

    async def scenario(cluster: SimCluster) -> None:
        async with (
            cluster.client("writer", options) as client,
            client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2) as writer,
        ):

            async def append_for(seconds: float) -> None:
                until_s = trio.current_time() + seconds
                while trio.current_time() < until_s:
                    with trio.fail_after(3):
                        await writer.append(b"x")
                    await trio.sleep(0.5)

            slow = cluster.disk("bookie-1").options
            slow.slow_factor = 2e4
            await append_for(200)
            assert 2 <= writer.statistics().ensemble_changes <= 10
            slow.slow_factor = 1.0
            with trio.fail_after(500):  # its last slow sync ends, and the last pause
                while writer.core.failed:
                    await append_for(5)
            assert writer.statistics().ensemble_changes <= 12

    simulate(scenario, 0)


def test_a_disk_that_becomes_slow_gets_its_thread_back() -> None:
    async def scenario(cluster: SimCluster) -> None:
        for name in cluster.bookies:
            disk = cluster.disk(name).options
            disk.write_max_s = disk.sync_max_s = 0.0002
        async with cluster.client("writer") as client, client.create_ledger() as writer:
            (journal,) = cluster.storage("bookie-1").journals

            async def loop_groups_of(appends: int) -> int:
                before = journal.statistics().loop_groups
                for _ in range(appends):
                    await writer.append(b"x")
                    await trio.sleep(0.005)
                return journal.statistics().loop_groups - before

            assert await loop_groups_of(300) > 100
            cluster.disk("bookie-1").options.slow_factor = 1000.0
            assert await loop_groups_of(10) <= 2
            assert await loop_groups_of(100) == 0
            cluster.disk("bookie-1").options.slow_factor = 1.0
            assert await loop_groups_of(300) > 100

    simulate(scenario, 0)
