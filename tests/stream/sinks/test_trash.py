"""Ledgers of a batch whose stream is in the trash: discarding the batch deletes none of them."""

from __future__ import annotations

from dataclasses import replace

from bookie.testing import SimCluster, simulate
from stream.core.position import EARLIEST
from stream.sinks.sinks import commit_batch, discard_ledgers
from tests.stream.sim_namespace import sim_namespace
from tests.stream.sinks.sink_ledgers import write_ledger


def test_ledgers_in_the_trash_are_not_discarded() -> None:
    """Even if the clock of the client that created the stream again is behind that of the task."""

    async def scenario(cluster: SimCluster) -> None:
        async with sim_namespace(cluster) as namespace:
            client = namespace.client
            await namespace.create_stream("s")
            ledger = await write_ledger(client, "s", [[b"1"]])
            await commit_batch(client, [ledger])
            await namespace.delete_stream("s")
            await namespace.create_stream("s")
            await namespace.store.update_stream("n", "s", lambda s: replace(s, created_ms=1))
            assert await discard_ledgers(client, [ledger]) == 0
            await namespace.undelete_stream("s", as_name="t")
            assert await discard_ledgers(client, [ledger]) == 0
            async with namespace.reader("t", start=EARLIEST) as reader:
                found = [r.value async for batch in reader.read_to_end() for r in batch.records()]
            assert found == [b"1"]

    simulate(scenario)
