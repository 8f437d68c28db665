"""Batches of sinks beside running writers, with every fault: `python -m tests.sim.commits.run`.

Several drivers, some insisting on the same sink, commit batches to several streams of two
namespaces, in part as small results that the driver writes, repeat them with new ledgers, give up
half way, and are killed at any moment. Beside them writers with producers and conditions are killed
and taken over, segments roll, streams are truncated, deleted and brought back, janitors sweep,
readers follow; bookies, connections and the metadata store fail. model.py says what must be there
in the end.
"""

from __future__ import annotations

import logging
import random
import sys

import trio

from bookie.testing.cluster import SimCluster
from bookie.testing.metastore import MetadataOptions
from bookie.testing.process import SimProcess, leaves_of
from bookie.testing.scheduler import Simulation, run_simulated
from connectors.spark.sink.task_results import SmallResult
from ledger.client import LedgerClient
from ledger.errors import LedgerError
from stream.core.entry.records import Record
from stream.core.position import EARLIEST, Position
from stream.errors import CommitOutOfOrder, NotInTrash, StreamExists
from stream.namespace import Namespace
from stream.reading.seek import first_available
from stream.retention.janitor import Janitor
from stream.sinks.sinks import (
    BatchCommit,
    SinkLedger,
    commit_batch,
    discard_ledgers,
    is_committed,
)
from stream.store.sinks import find_sink
from stream.store.streams import StreamStore
from tests.sim.command import run_worlds
from tests.sim.commits.mergers import Mergers
from tests.sim.commits.model import Attempt
from tests.sim.commits.results import commit, small_result
from tests.sim.commits.writers import Body
from tests.sim.model import Violation
from tests.sim.page_limits import page_limits, small_merges
from tests.sim.workload import client_options
from tests.stream.sinks.sink_ledgers import write_ledger

COMMITS_PER_WORLD = 40
_NAMESPACES = ("m", "n")
_TIME_LIMIT_S = 50_000.0
_KILL_S = (0.3, 1.0, 4.0)
_FAULT_S = 2.0
_RETRY_S = 0.3


