"""Every place to begin reading, on streams of sealed, recovered, truncated and open segments,
against a naive twin: the list of all records there are."""

from __future__ import annotations

import random

import pytest
import trio

from bookie.testing import SimCluster, simulate
from ledger.client import LedgerClient
from stream import (
    EARLIEST,
    FromEnd,
    FromEventTime,
    FromSequence,
    FromTime,
    Namespace,
    Record,
    Start,
    StreamWriter,
)
from tests.effort import seeds

SEEDS = seeds(ci=1, night=20)
EVENT_TIMES = 1000


class Scenario:
    def __init__(self, cluster: SimCluster, namespace: Namespace, chance: random.Random) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.chance = chance
        self.appended = 0

    async def append_some(self, writer: StreamWriter) -> None:
        for _ in range(self.chance.randint(0, 6)):
            count = self.chance.randint(1, 4)
            times = [self.chance.choice((None, self.chance.randrange(EVENT_TIMES)))] * count
            values = [b"%d" % number for number in range(self.appended, self.appended + count)]
            await writer.append_many(values, event_times=times)
            self.appended += count
            await trio.sleep(0.05)

    async def write_segment(self) -> None:
        """Sealed in the end, or left open by a writer that dies."""
        if self.chance.random() < 0.5:
            async with self.namespace.writer("s") as writer:
                await self.append_some(writer)
            return
        done = trio.Event()

        async def write(client: LedgerClient) -> None:
            async with Namespace(client, "n").writer("s") as writer:
                await self.append_some(writer)
                done.set()
                await trio.sleep_forever()

        process = self.cluster.start_client(write)
        await done.wait()
        process.kill()
        await trio.sleep(5)

    async def read(self, start: Start) -> list[Record]:
        async with self.namespace.reader("s", start=start) as reader:
            return [record async for batch in reader.read_to_end() for record in batch.records()]

    async def check(self) -> list[Record]:
        everything = await self.read(EARLIEST)
        count = len(everything)
        begin = self.appended - count
        assert [record.sequence for record in everything] == list(range(begin, self.appended))
        for wanted in range(count + 3):
            last = everything[max(0, count - wanted) :]
            assert await self.read(FromEnd(wanted)) == last
            assert await self.namespace.read_last("s", wanted) == last
        for time_ms in sorted({record.append_time_ms for record in everything}):
            for start_ms in (time_ms, time_ms + 1):
                behind = [r for r in everything if r.append_time_ms >= start_ms]
                assert await self.read(FromTime(start_ms)) == behind
        for time_ms in (0, 500, EVENT_TIMES - 100, EVENT_TIMES):
            first = next((n for n, r in enumerate(everything) if _is_at(r, time_ms)), count)
            assert await self.read(FromEventTime(time_ms)) == everything[first:]
        for index, record in enumerate(everything):
            assert await self.read(record.position) == everything[index:]
            assert await self.read(FromSequence(record.sequence)) == everything[index:]
            before: list[Record] = []
            async with self.namespace.backward_batches("s", before=record.position) as batches:
                async for batch in batches:
                    before = batch.records() + before
            assert before == everything[:index]
        return everything


def _is_at(record: Record, time_ms: int) -> bool:
    return record.event_time_ms is not None and record.event_time_ms >= time_ms


@pytest.mark.parametrize("seed", SEEDS)
def test_every_start_gives_what_the_twin_says(seed: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        chance = random.Random(seed)
        async with cluster.client("one") as client:
            namespace = Namespace(client, "n")
            await namespace.ensure(batch_bytes=chance.choice((1, 300)), trash_ms=0)
            await namespace.create_stream("s")
            faults = Scenario(cluster, namespace, chance)
            for _ in range(chance.randint(1, 4)):
                await faults.write_segment()
            everything = await faults.check()
            if everything:
                position = chance.choice(everything).position
                await namespace.truncate("s", chance.choice((position, position.after)))
                await faults.check()
                await faults.write_segment()
                await faults.check()

    simulate(scenario, seed, time_limit_s=100_000)
