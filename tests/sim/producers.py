"""Idempotent producers, killed again and again: `python -m tests.sim.producers --kills 10000`.

Two processes insist on writing one stream for the same producers, as after a split brain. Each
takes the stream over, reads how far a producer came, and continues from there or from before, in
every way there is; it is killed at random points, and so are bookies, answers of the metadata store
and connections. In the end each record of each producer must be there, once, in its order.
"""

from __future__ import annotations

import logging
import random
import sys
from dataclasses import dataclass, field

import trio

from bookie.testing.cluster import SimCluster
from bookie.testing.metastore import MetadataOptions
from bookie.testing.process import SimProcess, leaves_of
from bookie.testing.scheduler import Simulation, run_simulated
from ledger.client import LedgerClient
from ledger.errors import LedgerError
from stream.core.position import EARLIEST, Position
from stream.errors import ProducerGap, TakenOver
from stream.namespace import Namespace
from stream.writing.batch import Ticket
from stream.writing.open_segment import WriterOptions
from stream.writing.producer import Producer
from stream.writing.writer import StreamWriter
from tests.sim.command import run_worlds
from tests.sim.model import Violation
from tests.sim.page_limits import page_limits
from tests.sim.workload import client_options

STREAM = "s"
KILLS_PER_WORLD = 50
_TIME_LIMIT_S = 20_000.0
_PLAIN = "plain"
_RETRY_S = 0.3
_KILL_S = (0.02, 0.2, 0.6)
"""How long a process lives on average: to be killed while it takes over, and while it writes."""
_FAULT_S = 3.0


def value_of(producer: str, sequence: int, size: int) -> bytes:
    return b"%s/%d/" % (producer.encode(), sequence) + bytes(size)


@dataclass(slots=True)
class ProducerModel:
    """How far each producer must and can have come, and where its records were said to be."""

    attempted: dict[str, int] = field(default_factory=dict)
    confirmed: dict[str, int] = field(default_factory=dict)
    places: dict[tuple[str, int], Position] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def attempt(self, producer: str, sequence: int) -> None:
        self.attempted[producer] = max(sequence, self.attempted.get(producer, -1))

    def confirm(self, producer: str, sequence: int, place: Position | None) -> None:
        self.confirmed[producer] = max(sequence, self.confirmed.get(producer, -1))
        self.count("confirmed" if place is not None else "there already")
        if place is None:
            return
        there = self.places.setdefault((producer, sequence), place)
        if there != place:
            raise Violation(f"{producer} {sequence} was confirmed at {there} and at {place}")

    def remembered(self, producer: str, last: int, confirmed_before: int) -> None:
        """What a writer that took over knows of a producer."""
        if not confirmed_before <= last <= self.attempted.get(producer, -1):
            raise Violation(
                f"{producer}: the stream says it has {last}, confirmed were {confirmed_before}, "
                f"attempted {self.attempted.get(producer, -1)}"
            )

    def found(self, records: dict[str, list[tuple[int, Position]]]) -> None:
        """All that is in the stream in the end."""
        for producer, confirmed in self.confirmed.items():
            there = records.get(producer, [])
            sequences = [sequence for sequence, _ in there]
            if sequences != list(range(len(sequences))):
                raise Violation(f"{producer}: the stream has {_odd(sequences)}")
            if len(there) <= confirmed:
                raise Violation(f"{producer}: {len(there)} there, confirmed were {confirmed + 1}")
            for sequence, place in there:
                if self.places.get((producer, sequence), place) != place:
                    raise Violation(f"{producer} {sequence} is not where it was confirmed")


def _odd(sequences: list[int]) -> str:
    for index, sequence in enumerate(sequences):
        if sequence != index:
            return f"{sequence} after {sequences[max(0, index - 3) : index]}"
    return "no order"