class Commits(Mergers):
    """One world."""

    def __init__(self, cluster: SimCluster, commits: int, *, is_merging: bool = False) -> None:
        self.cluster = cluster
        self.chance = chance = cluster.simulation.chance("commits")
        super().__init__(is_purging=chance.random() < 0.25, pause_s=chance.choice((0.01, 0.1, 0.5)))
        self.commits_left = commits
        self.is_merging = is_merging
        self.streams = ["m/a", "n/b", "n/c"][: chance.randint(1, 3)]
        self._processes: dict[str, SimProcess] = {}
        self._bodies: dict[str, Body] = {}

    async def run(self) -> None:
        sinks = self.chance.choice((["k"], ["k", "k"], ["k", "l"], ["k", "k", "l", None]))
        for number, sink in enumerate(sinks):
            self._bodies[f"driver{number}"] = self._driver(sink)
        for stream in self.streams:
            for rival in range(self.chance.choice((0, 1, 1, 2))):
                self._bodies[f"writer-{stream}-{rival}".replace("/", "-")] = self.writer(stream)
            self._bodies[f"reader-{stream}".replace("/", "-")] = self.reader(stream)
        self._bodies["operator"] = self._operate
        for number in range(2 if self.is_merging else 0):
            self._bodies[f"merger{number}"] = self.merge
            self._bodies[f"looker{number}"] = self.look
        for name in self._bodies:
            self._start(name)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._inject_faults)
            while self.commits_left > 0:
                await trio.sleep(self.chance.expovariate(1 / self.chance.choice(_KILL_S)))
                name = self.chance.choice(list(self._bodies))
                self._processes[name].kill()
                await self._processes[name].finished.wait()
                self.model.count("kills")
                self._start(name)
            nursery.cancel_scope.cancel()
        self.is_over = True
        await self._calm()
        for process in self._processes.values():
            with trio.move_on_after(60):
                await process.finished.wait()
            process.kill()
            await process.finished.wait()

    def _start(self, name: str) -> None:
        chance = self.cluster.simulation.chance(f"{name}/{self.number()}")

        async def body(client: LedgerClient) -> None:
            while not self.is_over:
                try:
                    await self._bodies[name](client, chance)
                except* LedgerError as group:
                    for error in leaves_of(group):
                        self.model.count(f"{name.split('-')[0]}: {type(error).__name__}")
                await trio.sleep(chance.expovariate(1 / self.pause_s))

        self._processes[name] = self.cluster.start_client(
            body, name=name, options=client_options(chance)
        )

    # Sinks

    def _driver(self, sink_id: str | None) -> Body:
        async def drive(client: LedgerClient, chance: random.Random) -> None:
            """One batch, from its ledgers to whatever becomes of it."""
            batch_id, shown = None, sink_id or f"none{self.number()}"
            if sink_id is not None:
                sink = await find_sink(client.store, sink_id)
                last = -1 if sink is None else sink.batch_id
                batch_id = max(0, last + chance.choice((-1, 0, 0, 1, 1, 1, 1, 1, 3)))
            name = f"try{self.number()}"
            results, shares = await self._write(client, chance, name, sink_id, batch_id)
            ledgers = [result for result in results if isinstance(result, SinkLedger)]
            self.model.attempts[name] = Attempt((shown, batch_id or 0), shares)
            if chance.random() < 0.1:
                return  # its driver dies here
            self.commits_left -= 1
            tries = chance.choice((1, 1, 2, 3))
            if sink_id is None and len(ledgers) < len(results):
                tries = 1  # without a sink, a batch is known by its ledgers: each call makes others
            for _ in range(tries):
                if await self._commit(client, chance, name, results, sink_id, batch_id):
                    break
            else:
                if chance.random() < 0.5:
                    await discard_ledgers(client, ledgers, sink_id=sink_id, batch_id=batch_id)
            if chance.random() < 0.2:
                # A driver that thinks its commit failed: nothing that is committed may go.
                await discard_ledgers(client, ledgers, sink_id=sink_id, batch_id=batch_id)

        return drive

    async def _write(
        self,
        client: LedgerClient,
        chance: random.Random,
        name: str,
        sink_id: str | None,
        batch_id: int | None,
    ) -> tuple[list[SinkLedger | SmallResult], dict[str, int]]:
        """Returns what the tasks of a batch write, or return to the driver."""
        results: list[SinkLedger | SmallResult] = []
        shares: dict[str, int] = {}
        small = chance.choice((0.0, 0.7, 1.0))
        for stream in chance.sample(self.streams, chance.randint(1, len(self.streams))):
            for _ in range(chance.randint(1, 3)):
                entries: list[list[bytes]] = []
                for _ in range(chance.choice((0, 1, 1, 3))):
                    entries.append([])
                    for _ in range(chance.randint(1, 3)):
                        count = shares.get(stream, 0)
                        entries[-1].append(b"k/%s/%d" % (name.encode(), count))
                        shares[stream] = count + 1
                namespace, short = stream.split("/")
                if chance.random() < small:
                    policy, _ = await StreamStore(client.store).read_namespace(namespace)
                    results.append(small_result(policy, short, entries, partition=len(results)))
                    continue
                ledger = await write_ledger(
                    client, short, entries, namespace=namespace, sink_id=sink_id, batch_id=batch_id
                )
                results.append(ledger)
        return [one for one in results if not isinstance(one, SmallResult) or one.entries], shares

    async def _commit(
        self,
        client: LedgerClient,
        chance: random.Random,
        name: str,
        results: list[SinkLedger | SmallResult],
        sink_id: str | None,
        batch_id: int | None,
    ) -> bool:
        ledgers = [result for result in results if isinstance(result, SinkLedger)]
        is_small = len(ledgers) < len(results)

        async def call() -> BatchCommit:
            if not is_small:
                return await commit_batch(client, ledgers, sink_id=sink_id, batch_id=batch_id)
            self.model.count("small results", len(results) - len(ledgers))
            return await commit(client, results, sink_id, batch_id)

        try:
            with trio.move_on_after(chance.choice((0.02, 0.3, 60, 60))) as scope:
                done = await call()
            if scope.cancelled_caught:
                self.model.count("commits given up")
                return False
        except CommitOutOfOrder:
            self.model.count("out of order")
            return True
        except LedgerError as error:
            self.model.count(f"commit: {type(error).__name__}")
            return False
        self.model.batch_done(name, done.is_repeat)
        counted = {share.stream: share.records for share in done.streams}
        if not done.is_repeat and counted != self.model.attempts[name].shares:
            raise Violation(f"{name}: {done} for {self.model.attempts[name]}")
        is_asked = sink_id is not None and chance.random() < 0.2
        if is_asked and not await is_committed(client, ledgers, sink_id=sink_id, batch_id=batch_id):
            raise Violation(f"{name}: is not committed, and was")
        if chance.random() < 0.2 and not (sink_id is None and is_small):
            again = await call()
            if not again.is_repeat and self.model.attempts[name].shares:
                raise Violation(f"{name}: committed twice")
        return True

    # Readers and operators

    async def _operate(self, client: LedgerClient, chance: random.Random) -> None:
        await trio.sleep(chance.expovariate(1))
        stream = chance.choice(self.streams)
        namespace, short = stream.split("/")
        space = Namespace(client, namespace)
        what = chance.choice(("sweep", "sweep", "truncate", "policy", "seal", "delete", "back"))
        self.model.count(f"operator: {what}")
        if what == "sweep":
            age_ms = chance.choice((0, 500, 5000))
            janitor = Janitor(
                client, namespace, orphan_age_ms=age_ms, sink_orphan_age_ms=age_ms,
                merge_bytes_per_s=1e9 if self.is_merging else 0, replaced_ms=age_ms,
            )  # fmt: skip
            await janitor.sweep()
            self.model.count("segments merged", (await janitor.merge()).segments)
        elif what == "truncate":
            metadata = await space.stream_metadata(short)
            if metadata.segments:
                segment = chance.choice(metadata.segments[-4:])
                entry = chance.choice((0, max(0, segment.last_entry), 1))
                entry += 100 if segment.is_open and chance.random() < 0.3 else 0
                await space.truncate(short, Position(segment.number, entry, 0))
        elif what == "policy":
            await space.set_policy(
                ack_quorum=chance.randint(1, 3),
                batch_bytes=chance.choice((1, 500, 60_000)),
                linger_ms=chance.choice((0, 5)),
                roll_ms=chance.choice((1000, 1000, 60_000)),
            )
        elif what == "seal":
            await space.seal_stream(short)
        elif what == "back":
            await space.untruncate(short)
        elif chance.random() < 0.3 and not self.is_purging:
            await space.delete_stream(short)
            await trio.sleep(chance.expovariate(2))
            await space.undelete_stream(short)

    # Faults

    async def _inject_faults(self) -> None:
        while True:
            await trio.sleep(self.chance.expovariate(1 / _FAULT_S))
            await self.chance.choice(
                (self._kill_bookie, self._doubt, self._doubt, self._cut_off, self._partition)
            )()

    async def _kill_bookie(self) -> None:
        name = self.chance.choice(self.cluster.bookies)
        await self.cluster.kill_bookie(name)
        await trio.sleep(self.chance.expovariate(2))
        if not self.cluster.is_up(name):
            await self.cluster.start_bookie(name)

    async def _doubt(self) -> None:
        self.cluster.metadata.options = MetadataOptions(
            timeout_s=0.5, error_before_probability=0.1, error_after_probability=0.2,
            error_late_probability=0.1, late_max_s=1.0,
        )  # fmt: skip
        await trio.sleep(self.chance.expovariate(0.5))
        self.cluster.metadata.options = MetadataOptions()

    async def _cut_off(self) -> None:
        self.cluster.metadata.cut_off(self.chance.choice(list(self._processes)))
        await trio.sleep(self.chance.expovariate(1))
        self.cluster.metadata.heal()

    async def _partition(self) -> None:
        bookie = self.chance.choice(self.cluster.bookies)
        others = [n for n in (*self.cluster.bookies, *self._processes) if n != bookie]
        self.cluster.network.partition([bookie], others)
        await trio.sleep(self.chance.expovariate(1))
        self.cluster.network.heal()

    async def _calm(self) -> None:
        self.cluster.metadata.options = MetadataOptions()
        self.cluster.metadata.heal()
        self.cluster.network.heal()
        await self.cluster.start_all()

    # The end

    async def check(self) -> None:
        """Restores what can be restored, reads all of it, sweeps, and reads again."""
        await trio.sleep(5)  # what is late has happened
        async with self.cluster.client("checker") as client:
            found: dict[str, list[Record]] = {}
            first_of: dict[str, Position] = {}
            for stream in self.streams:
                namespace, short = stream.split("/")
                space = Namespace(client, namespace)
                try:
                    await space.undelete_stream(short)
                except (NotInTrash, StreamExists):
                    pass
                await space.seal_stream(short)
                first_of[stream] = await first_available(client, await space.untruncate(short))
                found[stream] = await _read_all(space, short)
            self.model.check(found, first_of, not self.is_purging)
            for namespace in _NAMESPACES:
                await Janitor(
                    client, namespace, orphan_age_ms=-10_000, sink_orphan_age_ms=-10_000,
                    merge_bytes_per_s=0, replaced_ms=-10_000,
                ).sweep()  # fmt: skip
            named: set[int] = set()
            for stream in self.streams:
                namespace, short = stream.split("/")
                space = Namespace(client, namespace)
                if await _read_all(space, short) != found[stream]:
                    raise Violation(f"{stream}: a sweep changed what is there")
                metadata = await space.stream_metadata(short)
                named.update(metadata.ledgers())
                segments = await space.store.pages.listed(metadata, limit=1 << 30)
                named.update(segment.ledger_id for segment in segments)
            for ledger_id in named:
                if not (await client.ledger_metadata(ledger_id)).is_closed:
                    raise Violation(f"ledger {ledger_id} of a sealed segment is open")
            left = set(await client.list_ledgers()) - named
            if left:
                raise Violation(f"ledgers {sorted(left)} are nobody's, and stay")
            self.model.count("records in the end", sum(map(len, found.values())))


