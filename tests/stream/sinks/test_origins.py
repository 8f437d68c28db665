"""A sink's name that is used twice: the second user gets an error, and its rows are not lost."""

from __future__ import annotations

import pytest

from bookie.testing import SimCluster, simulate
from stream import CommitOutOfOrder
from stream.sinks.sinks import commit_batch
from tests.stream.sim_namespace import sim_namespace
from tests.stream.sinks.sink_ledgers import write_ledger


def test_the_same_batch_number_of_another_query_is_refused() -> None:
    """A query with a new Spark checkpoint counts from 0 again, as the previous one did."""

    async def scenario(cluster: SimCluster) -> None:
        async with sim_namespace(cluster) as namespace:
            client = namespace.client
            await namespace.create_stream("s")

            async def commit(origin: str, batch_id: int = 0) -> bool:
                ledger = await write_ledger(client, "s", [[b"x"]], sink_id="k", batch_id=batch_id)
                done = await commit_batch(
                    client, [ledger], sink_id="k", batch_id=batch_id, origin=origin
                )
                return done.is_repeat

            assert not await commit("query a")
            assert await commit("query a")
            with pytest.raises(CommitOutOfOrder, match="query b"):
                await commit("query b")
            assert not await commit("query b", 1)

    simulate(scenario)
