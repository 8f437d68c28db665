"""A batch that cannot be committed is refused before any writer is interrupted for it."""

from __future__ import annotations

import pytest

from bookie.testing import SimCluster, simulate
from ledger.errors import InvalidArgument
from stream.core.metadata.streams import SegmentEnd
from stream.sinks.sinks import SinkLedger, commit_batch
from tests.effort import scaled
from tests.stream.sim_namespace import sim_namespace
from tests.stream.sinks.sink_ledgers import write_ledger


def test_a_writer_is_not_interrupted_for_a_batch_that_cannot_be_committed() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sim_namespace(cluster) as namespace:
            client = namespace.client
            await namespace.create_stream("s")
            ledger = await write_ledger(client, "s", [[b"1"]])
            await commit_batch(client, [ledger], sink_id="one", batch_id=1)
            async with namespace.writer("s") as writer:
                await writer.append(b"own")
                before = await namespace.stream_metadata("s")
                for _ in range(scaled(ci=1, night=3)):
                    with pytest.raises(InvalidArgument, match=r"has ledger \d+ already"):
                        await commit_batch(client, [ledger], sink_id="two", batch_id=1)
                    await writer.append(b"own")
                assert await namespace.stream_metadata("s") == before

    simulate(scenario)


def test_a_batch_of_too_many_ledgers_is_refused() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sim_namespace(cluster) as namespace:
            end = SegmentEnd(0, 1, 1)
            ledgers = [SinkLedger("n", f"s{n % 8}", n, end) for n in range(10_000)]
            with pytest.raises(InvalidArgument, match=r"10000 ledgers for 8 streams.*fewer tasks"):
                await commit_batch(namespace.client, ledgers)

    simulate(scenario)
