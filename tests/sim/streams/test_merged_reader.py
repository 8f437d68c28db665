"""Merged readers under faults: bookies die, readers are cut off, writers roll and take over.

What must hold: every record once, in the order of its stream where times do not go back, and, as
nobody may be idle here and lateness covers how far times go back, nothing is ever late.
"""

from __future__ import annotations

import random

import pytest
import trio

from bookie.testing import SimCluster, simulate
from ledger.client import LedgerClient
from ledger.errors import LedgerError, RetryableError
from stream import MergedReader, MergedRecord, Namespace, Position, Record
from tests.effort import seeds

SEEDS = seeds(ci=2, night=40)
STREAMS = ("a", "b", "p#0", "p#1")
JITTER_MS = 500
LAST_MS = 1 << 40
"""Event time of the records that end a stream: two of them, so that the first gets out."""


class Scenario:
    def __init__(self, cluster: SimCluster, chance: random.Random) -> None:
        self.cluster = cluster
        self.chance = chance
        self.merged: list[MergedRecord] = []
        self.resumed: list[MergedRecord] = []
        self.outages = 0
        self.is_reading = trio.Event()
        self.is_written = False

    async def write(self, namespace: Namespace, stream: str, seed: int) -> None:
        chance = random.Random(seed)
        steps, pause_s = chance.randint(20, 80), chance.choice((0.01, 0.1, 0.5))
        times = [20 * number + chance.randrange(JITTER_MS) for number in range(steps)]
        times += [LAST_MS, 2 * LAST_MS]
        while times:
            try:
                async with namespace.writer(stream) as writer:
                    for time_ms in times[: chance.randint(1, 40)]:
                        value = b"%s %d" % (stream.encode(), time_ms)
                        await writer.append(value + bytes(2000), event_time_ms=time_ms)
                        times.remove(time_ms)
                        await trio.sleep(chance.uniform(0, pause_s))
            except LedgerError:
                await trio.sleep(0.3)

    async def faults(self) -> None:
        cluster, chance = self.cluster, self.chance
        while not self.is_written:
            await trio.sleep(chance.expovariate(1))
            kind = chance.randrange(4)
            if kind == 0:
                name = chance.choice(cluster.bookies)
                await cluster.kill_bookie(name)
                await trio.sleep(chance.expovariate(1))
                await cluster.start_bookie(name)
            elif kind == 1:
                cluster.network.partition(["reader"], cluster.bookies)
                await trio.sleep(chance.expovariate(0.3))
                cluster.network.heal()
            elif kind == 2:
                cluster.metadata.cut_off("reader")
                await trio.sleep(chance.expovariate(0.3))
                cluster.metadata.heal()
            else:
                cluster.network.reset(chance.choice(["reader", "writer", *cluster.bookies]))

    async def next_of(self, reader: MergedReader) -> MergedRecord:
        while True:
            try:
                return await reader.__anext__()
            except RetryableError:
                self.outages += 1
                await trio.sleep(0.1)

    async def read(self, client: LedgerClient) -> None:
        """By event time, with one reader from the begin to the end."""
        namespace = Namespace(client, "demo")
        async with namespace.merged_reader(
            ["a", "b", "p"],
            lateness_ms=JITTER_MS,
            idle_timeout_ms=None,
            buffer_bytes=self.chance.choice((1 << 20, 64 << 20)),
        ) as reader:
            self.is_reading.set()
            ended: dict[str, bool] = {}
            while len(ended) < len(STREAMS):
                self.merged.append(await self.next_of(reader))
                if self.merged[-1].record.event_time_ms == LAST_MS:
                    ended[self.merged[-1].stream] = True

    async def read_in_parts(self, client: LedgerClient) -> None:
        """By append time, with a new reader now and then that continues where the last was."""
        namespace = Namespace(client, "demo")
        start: dict[str, Position] = {}
        ended: dict[str, bool] = {}
        while len(ended) < len(STREAMS):
            try:
                async with namespace.merged_reader(
                    ["[ab]", "p"], start=start, order_by="append_time", idle_timeout_ms=300
                ) as reader:
                    for _ in range(self.chance.randint(1, 60)):
                        merged = await self.next_of(reader)
                        self.resumed.append(merged)
                        start = {**start, **reader.positions()}
                        if merged.record.event_time_ms == LAST_MS:
                            ended[merged.stream] = True
                        if len(ended) == len(STREAMS):
                            return
            except RetryableError:
                await trio.sleep(0.1)  # it could not be opened

    async def run(self) -> dict[str, list[Record]]:
        cluster = self.cluster
        async with cluster.client("writer") as client, cluster.client("reader") as other:
            namespace = Namespace(client, "demo")
            await namespace.ensure(roll_bytes=1 << 16, batch_bytes=8000)
            for name in ("a", "b"):
                await namespace.create_stream(name)
            await namespace.create_stream("p", partitions=2)
            async with trio.open_nursery() as readers:
                readers.start_soon(self.read, other)
                readers.start_soon(self.read_in_parts, other)
                await self.is_reading.wait()
                async with trio.open_nursery() as faults:
                    faults.start_soon(self.faults)
                    async with trio.open_nursery() as writers:
                        for name in STREAMS:
                            writers.start_soon(
                                self.write, namespace, name, self.chance.getrandbits(64)
                            )
                    self.is_written = True
            found = {}
            for name in STREAMS:
                async with namespace.reader(name) as reader:
                    found[name] = [
                        record async for batch in reader.read_to_end()
                        for record in batch.records()
                    ]  # fmt: skip
            return found


