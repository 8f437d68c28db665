"""A partitioned writer in a simulated cluster that grows its stream, takes partitions over and
kills bookies.

In every run a confirmed record is stored once, at the position that its writer returned, and the
records of one key are in the order of their appends, across all partitions that had the key.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

import pytest
import trio

from bookie.testing import CrashKind, SimCluster, simulate
from ledger.client import LedgerClient
from ledger.errors import LedgerError
from stream import (
    Namespace,
    PartitionedWriter,
    PartitionPosition,
    PartitionTicket,
    Record,
    WriterOptions,
    create_namespace,
)
from stream.store.streams import stream_path
from tests.effort import seeds
from tests.stream.short_timeouts import IMPATIENT

WRITER = WriterOptions(pending_bytes_max=20_000, repair_timeout_s=20)
SECONDS = 20.0
_GROW = 1
KEYS = [b"user-%d" % number for number in range(12)]


@dataclass
class History:
    issued: set[tuple[bytes, int]] = field(default_factory=set)
    confirmed: dict[tuple[bytes, int], PartitionPosition] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    is_over: bool = False

    def failed(self, error: LedgerError) -> None:
        name = type(error).__name__
        self.failures[name] = self.failures.get(name, 0) + 1


class StressRun:
    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.history = History()
        self.chance = cluster.simulation.chance("stress")
        self.next_number = dict.fromkeys(KEYS, 0)

    async def write(self, client: LedgerClient) -> None:
        namespace = Namespace(client, "demo", writer_options=WRITER)
        while not self.history.is_over:
            try:
                async with namespace.partitioned_writer("s") as writer:
                    await self._append_some(writer)
            except LedgerError as error:
                self.history.failed(error)
            await trio.sleep(self.chance.expovariate(2.0))

    async def _append_some(self, writer: PartitionedWriter) -> None:
        waiting: list[tuple[bytes, int, PartitionTicket]] = []
        for _ in range(self.chance.randint(1, 900)):
            if self.history.is_over:
                break
            if self.chance.random() < 0.02:
                await self._append_list(writer)
            key = self.chance.choice(KEYS)
            number = self.next_number[key]
            try:
                ticket = writer.append_nowait(b"%d" % number + bytes(number % 90), key)
            except trio.WouldBlock:
                await writer.wait_room()
                continue
            except LedgerError as error:
                await self._failed(writer, writer.partition_of(key), error)
                continue
            self.next_number[key] += 1
            self.history.issued.add((key, number))
            waiting.append((key, number, ticket))
            while len(waiting) > self.chance.randint(0, 40):
                await self._confirm(*waiting.pop(0))
            if self.chance.random() < 0.05:
                await trio.sleep(self.chance.random() * 0.3)
        for each in waiting:
            await self._confirm(*each)

    async def _append_list(self, writer: PartitionedWriter) -> None:
        keys, values = [], []
        for _ in range(self.chance.randint(1, 60)):
            key = self.chance.choice(KEYS)
            keys.append(key)
            values.append(b"%d" % self.next_number[key] + bytes(5))
            self.history.issued.add((key, self.next_number[key]))
            self.next_number[key] += 1
        try:
            await writer.append_many(values, keys)
        except LedgerError as error:
            self.history.failed(error)

    async def _confirm(self, key: bytes, number: int, ticket: PartitionTicket) -> None:
        try:
            self.history.confirmed[key, number] = await ticket.wait()
        except LedgerError as error:
            self.history.failed(error)

    async def _failed(self, writer: PartitionedWriter, partition: int, error: LedgerError) -> None:
        self.history.failed(error)
        try:
            await writer.reopen(partition)
        except LedgerError as again:
            self.history.failed(again)

    async def inject_faults(self, namespace: Namespace) -> None:
        cluster, chance, partitions = self.cluster, self.chance, 2
        calm = replace(cluster.metadata.options)
        hurts = itertools.chain([_GROW], iter(lambda: chance.randrange(6), None))
        with trio.move_on_after(SECONDS):
            for hurt in hurts:
                await trio.sleep(chance.expovariate(1.0))
                try:
                    match hurt:
                        case 0:
                            name = chance.choice(cluster.bookies)
                            await cluster.kill_bookie(name, CrashKind.POWER_LOST_ALL)
                            await trio.sleep(chance.random() * 2)
                            await cluster.start_bookie(name)
                        case 1 | 4:  # _GROW is one of them
                            partitions += chance.randint(1, 3)
                            await namespace.grow_stream("s", partitions=partitions)
                        case 2:
                            stolen = chance.randrange(partitions)
                            async with namespace.writer(f"s#{stolen}"):
                                await trio.sleep(chance.random() * 0.3)
                        case 3:
                            cluster.metadata.options = replace(calm, delay_max_s=0.5)
                            await trio.sleep(chance.random() * 3)
                            cluster.metadata.options = replace(calm)
                        case _:
                            await trio.sleep(chance.random() * 2)
                except LedgerError as error:
                    self.history.failed(error)
        cluster.metadata.options = replace(calm)
        await cluster.start_all()

    async def run(self) -> dict[int, list[Record]]:
        async with self.cluster.client() as client:
            await create_namespace(client, "demo", batch_bytes=1000, roll_bytes=1 << 16)
            namespace = Namespace(client, "demo")
            await namespace.create_stream("s", partitions=2)
            writer = self.cluster.start_client(self.write, options=IMPATIENT)
            await self.inject_faults(namespace)
            self.history.is_over = True
            with trio.fail_after(120):
                await writer.finished.wait()
                found: dict[int, list[Record]] = {}
                for number, name in enumerate(await namespace.partitions("s")):
                    await namespace.seal_stream(name)
                    async with namespace.reader(name) as reader:
                        batches = [batch async for batch in reader.read_to_end()]
                        found[number] = [record for batch in batches for record in batch.records()]
        return found


def check(history: History, found: dict[int, list[Record]]) -> None:
    at: dict[tuple[bytes, int], PartitionPosition] = {}
    times: dict[bytes, list[tuple[int, int]]] = {key: [] for key in KEYS}
    for partition, records in found.items():
        last: dict[bytes, int] = {}
        for record in records:
            assert record.key is not None
            number = int(record.value.rstrip(b"\0"))
            assert (record.key, number) not in at, "a record is stored twice"
            assert number > last.get(record.key, -1), "records of a key are out of order"
            last[record.key] = number
            at[record.key, number] = PartitionPosition(partition, record.position)
            times[record.key].append((number, record.append_time_ms))
    assert set(at) <= history.issued
    assert {each: at.get(each) for each in history.confirmed} == history.confirmed
    for numbered in times.values():
        in_order = [time for _, time in sorted(numbered)]
        assert in_order == sorted(in_order), "a record overtook an older one of its key"


async def scenario(cluster: SimCluster) -> None:
    stress = StressRun(cluster)
    found = await stress.run()
    check(stress.history, found)
    assert len(found) > 2, "the stream never grew"
    assert len(stress.history.confirmed) > 100


@pytest.mark.parametrize("seed", seeds(ci=1, night=20))
def test_confirmed_records_stay_in_the_order_of_their_key(seed: int) -> None:
    simulate(scenario, seed, bookies=4)


def test_an_unreadable_node_does_not_stop_a_writer() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            namespace, path = Namespace(client, "demo"), stream_path("demo", "s")
            await namespace.ensure()
            async with namespace.partitioned_writer("s", create=2) as writer:
                await writer.append(b"1", b"key")
                good = await client.store.get(path)
                await client.store.put(path, b"not ours")
                await trio.sleep(10)
                await writer.append(b"2", b"key")
                await client.store.put(path, good.data)
                await namespace.grow_stream("s", partitions=4)
                await trio.sleep(10)
                assert writer.partitions == 4

    simulate(scenario, 5)


def test_a_full_partition_does_not_block_the_others() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            namespace = Namespace(client, "demo")
            await namespace.ensure(bytes_per_s_max=1)
            async with namespace.partitioned_writer("s", create=3) as writer:
                await writer.append(bytes(1000), partition=0)
                with pytest.raises(trio.WouldBlock):
                    writer.append_nowait(b"dropped: no room for a quarter of an hour", partition=0)
                with trio.fail_after(10):
                    await writer.append(b"1", partition=1)
                for partition in (0, 2):
                    with pytest.raises(trio.WouldBlock):
                        writer.append_nowait(b"2", partition=partition)
                with trio.fail_after(10):
                    await writer.wait_room()
                    await writer.append_nowait(b"2", partition=2).wait()

    simulate(scenario, 6)
