"""A stream with many small segments on a simulated cluster, and what is done to merge them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from bookie.testing import SimCluster
from stream import (
    Namespace,
    Record,
)
from stream.core.metadata.segments import Segment
from stream.core.metadata.streams import StreamMetadata
from stream.core.receipt import Receipt
from stream.core.segment_merging import MergePlan
from stream.retention.segment_merging import (
    drop_replaced,
    merge_segments,
    plan_merge,
)
from stream.sinks.sinks import SinkLedger, commit_batch
from tests.stream.sim_namespace import sim_namespace
from tests.stream.sinks.sink_ledgers import write_ledger
from tests.stream.whole_streams import read_all

SEGMENTS = 16


class Long:
    """A stream "s" with many small segments, of writers and of sinks."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.client = namespace.client
        self.receipts: list[Receipt] = []
        self.batches: list[SinkLedger] = []
        self.records: list[Record] = []

    async def grow(self, count: int = SEGMENTS) -> None:
        await self.namespace.ensure_stream("s")
        for number in range(count):
            await trio.sleep(1)
            if number % 4 == 1:
                async with self.namespace.writer("s") as writer:
                    value = b"w%d" % number
                    await writer.append_many([value] * 3, event_times=[10 * number] * 3)
                    self.receipts.append(await writer.append(value, receipt=True))
                continue
            entries = [[b"k%d/%d" % (number, e)] * 2 for e in range(1 + number % 3)]
            times = [[10 * number] * 2 for _ in entries]
            ledger = await write_ledger(self.client, "s", entries, event_times=times)
            await commit_batch(self.client, [ledger])
            self.batches.append(ledger)
        self.records = await read_all(self.namespace, "s")

    async def merge(self) -> int:
        """Merges what there is to merge; returns how many segments were merged."""
        count = 0
        policy = await self.namespace.policy()
        while (plan := await self.plan()) is not None:
            await merge_segments(self.client, policy, await self.metadata(), plan, bytes_per_s=1e9)
            count += len(plan.segments)
        return count

    async def plan(self) -> MergePlan | None:
        policy = await self.namespace.policy()
        return (await plan_merge(self.client, policy, await self.metadata())).plan

    async def metadata(self) -> StreamMetadata:
        return await self.namespace.stream_metadata("s")

    async def segments(self) -> list[Segment]:
        return await self.namespace.store.pages.listed(await self.metadata())

    async def drop(self) -> int:
        return (await drop_replaced(self.client, "n", await self.metadata(), 0))[1]


@asynccontextmanager
async def a_long_stream(cluster: SimCluster) -> AsyncIterator[Long]:
    async with sim_namespace(cluster) as namespace:
        long = Long(namespace)
        await long.grow()
        yield long
