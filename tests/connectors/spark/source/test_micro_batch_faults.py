"""Every record of changing streams is read once, whatever happens to query and streams."""

from __future__ import annotations

import random

import pytest
import trio

from bookie.testing import SimCluster
from connectors.spark.core.admission import Limits
from ledger.client import LedgerClient
from ledger.errors import LedgerError
from stream import Namespace, StreamWriter
from stream.sinks.sinks import commit_batch
from tests.connectors.spark.source.sample_namespaces import all_of, run_scenario, sample_namespace
from tests.connectors.spark.source.simulated_query import Query, ReadRecord, by_stream
from tests.stream.sinks.sink_ledgers import write_ledger


class _Faults:
    """Writers, takeovers and new streams, with a query that is stopped and restarted."""

    def __init__(self, namespace: Namespace, seed: int) -> None:
        self.namespace = namespace
        self.rng = random.Random(seed)
        self.is_over = False

    async def write(self, stream: str) -> None:
        """Appends records; sometimes another writer takes over in the middle."""
        number = 0
        while not self.is_over:
            try:
                async with self.namespace.writer(stream, create=True) as writer:
                    for _ in range(self.rng.randrange(1, 30)):
                        number += await self._append(writer, number)
                        await trio.sleep(self.rng.random() / 5)
            except LedgerError:
                continue

    async def _append(self, writer: StreamWriter, number: int) -> int:
        count = self.rng.choice([1, 1, 5, 60])
        await writer.append_many(
            [b"%d" % (number + n) + bytes(self.rng.randrange(900)) for n in range(count)]
        )
        return count

    async def take_over(self, streams: list[str]) -> None:
        while not self.is_over:
            await trio.sleep(self.rng.random() * 3)
            try:
                await self.namespace.seal_stream(self.rng.choice(streams))
            except LedgerError:
                continue

    async def commit(self, client: LedgerClient, streams: list[str]) -> None:
        """Commits batches of a sink, each of them to all streams."""
        batch_id = 0
        while not self.is_over:
            await trio.sleep(self.rng.random())
            ledgers = [
                await write_ledger(
                    client, stream, [[b"c%d-%d" % (batch_id, entry)] * 3 for entry in range(3)],
                    sink_id="s", batch_id=batch_id,
                )
                for stream in streams
            ]  # fmt: skip
            try:
                await commit_batch(client, ledgers, sink_id="s", batch_id=batch_id)
            except LedgerError:
                continue
            batch_id += 1


@pytest.mark.parametrize(("seed", "is_sink_at_work"), [(0, False), (1, False), (2, True)])
def test_every_record_of_changing_streams_is_read_once_and_in_order(
    seed: int, is_sink_at_work: bool
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a", "b") as namespace, cluster.client() as sink:
            await namespace.set_policy(roll_bytes=1 << 16)
            faults = _Faults(namespace, seed)
            rng = random.Random(seed + 100)
            log: list[str] = []
            batches: list[list[ReadRecord]] = []
            async with trio.open_nursery() as nursery:
                for stream in ("a", "b", "c"):
                    nursery.start_soon(faults.write, stream)
                if is_sink_at_work:
                    nursery.start_soon(faults.commit, sink, ["a", "b"])
                else:
                    nursery.start_soon(faults.take_over, ["a", "b"])
                for _ in range(4):
                    query = Query(namespace.client, log, streamPattern="n/*")
                    async with query.running():
                        if batches:
                            assert sorted(map(repr, await query.again())) == sorted(
                                map(repr, batches[-1])
                            )
                        if rng.random() < 0.4:
                            await query.batches.settle_end()
                        for _ in range(rng.randrange(1, 8)):
                            limits = rng.choice(
                                [Limits(), Limits(records_max=37), Limits(bytes_max=500)]
                            )
                            await query.step(limits)
                            await trio.sleep(rng.random() / 2)
                    batches += query.seen
                faults.is_over = True
            last = Query(namespace.client, log, streamPattern="n/*")
            async with last.running():
                await last.drain(Limits(records_max=500))
            batches += last.seen
            assert by_stream(batches) == await all_of(namespace, "a", "b", "c")

    run_scenario(scenario, seed)
