"""Streams in a simulated cluster that kills writers and bookies and loses responses.

In every run a confirmed record is in the stream once, at the position that its writer returned;
the records of one writer keep their order; sequences have no gaps; and a tail sees the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import trio

from bookie.testing import CrashKind, SimCluster, SimProcess, simulate
from ledger.client import LedgerClient
from ledger.errors import LedgerError
from stream import (
    Janitor,
    Namespace,
    Position,
    Record,
    StreamWriter,
    Ticket,
    WriterOptions,
    create_namespace,
)
from tests.effort import seeds
from tests.stream.short_timeouts import IMPATIENT

WRITER = WriterOptions(pending_bytes_max=20_000, repair_timeout_s=20)
SECONDS = 25.0


@dataclass
class History:
    """The appends, their outcomes and the records read by the tail."""

    issued: list[tuple[int, int]] = field(default_factory=list)
    confirmed: dict[tuple[int, int], Position] = field(default_factory=dict)
    seen: list[Record] = field(default_factory=list)
    incarnations: int = 0
    is_over: bool = False
    wanted: int = -1
    caught_up: trio.Event = field(default_factory=trio.Event)
    failures: dict[str, int] = field(default_factory=dict)

    def failed(self, error: LedgerError) -> None:
        name = type(error).__name__
        self.failures[name] = self.failures.get(name, 0) + 1


def value_of(incarnation: int, number: int) -> bytes:
    return b"%d/%d/" % (incarnation, number) + bytes(number * 37 % 700)


def key_of(record: Record) -> tuple[int, int]:
    incarnation, number, _ = record.value.split(b"/", 2)
    return int(incarnation), int(number)


class StressRun:
    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.history = History()
        self.chance = cluster.simulation.chance("stress")
        self.writers: list[SimProcess] = []

    async def write(self, client: LedgerClient) -> None:
        """Opens writers and appends through them until the run is over."""
        namespace = Namespace(client, "demo", writer_options=WRITER)
        while not self.history.is_over:
            incarnation = self.history.incarnations = self.history.incarnations + 1
            try:
                async with namespace.writer("s") as writer:
                    await self._append_some(writer, incarnation)
            except LedgerError as error:
                self.history.failed(error)
            await trio.sleep(self.chance.expovariate(1.0))

    async def _append_some(self, writer: StreamWriter, incarnation: int) -> None:
        tickets: list[tuple[int, Ticket]] = []
        for number in range(self.chance.randint(1, 600)):
            if self.history.is_over:
                break
            await writer.wait_room()
            tickets.append((number, writer.append_nowait(value_of(incarnation, number))))
            self.history.issued.append((incarnation, number))
            while len(tickets) > self.chance.randint(0, 30):
                await self._confirm(incarnation, *tickets.pop(0))
            if self.chance.random() < 0.05:
                await trio.sleep(self.chance.random() * 0.5)
        for number, ticket in tickets:
            await self._confirm(incarnation, number, ticket)

    async def _confirm(self, incarnation: int, number: int, ticket: Ticket) -> None:
        self.history.confirmed[incarnation, number] = await ticket.wait()

    async def tail(self, client: LedgerClient) -> None:
        """Follows the stream forever, and continues where it was after an error."""
        namespace = Namespace(client, "demo")
        while True:
            position = (
                self.history.seen[-1].position.after if self.history.seen else Position(0, 0, 0)
            )
            try:
                async with namespace.reader("s", start=position) as reader:
                    async for record in reader:
                        self.history.seen.append(record)
                        if len(self.history.seen) == self.history.wanted:
                            self.history.caught_up.set()
            except LedgerError as error:
                self.history.failed(error)
                await trio.sleep(0.1)

    async def clean(self, client: LedgerClient) -> None:
        await Janitor(client, "demo", orphan_age_ms=1000).run(0.5)

    async def inject_faults(self) -> None:
        """Causes one fault after the other until the run is over, and then repairs all of them."""
        cluster, chance = self.cluster, self.chance
        calm = replace(cluster.metadata.options)
        with trio.move_on_after(SECONDS):
            while True:
                await trio.sleep(chance.expovariate(0.8))
                match chance.randrange(8):
                    case 0:
                        name = chance.choice(cluster.bookies)
                        await cluster.kill_bookie(name, CrashKind.POWER_LOST_ALL)
                        await trio.sleep(chance.random() * 3)
                        await cluster.start_bookie(name)
                    case 1:
                        for name in cluster.bookies:
                            await cluster.kill_bookie(name, CrashKind.PROCESS_KILLED)
                        await trio.sleep(chance.random() * 2)
                        await cluster.start_all()
                    case 2 | 3:
                        index = chance.randrange(len(self.writers))
                        self.writers[index].kill()
                        self.writers[index] = cluster.start_client(self.write, options=IMPATIENT)
                    case 4:
                        cluster.metadata.options = replace(
                            calm,
                            error_before_probability=0.1,
                            error_after_probability=0.2,
                            error_late_probability=0.1,
                            late_max_s=1.0,
                        )
                        await trio.sleep(chance.random() * 2)
                        cluster.metadata.options = replace(calm)
                    case 5:
                        cluster.metadata.options = replace(calm, delay_max_s=1.0)
                        await trio.sleep(chance.random() * 4)
                        cluster.metadata.options = replace(calm)
                    case 6:
                        deaf = chance.choice(self.writers).name
                        for name in cluster.bookies:
                            cluster.network.block(name, deaf)
                        await trio.sleep(chance.random() * 8)
                        cluster.network.heal()
                    case _:
                        await trio.sleep(chance.random() * 2)
        cluster.metadata.options = replace(calm)
        cluster.network.heal()
        await cluster.start_all()

    async def run(self) -> list[Record]:
        """Runs the whole scenario and returns the records in the stream at its end."""
        cluster, history = self.cluster, self.history
        async with cluster.client() as client:
            await create_namespace(client, "demo", batch_bytes=2500, roll_bytes=1 << 16)
            namespace = Namespace(client, "demo")
            await namespace.create_stream("s")
            for _ in range(2):
                self.writers.append(cluster.start_client(self.write, options=IMPATIENT))
            tail = cluster.start_client(self.tail, options=IMPATIENT)
            janitor = cluster.start_client(self.clean)
            await self.inject_faults()
            history.is_over = True
            with trio.fail_after(120):
                for writer in self.writers:
                    await writer.finished.wait()
                await namespace.seal_stream("s")
                async with namespace.reader("s") as reader:
                    records = [r async for batch in reader.read_to_end() for r in batch.records()]
                history.wanted = len(records)
                if len(history.seen) < len(records):
                    await history.caught_up.wait()
            tail.kill()
            janitor.kill()
            await trio.sleep(2)
            await Janitor(client, "demo", orphan_age_ms=-10_000).sweep()
            stream = await namespace.stream_metadata("s")
            assert sorted(stream.ledgers()) == await client.list_ledgers(), "ledgers leaked"
        return records


def check(history: History, records: list[Record]) -> None:
    keys = [key_of(record) for record in records]
    at = {key: record.position for key, record in zip(keys, records, strict=True)}
    assert len(at) == len(records), "a record is stored twice"
    assert set(at) <= set(history.issued)
    assert {key: at.get(key) for key in history.confirmed} == history.confirmed
    assert [record.sequence for record in records] == list(range(len(records)))
    positions = [record.position for record in records]
    assert positions == sorted(positions)
    times = [record.append_time_ms for record in records]
    assert times == sorted(times)
    last: dict[int, int] = {}
    for incarnation, number in keys:
        assert number == last.get(incarnation, -1) + 1, "records of a writer are out of order"
        last[incarnation] = number
    assert history.seen == records


async def scenario(cluster: SimCluster) -> None:
    stress = StressRun(cluster)
    records = await stress.run()
    check(stress.history, records)
    assert len(records) > 50


@pytest.mark.parametrize("seed", seeds(ci=1, night=30))
def test_confirmed_records_survive_all_faults(seed: int) -> None:
    simulate(scenario, seed, bookies=4)