async def _read_all(namespace: Namespace, stream: str) -> list[Record]:
    async with namespace.reader(stream, start=EARLIEST) as reader:
        return [record async for batch in reader.read_to_end() for record in batch.records()]


@page_limits()
@small_merges()
def run_world(seed: int, commits: int, *, is_merging: bool | None = None) -> dict[str, int]:
    """Runs one cluster with this many commits; every second seed merges segments, if nothing else
    is said. Raises `Violation` or any other error."""

    async def main(simulation: Simulation) -> dict[str, int]:
        chance = simulation.chance("world")
        async with SimCluster(simulation, bookies=chance.choice((3, 4))) as cluster:
            merges = bool(seed % 2) if is_merging is None else is_merging
            world = Commits(cluster, commits, is_merging=merges)
            async with cluster.client("preparer") as client:
                for name in _NAMESPACES:
                    await Namespace(client, name).ensure(
                        write_quorum=3, ack_quorum=chance.randint(1, 3),
                        roll_ms=chance.choice((1000, 5000, 3_600_000)), roll_bytes=1 << 16,
                        batch_bytes=chance.choice((1, 500, 60_000)),
                        linger_ms=chance.choice((0, 0, 5)),
                        trash_ms=3000 if world.is_purging else 1 << 45,
                    )  # fmt: skip
                for stream in world.streams:
                    namespace, short = stream.split("/")
                    await Namespace(client, namespace).ensure_stream(short)
            await world.run()
            await world.check()
            return world.model.counts

    logging.disable(logging.CRITICAL)
    try:
        return run_simulated(main, seed, time_limit_s=_TIME_LIMIT_S)
    finally:
        logging.disable(logging.NOTSET)


def main() -> int:
    return run_worlds("tests.sim.commits.run", "commits", "batches", COMMITS_PER_WORLD, run_world)


if __name__ == "__main__":
    sys.exit(main())
