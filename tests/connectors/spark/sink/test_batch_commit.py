"""What a commit remembers of the one before, and what may have changed since."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie.testing import SimCluster, simulate
from ledger.errors import NoSuchLedger
from ledger.metastore.base import Check
from ledger.metastore.restores import Restore, RestoreLog
from ledger.writing.writer import LedgerWriter
from stream import CommitOutOfOrder, Namespace, delete_namespace
from stream.sinks.prepared import SinkMemory
from stream.sinks.sinks import SinkQuery
from stream.store.sinks import find_sink, forget_sink
from stream.store.streams import stream_path
from tests.connectors.spark.sink.result_batches import (
    POLICY,
    RUN,
    Calls,
    driver_of,
    one_row_each,
    records_of,
    values_of,
)
from tests.sim.commits.results import commit, small_result


def test_a_stream_that_others_changed_is_read_again() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with driver_of(cluster) as client:
            await commit(client, one_row_each(1, 0), "k", 0, query=RUN)
            async with cluster.client("other") as other, Namespace(other, "n").writer("s") as w:
                await w.append(b"before")
                await commit(client, one_row_each(1, 1), "k", 1, query=RUN)
                await w.append(b"after")
                await commit(client, one_row_each(1, 2), "k", 2, query=RUN)
            assert await values_of(client) == [b"0/0", b"before", b"1/0", b"after", b"2/0"]

    simulate(scenario)


def test_a_stream_that_was_made_again_is_not_overwritten() -> None:
    """Its node has the version again that the last commit has left."""

    async def scenario(cluster: SimCluster) -> None:
        async with driver_of(cluster) as client, cluster.client("other") as other:
            for batch in range(5):
                await commit(client, one_row_each(1, batch), "k", batch, query=RUN)
            path = stream_path("n", "s")
            left = (await other.store.get(path)).version
            space = Namespace(other, "n")
            await space.delete_stream("s")
            await delete_namespace(other, "n", purge=True)
            await space.ensure()
            await space.create_stream("s")
            async with space.writer("s") as writer:
                await writer.append(b"acknowledged")
                while (node := await other.store.get(path)).version < left:
                    await other.store.put(path, node.data, node.version)
                assert node.version == left
                with pytest.raises(CommitOutOfOrder, match="was deleted and created again"):
                    await commit(client, one_row_each(1, 5), "k", 5, query=RUN)
                await writer.append(b"continues")
            assert await values_of(client) == [b"acknowledged", b"continues"]

    simulate(scenario)


def test_a_sink_that_belongs_to_another_query_now_is_not_overwritten() -> None:
    """Its node has the version again that the last commit has left."""

    async def scenario(cluster: SimCluster) -> None:
        async with driver_of(cluster) as client, cluster.client("other") as other:
            await Namespace(other, "n").create_stream("t")
            query = SinkQuery(query_id="another", run_id="r")
            for batch in range(2):
                await commit(client, one_row_each(1, batch), "k", batch, query=RUN)
            await forget_sink(other.store, "k")
            for batch in range(2):
                result = small_result(POLICY, "t", [[b"%d" % batch]])
                await commit(other, [result], "k", batch, query=query)
            with pytest.raises(CommitOutOfOrder, match="belongs to query another"):
                await commit(client, one_row_each(1, 2), "k", 2, query=RUN)
            assert await values_of(client) == [b"0/0", b"1/0"]
            assert await values_of(client, "t") == [b"0", b"1"]

    simulate(scenario)


@pytest.mark.parametrize(("pause_s", "requests"), [(0, 3), (15, 3), (61, 6), (301, 9)])
def test_a_query_that_pauses_asks_only_for_what_may_have_changed(
    pause_s: float, requests: int
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with driver_of(cluster) as client:
            calls = Calls(cluster, "driver")
            for batch in range(3):
                await commit(client, one_row_each(200, batch), "k", batch, query=RUN)
                made = calls.taken()
                if batch:
                    assert len(made) == requests, made
                await cluster.simulation.sleep(pause_s)
            assert len(await values_of(client)) == 600

    simulate(scenario)


def test_a_sink_that_was_forgotten_is_read_again() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with driver_of(cluster) as client:
            await commit(client, one_row_each(1, 0), "k", 0, query=RUN)
            await forget_sink(client.store, "k")
            with pytest.raises(CommitOutOfOrder, match="has committed nothing here"):
                await commit(client, one_row_each(1, 1), "k", 1, query=RUN)
            assert await values_of(client) == [b"0/0"]
            assert len(await client.list_ledgers()) == 1

    simulate(scenario)


def test_nothing_is_believed_of_a_history_that_was_lost() -> None:
    """Others have brought the nodes to the same versions after the metadata were put back."""

    async def scenario(cluster: SimCluster) -> None:
        async with driver_of(cluster) as client:
            await commit(client, one_row_each(1, 0), "k", 0, query=RUN)
            backup = cluster.metadata.tree.backup()
            await commit(client, one_row_each(1, 1), "k", 1, query=RUN)
            cluster.metadata.tree.put_back(backup)
            async with cluster.client("other") as other:
                await RestoreLog(other.store).add(Restore(50, 60, 7, "b:1"))
                await other.ledgers.next_ledger_id(beyond=60)
                await commit(other, one_row_each(2, 1), "k", 1, query=replace(RUN, run_id="r2"))
            with pytest.raises(CommitOutOfOrder, match="both are active"):
                await commit(client, one_row_each(1, 1), "k", 1, query=RUN)
            await commit(client, one_row_each(1, 2), "k", 2, query=RUN)
            records = await records_of(client)
            assert [record.value for record in records] == [b"0/0", b"1/0", b"1/1", b"2/0"]
            assert records[1].sequence == 10**12  # behind the gap

    simulate(scenario)


def test_a_restore_is_noticed_with_the_next_list_of_bookies() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with driver_of(cluster) as client:
            for batch in range(2):
                await commit(client, one_row_each(1, batch), "k", batch, query=RUN)
            await RestoreLog(client.store).add(Restore(50, 60, 7, "b:1"))
            await cluster.simulation.sleep(61)
            await commit(client, one_row_each(1, 2), "k", 2, query=RUN)
            assert [record.sequence for record in await records_of(client)] == [0, 1, 10**12]

    simulate(scenario)


def test_a_janitor_that_deletes_the_ledger_prevents_the_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with driver_of(cluster) as client:
            await commit(client, one_row_each(1, 0), "k", 0, query=RUN)
            prepare = LedgerWriter.prepare_close

            async def deleted(self: LedgerWriter) -> object:
                prepared = await prepare(self)
                async with cluster.client("janitor") as other:
                    if self.ledger_id in await other.list_ledgers():
                        await other.delete_ledger(self.ledger_id)
                return prepared

            monkeypatch.setattr(LedgerWriter, "prepare_close", deleted)
            with pytest.raises(NoSuchLedger, match="was deleted before batch 1"):
                await commit(client, one_row_each(1, 1), "k", 1, query=RUN)
            monkeypatch.setattr(LedgerWriter, "prepare_close", prepare)
            await commit(client, one_row_each(1, 1), "k", 1, query=RUN)
            assert await values_of(client) == [b"0/0", b"1/0"]

    simulate(scenario)


def test_memory_is_only_for_the_next_batch_of_the_same_run() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with driver_of(cluster) as client:
            await commit(client, one_row_each(1, 4), "k", 4)
            sink = await find_sink(client.store, "k")
            memory = SinkMemory()
            memory.note(sink, 1, {}, "/c", Check("/g", 1))
            assert memory.precedes(5, None)
            assert not memory.precedes(4, None)
            assert not memory.precedes(6, None)
            assert not memory.precedes(None, None)
            assert not memory.precedes(5, RUN)
            assert not SinkMemory().precedes(0, None)
            await cluster.simulation.sleep(301)
            assert not memory.precedes(5, None)
            for unknown in ((None, Check("/g", 1)), ("/c", None)):
                memory.note(sink, 1, {}, *unknown)
                assert not memory.precedes(5, None)

    simulate(scenario)
