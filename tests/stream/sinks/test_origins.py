"""A sink's name that is used twice: the second user gets an error, and its rows are not lost."""

from __future__ import annotations

import pytest
import trio

from bookie.testing import SimCluster, simulate
from stream import CommitOutOfOrder, NoSuchStream, delete_namespace
from stream.sinks.sinks import SinkQuery, commit_batch
from stream.store.sinks import reset_sink, sink_path
from stream.store.streams import stream_path
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


@pytest.mark.parametrize("is_whole", [True, False])
def test_batches_that_a_restore_forgot_are_not_passed_over(is_whole: bool) -> None:
    """The metadata are put back to batch 1, or to before the sink; the checkpoint has batch 3."""

    async def scenario(cluster: SimCluster) -> None:
        async with sim_namespace(cluster) as namespace:
            client, store = namespace.client, namespace.client.store
            await namespace.create_stream("s")
            query = SinkQuery(query_id="q", run_id="r")

            async def commit(batch_id: int) -> bool:
                ledger = await write_ledger(client, "s", [[b"x"]], sink_id="k", batch_id=batch_id)
                done = await commit_batch(
                    client, [ledger], sink_id="k", batch_id=batch_id, origin="query q", query=query
                )
                return done.is_repeat

            paths = [stream_path("n", "s")]
            backup = {}
            for batch_id in range(4):
                await commit(batch_id)
                if batch_id == 1:
                    paths += [sink_path("k")] if is_whole else []
                    backup = {path: (await store.get(path)).data for path in paths}
            for path, data in backup.items():
                await store.put(path, data)
            if not is_whole:
                await store.delete(sink_path("k"))
            unknown = "nothing is known of the batches 2 to 3" if is_whole else "batches 0 to 3"
            with pytest.raises(CommitOutOfOrder, match=unknown):
                await commit(4)
            # The checkpoint is put back to batch 1, or the missing batches are given up.
            if is_whole:
                assert not await commit(2)
                assert not await commit(3)
            await reset_sink(store, "k", 3, 0)
            assert not await commit(4)
            assert await commit(4)

    simulate(scenario)


def test_a_namespace_that_was_made_again_is_not_the_target_of_before() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sim_namespace(cluster) as namespace:
            client = namespace.client
            query = SinkQuery(query_id="q", run_id="r")

            async def commit(batch_id: int) -> None:
                ledger = await write_ledger(client, "s", [[b"x"]], sink_id="k", batch_id=batch_id)
                await commit_batch(client, [ledger], sink_id="k", batch_id=batch_id, query=query)

            await namespace.create_stream("s")
            await commit(0)
            await namespace.delete_stream("s")
            with pytest.raises(NoSuchStream):
                await commit(1)
            await delete_namespace(client, "n", purge=True)
            await trio.sleep(1)
            await namespace.ensure()
            await namespace.create_stream("s")
            with pytest.raises(CommitOutOfOrder, match="n/s was deleted and created again"):
                await commit(1)

    simulate(scenario)