def is_before_end(record: Record) -> bool:
    return record.event_time_ms is not None and record.event_time_ms < LAST_MS


@pytest.mark.parametrize("seed", SEEDS)
def test_merged_records_are_all_there_once_and_in_order(seed: int) -> None:
    async def in_cluster(cluster: SimCluster) -> None:
        scenario = Scenario(cluster, random.Random(seed))
        streams = await scenario.run()
        merged = scenario.merged
        assert not any(m.is_late for m in merged)
        times = [m.record.event_time_ms or 0 for m in merged]
        assert times == sorted(times)
        for name, records in streams.items():
            # What is behind the first record of the end need not have been given out.
            wanted = [record for record in records if is_before_end(record)]
            wanted.sort(key=lambda record: (record.event_time_ms, record.sequence))
            found = [m.record for m in merged if m.stream == name]
            assert [record for record in found if is_before_end(record)] == wanted
            in_parts = [m.record for m in scenario.resumed if m.stream == name]
            assert in_parts == records[: len(in_parts)]
            assert len(in_parts) > len(wanted)

    simulate(in_cluster, seed, time_limit_s=10_000)


def test_a_stream_that_cannot_be_reached_is_not_taken_for_idle() -> None:
    async def in_cluster(cluster: SimCluster) -> None:
        async with cluster.client("writer") as client, cluster.client("reader") as other:
            namespace = Namespace(client, "demo")
            await namespace.ensure(ensemble_size=1, write_quorum=1, ack_quorum=1)
            homes: dict[str, str] = {}
            while len(homes) < 2:
                stream = f"s{len(await namespace.list_streams())}"
                async with namespace.writer(stream, create=True) as writer:
                    await writer.append(stream.encode(), event_time_ms=10 - len(homes))
                segment = (await namespace.stream_metadata(stream)).segments[0]
                ledger = await client.ledger_metadata(segment.ledger_id)
                homes.setdefault(ledger.last_fragment.bookies[0].split(":")[0], stream)
            (_, near), (far_home, far) = homes.items()
            cluster.network.partition(["reader"], [far_home])
            async with Namespace(other, "demo").merged_reader(
                [near, far], idle_timeout_ms=100
            ) as reader:
                reported = 0
                with trio.move_on_after(60) as scope:
                    while True:
                        try:
                            await reader.__anext__()
                        except RetryableError:
                            reported += 1
                assert scope.cancelled_caught
                assert reported, "that it cannot be read is no secret"
                assert reader.buffered_bytes, "the other stream has been read"
                cluster.network.heal()
                found: list[str] = []
                while len(found) < 2:
                    try:
                        found.append((await reader.__anext__()).stream)
                    except RetryableError:
                        await trio.sleep(0.1)
                assert found == [far, near]

    simulate(in_cluster, time_limit_s=10_000)


@pytest.mark.parametrize("is_purged", [False, True])
def test_a_plain_stream_in_the_place_of_a_partitioned_one_is_found_by_a_pattern(
    is_purged: bool,
) -> None:
    """The partitions of the old one are listed for a while, as if it were still partitioned."""

    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("one") as client:
            namespace = Namespace(client, "n")
            await namespace.ensure()
            await namespace.create_stream("x", partitions=2)
            async with namespace.partitioned_writer("x") as writer:
                await writer.append(b"old")
            await namespace.delete_stream("x")
            if is_purged:
                await namespace.purge("x")
            async with namespace.merged_reader("*", follow=False) as reader:
                assert [merged async for merged in reader] == []
            async with namespace.writer("x", create=True) as plain:
                await plain.append(b"new")
            for wanted in ("x", "*"):
                async with namespace.merged_reader(wanted, follow=False) as reader:
                    assert [merged.record.value async for merged in reader] == [b"new"]

    simulate(scenario, 1)