class Loaders:
    """Two processes that load one stream, and what kills them."""

    def __init__(self, cluster: SimCluster, kills: int) -> None:
        self.cluster = cluster
        self.model = ProducerModel()
        self.chance = cluster.simulation.chance("loaders")
        self.kills_left = kills
        self.is_over = False
        self._incarnations = 0
        self._processes: dict[str, SimProcess] = {}
        self._names = [f"p{n}" for n in range(self.chance.choice((1, 1, 2, 4)))]
        self._has_plain = self.chance.random() < 0.5
        self._pause_s = self.chance.choice((0.002, 0.02, 0.1))

    async def run(self) -> None:
        for name in ("loader-a", "loader-b")[: self.chance.choice((1, 1, 2))]:
            self._start(name)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._inject_faults)
            while self.kills_left > 0:
                await trio.sleep(self.chance.expovariate(1 / self.chance.choice(_KILL_S)))
                name = self.chance.choice(list(self._processes))
                self._processes[name].kill()
                await self._processes[name].finished.wait()
                self.kills_left -= 1
                self.model.count("kills")
                self._start(name)
            nursery.cancel_scope.cancel()
        self.is_over = True
        await self._calm()
        for process in self._processes.values():
            await process.finished.wait()

    def _start(self, name: str) -> None:
        self._incarnations += 1
        chance = self.cluster.simulation.chance(f"{name}/{self._incarnations}")

        async def body(client: LedgerClient) -> None:
            while not self.is_over:
                await self._load(client, chance)
                await trio.sleep(chance.expovariate(1 / self._pause_s))

        self._processes[name] = self.cluster.start_client(
            body, name=name, options=client_options(chance)
        )

    # One writer

    async def _load(self, client: LedgerClient, chance: random.Random) -> None:
        options = WriterOptions(
            pending_bytes_max=chance.choice((500, 1 << 20)), repair_timeout_s=2.0
        )
        confirmed = dict(self.model.confirmed)
        try:
            async with (
                Namespace(client, "n").writer(
                    STREAM, options=options, hand_over_s=chance.choice((None, None, 0.5))
                ) as writer,
                trio.open_nursery() as nursery,
            ):
                self.model.count("takeovers")
                for name in self._names:
                    before = confirmed.get(name, -1)
                    nursery.start_soon(self._produce, writer, name, before, chance)
                if self._has_plain:
                    nursery.start_soon(self._append_plain, writer, chance)
        except* LedgerError as group:
            for error in leaves_of(group):
                self.model.count(f"writer: {type(error).__name__}")
                is_expected = isinstance(error, TakenOver | LedgerError)
                if not is_expected or isinstance(error, ProducerGap):
                    raise

    async def _produce(
        self, writer: StreamWriter, name: str, confirmed: int, chance: random.Random
    ) -> None:
        producer = await writer.producer(name)
        self.model.remembered(name, producer.last_sequence, confirmed)
        sequence = max(0, producer.last_sequence + 1 - chance.choice((0, 0, 1, 5)))
        for _ in range(chance.choice((3, 30, 100))):
            if self.is_over:
                return
            sequence = await self._append(producer, name, sequence, chance)
            if chance.random() < 0.2:
                sequence = max(0, sequence - chance.randint(1, 4))  # as if not sure
            if chance.random() < 0.5:
                await trio.sleep(chance.expovariate(1 / self._pause_s))

    async def _append(
        self, producer: Producer, name: str, sequence: int, chance: random.Random
    ) -> int:
        """Some records from `sequence` on, in one of the ways; returns what comes next."""
        way, count = chance.random(), chance.randint(1, 8)
        sizes = [chance.choice((0, 10, 300)) for _ in range(count)]
        values = [value_of(name, sequence + n, size) for n, size in enumerate(sizes)]
        self.model.attempt(name, sequence + count - 1)
        if way < 0.3:
            place = await producer.append(values[0], sequence)
            self.model.confirm(name, sequence, place)
            return sequence + 1
        if way < 0.5:
            places = await producer.append_many(values, sequence)
            place = None if places is None else places[1]
            self.model.confirm(name, sequence + count - 1, place)
            return sequence + count
        if way < 0.7:
            # Given up before or after it was taken: tried again until it is there.
            with trio.move_on_after(chance.expovariate(100)):
                await producer.append_many(values, sequence)
            return sequence
        if way < 0.75:
            try:
                await producer.append(b"gap", producer.next_sequence + 1)
            except ProducerGap:
                return sequence
            raise Violation(f"{name}: a gap at {producer.next_sequence} was accepted")
        return await self._burst(producer, name, sequence, values)

    async def _burst(
        self, producer: Producer, name: str, sequence: int, values: list[bytes]
    ) -> int:
        tickets: list[tuple[int, Ticket | None]] = []
        for value in values:
            try:
                tickets.append((sequence, producer.append_nowait(value, sequence)))
            except trio.WouldBlock:
                break
            sequence += 1
        for at, ticket in tickets:
            self.model.confirm(name, at, None if ticket is None else await ticket.wait())
        return sequence

    async def _append_plain(self, writer: StreamWriter, chance: random.Random) -> None:
        for _ in range(chance.choice((3, 30))):
            if not self.is_over:
                await writer.append(value_of(_PLAIN, 0, 5))
                await trio.sleep(chance.expovariate(1 / self._pause_s))

    # Faults

    async def _inject_faults(self) -> None:
        while True:
            await trio.sleep(self.chance.expovariate(1 / _FAULT_S))
            await self.chance.choice(
                (
                    self._kill_bookie, self._doubt, self._cut_off, self._partition, self._reset,
                    self._change_policy, self._change_policy,
                )
            )()  # fmt: skip

    async def _kill_bookie(self) -> None:
        name = self.chance.choice(self.cluster.bookies)
        await self.cluster.kill_bookie(name)
        await trio.sleep(self.chance.expovariate(2))
        if not self.cluster.is_up(name):
            await self.cluster.start_bookie(name)

    async def _doubt(self) -> None:
        """The metadata store does what it is asked, or not, or late, and does not say."""
        self.cluster.metadata.options = MetadataOptions(
            timeout_s=0.5, error_before_probability=0.1, error_after_probability=0.2,
            error_late_probability=0.1, late_max_s=1.0,
        )  # fmt: skip
        await trio.sleep(self.chance.expovariate(1))
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

    async def _reset(self) -> None:
        self.cluster.network.reset(self.chance.choice(list(self._processes)))

    async def _change_policy(self) -> None:
        """Writers roll to ledgers of another kind, seal other batches, are throttled."""
        async with self.cluster.client("operator") as client:
            try:
                await Namespace(client, "n").set_policy(
                    ack_quorum=self.chance.randint(1, 3),
                    batch_bytes=self.chance.choice((1, 500, 60_000)),
                    linger_ms=self.chance.choice((0, 5)),
                    bytes_per_s_max=self.chance.choice((None, None, 20_000)),
                )
            except LedgerError:
                return
        self.model.count("policy changes")

    async def _calm(self) -> None:
        self.cluster.metadata.options = MetadataOptions()
        self.cluster.metadata.heal()
        self.cluster.network.heal()
        await self.cluster.start_all()

    async def check(self) -> None:
        """Seals the stream and looks at all of it."""
        async with self.cluster.client("checker") as client:
            namespace = Namespace(client, "n")
            while True:
                try:
                    stream = await namespace.seal_stream(STREAM)
                    break
                except LedgerError:
                    await trio.sleep(_RETRY_S)
            records: dict[str, list[tuple[int, Position]]] = {}
            async with namespace.reader(STREAM, start=EARLIEST) as reader:
                async for batch in reader.read_to_end():
                    for record in batch.records():
                        name, sequence, _ = record.value.split(b"/", 2)
                        places = records.setdefault(name.decode(), [])
                        places.append((int(sequence), record.position))
            records.pop(_PLAIN, None)
            self.model.found(records)
            for producer, places in records.items():
                state = stream.producers[producer]
                if state.last_sequence != len(places) - 1:
                    raise Violation(f"{producer}: {len(places)} records, the metadata says {state}")


