"""What bookies missed: writers and recoverers that live to the end record all of it.

Clients write, idle, close, die and recover, while bookies die, stand still and return. After
calm each bookie is asked what it holds. What it should hold and does not must be in a ledger that
is marked with it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import trio

from bookie.testing.cluster import SimCluster
from bookie.testing.disk import CrashKind
from bookie.testing.network import NetworkOptions
from bookie.testing.scheduler import Simulation, run_simulated
from ledger.autorecovery.options import AutoRecoveryOptions
from ledger.client import LedgerClient
from ledger.core.availability import decode_entries_held, expected_ranges, missing_ranges
from ledger.core.metadata import LedgerMetadata, LedgerState
from ledger.errors import LedgerError, Status
from ledger.options import ClientOptions
from ledger.wire.messages import ListEntriesRequest, ListEntriesResponse
from ledger.writing.writer import LedgerWriter
from tests.ledger.autorecovery.test_healing import healing
from tests.sim.model import Violation

TIME_LIMIT_S = 2000.0
FAULTS_S = 12.0
_TRIES_MAX = 40


@dataclass(slots=True)
class Found:
    """What one run came to."""

    ledgers: int = 0
    missing: int = 0
    """Pairs of ledger and bookie in which entries are missing."""
    marked: int = 0
    fragments: int = 0
    open_ledgers: int = 0
    recovered: int = 0
    died: int = 0
    """Ledgers that a client closed which died afterwards."""


HEALS_WITHIN_S = 60.0
WITHOUT_CHECKS = AutoRecoveryOptions(entry_check_interval_s=0)
"""By marks alone: no bookie is asked about a ledger that is not marked."""


class MissedRun:
    """One run over a cluster; with `heals` auto-recovery works in it."""

    def __init__(self, simulation: Simulation, cluster: SimCluster, *, heals: bool) -> None:
        self.cluster = cluster
        self.heals = heals
        self.chance = chance = simulation.chance("missed")
        self.is_stopping = False
        self.writers: dict[int, LedgerWriter] = {}
        self.to_recover: dict[int, None] = {}
        self.of_dying: dict[int, None] = {}
        self.found = Found()
        self.options = ClientOptions(
            add_timeout_s=chance.choice((0.5, 2.0)),
            read_timeout_s=1.0,
            connect_timeout_s=0.5,
            ensemble_change_timeout_s=chance.choice((1.0, 5.0)),
            idle_replacement_delay_s=chance.choice((2.0, 20.0)),
        )

    async def run(self) -> Found:
        async with self.cluster.client("living", self.options) as client:
            dying = self.cluster.start_client(self._write_and_die, name="dying")
            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(self._write, client, self.writers, {})
                await self._faults()
                self.is_stopping = True
                dying.kill()
                await self._calm()
            await dying.finished.wait()
            await self._recover(client)
            await self._settle(client)
            if self.heals:
                async with healing(self.cluster, options=WITHOUT_CHECKS):
                    await trio.sleep(HEALS_WITHIN_S)
            await self._check(client)
        return self.found

    # Writing.

    async def _write(
        self, client: LedgerClient, kept: dict[int, LedgerWriter], made: dict[int, None]
    ) -> None:
        chance = self.chance
        while not self.is_stopping:
            try:
                await self._write_one(client, kept, made)
            except LedgerError:
                await trio.sleep(chance.uniform(0.1, 0.5))

    async def _write_one(
        self, client: LedgerClient, kept: dict[int, LedgerWriter], made: dict[int, None]
    ) -> None:
        chance = self.chance
        ensemble = chance.randint(2, min(4, len(self.cluster.bookies)))
        write_quorum = chance.randint(2, ensemble)
        writer = await client.create_ledger(
            ensemble_size=ensemble,
            write_quorum=write_quorum,
            ack_quorum=chance.randint(1, write_quorum),
            deferred_sync=chance.random() < 0.2,
        )
        made[writer.ledger_id] = self.to_recover[writer.ledger_id] = (
            None  # unless it is closed, or kept open
        )
        for _ in range(chance.randint(1, 12)):
            await writer.append_many([b"x" * chance.randint(1, 900)] * chance.randint(1, 15))
            await trio.sleep(chance.choice((0.0, 0.0, 0.05, 1.0)))
        if chance.random() < 0.2:
            if writer.is_sync_deferred:
                await writer.force()
            if writer.error is None:
                kept[writer.ledger_id] = writer
                del self.to_recover[writer.ledger_id]
        elif chance.random() < 0.9:
            await writer.close()
            del self.to_recover[writer.ledger_id]

    async def _write_and_die(self, client: LedgerClient) -> None:
        kept: dict[int, LedgerWriter] = {}
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(self._write, client, kept, self.of_dying)
        await trio.sleep_forever()

    # Faults.

    async def _faults(self) -> None:
        with trio.move_on_after(FAULTS_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._fail_bookies)
                nursery.start_soon(self._fail_network)
                nursery.start_soon(self._fail_metadata)

    async def _fail_bookies(self) -> None:
        chance = self.chance
        while True:
            await trio.sleep(chance.expovariate(0.7))
            name = chance.choice(self.cluster.bookies)
            await self.cluster.kill_bookie(name, chance.choice(list(CrashKind)))
            await trio.sleep(chance.choice((0.1, 1.0, 4.0)))
            if not self.cluster.is_up(name):
                await self.cluster.start_bookie(name)

    async def _fail_network(self) -> None:
        chance, network = self.chance, self.cluster.network
        while True:
            await trio.sleep(chance.expovariate(0.7))
            client = chance.choice(("living", "dying"))
            name = chance.choice(self.cluster.bookies)
            kind = chance.randrange(3)
            if kind == 0:
                network.reset(name)
            elif kind == 1:  # a bookie that stands still
                network.clog(client, name, chance.uniform(0.2, 6))
                network.clog(name, client, chance.uniform(0.2, 6))
            else:
                network.block(name, client)
                await trio.sleep(chance.uniform(0.2, 3))
                network.heal()

    async def _fail_metadata(self) -> None:
        while True:
            await trio.sleep(self.chance.expovariate(0.3))
            self.cluster.metadata.cut_off("living")
            await trio.sleep(self.chance.uniform(0.1, 1.5))
            self.cluster.metadata.heal()

    async def _calm(self) -> None:
        self.cluster.network.heal()
        self.cluster.metadata.heal()
        await self.cluster.start_all()

    # The end.

    async def _recover(self, client: LedgerClient) -> None:
        for ledger_id in list(self.to_recover):
            is_closed = (await client.ledger_metadata(ledger_id)).is_closed
            for _ in range(_TRIES_MAX):
                try:
                    await client.open_ledger(ledger_id)
                    break
                except LedgerError as error:
                    if not error.retry_is_safe:
                        raise
                    await trio.sleep(1)
            else:
                raise Violation(f"ledger {ledger_id} cannot be recovered")
            if not is_closed:
                self.found.recovered += 1
                self.of_dying.pop(ledger_id, None)

    async def _settle(self, client: LedgerClient) -> None:
        """Waits as long as an idle writer or an unanswered question may take."""
        await trio.sleep(3 * self.options.idle_replacement_delay_s + 30)
        for ledger_id, writer in self.writers.items():
            if writer.error is None and writer.core.failed:
                raise Violation(f"the idle writer of ledger {ledger_id} still lacks a bookie")

    async def _check(self, client: LedgerClient) -> None:
        found = self.found
        marked = set(await client.underreplication.list())
        for ledger_id in await client.list_ledgers():
            metadata = await client.ledger_metadata(ledger_id)
            found.fragments += len(metadata.fragments)
            if ledger_id in self.of_dying:
                found.died += 1
                continue  # its writer recorded what it had the time for
            if not metadata.is_closed:
                writer = self.writers.get(ledger_id)
                if writer is None or writer.error is not None:
                    continue  # nobody who lived has ended it
                found.open_ledgers += 1
                last = writer.last_add_confirmed
                metadata = replace(metadata, state=LedgerState.CLOSED, last_entry_id=last)
            found.ledgers += 1
            mark = await client.underreplication.read(ledger_id) if ledger_id in marked else None
            replicas = () if mark is None else mark.replicas
            found.marked += len(replicas)
            for bookie in {b: None for f in metadata.fragments for b in f.bookies}:
                missing = await missing_at(client, metadata, bookie)
                found.missing += bool(missing)
                if self.heals and (missing or mark is not None):
                    raise Violation(f"not healed: {bookie} lacks {missing[:3]}, {mark}; {metadata}")
                if missing and bookie not in replicas:
                    raise Violation(
                        f"ledger {ledger_id}: {bookie} lacks {missing[:3]}, marked are {replicas}; "
                        f"{metadata}"
                    )


async def missing_at(
    client: LedgerClient, metadata: LedgerMetadata, bookie: str
) -> list[tuple[int, int]]:
    """Returns the entries of a ledger that a bookie should hold and does not."""
    request = ListEntriesRequest(metadata.ledger_id)
    answer = await client.pool.call(bookie, request, timeout_s=5)
    held: list[tuple[int, int]] = []
    if isinstance(answer, ListEntriesResponse) and answer.status is Status.OK:
        held = sorted(decode_entries_held(answer.availability or b""))
    elif answer.status is not Status.NO_SUCH_LEDGER:
        raise Violation(f"{bookie} answers {answer.status.name} about {metadata.ledger_id}")
    return list(missing_ranges(expected_ranges(metadata, bookie), held))


def run_missed(seed: int, *, heals: bool = False) -> Found:
    """Runs one seed; with `heals` everything is healed by auto-recovery. Raises Violation."""

    async def main(simulation: Simulation) -> Found:
        chance: random.Random = simulation.chance("missed cluster")
        network = NetworkOptions(latency_max_s=chance.choice((0.0005, 0.02)))
        bookies = chance.choice((3, 4, 5))
        async with SimCluster(simulation, bookies=bookies, network=network) as cluster:
            return await MissedRun(simulation, cluster, heals=heals).run()

    return run_simulated(main, seed, time_limit_s=TIME_LIMIT_S)