@page_limits()
def run_world(seed: int, kills: int) -> dict[str, int]:
    """Runs a cluster and a stream with this many kills. Raises `Violation` or another error."""

    async def main(simulation: Simulation) -> dict[str, int]:
        chance = simulation.chance("world")
        async with SimCluster(simulation, bookies=chance.choice((3, 4))) as cluster:
            async with cluster.client("preparer") as client:
                namespace = Namespace(client, "n")
                quorum = chance.randint(1, 3)
                await namespace.ensure(
                    write_quorum=3, ack_quorum=quorum,
                    roll_ms=chance.choice((1000, 5000, 3_600_000)), roll_bytes=1 << 16,
                    batch_bytes=chance.choice((1, 500, 60_000)),
                    linger_ms=chance.choice((0, 0, 5)),
                )  # fmt: skip
                await namespace.ensure_stream(STREAM)
            loaders = Loaders(cluster, kills)
            await loaders.run()
            await loaders.check()
            return loaders.model.counts

    logging.disable(logging.CRITICAL)
    try:
        return run_simulated(main, seed, time_limit_s=_TIME_LIMIT_S)
    finally:
        logging.disable(logging.NOTSET)


def main() -> int:
    return run_worlds(
        "tests.sim.producers", "kills", "processes killed", KILLS_PER_WORLD, run_world
    )


if __name__ == "__main__":
    sys.exit(main())
