"""Micro-batches of streams that are deleted, recreated, purged and truncated."""

from __future__ import annotations

import pytest
import trio

from bookie.testing import SimCluster
from connectors.spark.core.admission import Limits
from connectors.spark.source.data_loss import DataLoss
from stream import Janitor, NoSuchStream, Position
from stream.retention.trash import delete
from tests.connectors.spark.source.sample_namespaces import (
    all_of,
    append,
    run_scenario,
    sample_namespace,
)
from tests.connectors.spark.source.simulated_query import Query, by_stream
from tests.stream.whole_streams import read_all


def test_a_missing_named_stream_is_an_error_of_a_new_query() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace:
            with pytest.raises(NoSuchStream, match="'x'"):
                async with Query(namespace.client, [], streams="n/a,n/x").running():
                    pass

    run_scenario(scenario)


def test_a_deleted_stream_is_data_loss_unless_it_was_read_to_its_end() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a", "b", "c") as namespace:
            for stream in ("a", "b", "c"):
                await append(namespace, stream, 5)
            query = Query(namespace.client, [], streamPattern="n/*")
            async with query.running():
                await query.drain()
                await namespace.delete_stream("a")
                await trio.sleep(1)
                assert await query.step() is None
                await append(namespace, "b", 5)
                await trio.sleep(1)
                assert len(await query.step() or ()) == 5
                assert query.position["n/a"].gone_ms > 0
                await append(namespace, "c", 4)
                await namespace.delete_stream("c")
                await trio.sleep(1)
                with pytest.raises(DataLoss, match=r"'n/c'.* 5 to 8 \(4 records\).*undelete n/c"):
                    await query.step()
            # A stream in the trash is not lost: it is restored, and read.
            await namespace.undelete_stream("c")
            again = Query(namespace.client, query.log, streamPattern="n/*")
            async with again.running():
                await again.drain()
            assert [row.sequence for batch in again.seen for row in batch] == [5, 6, 7, 8]

    run_scenario(scenario)


def test_a_recreated_stream_begins_at_its_first_record() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace:
            await append(namespace, "a", 5, "old")
            query = Query(namespace.client, [], stream="n/a")
            async with query.running():
                await query.drain()
                first = await all_of(namespace, "a")
                await namespace.delete_stream("a")
                await trio.sleep(3)
                assert await query.step() is None
                await namespace.create_stream("a")
                await append(namespace, "a", 3, "new")
                await trio.sleep(3)
                await query.drain()
                assert by_stream(query.seen) == {**first, **await all_of(namespace, "a")}
                await append(namespace, "a", 2, "lost")
                await namespace.delete_stream("a")
                await namespace.create_stream("a")
                await append(namespace, "a", 1)
                await trio.sleep(3)
                with pytest.raises(DataLoss, match="sequences 3 to 4"):
                    await query.step()

    run_scenario(scenario)


def test_a_stream_is_followed_while_the_ledger_of_its_namesake_is_open() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace, namespace.writer("a") as old:
            await old.append_many([b"old"] * 5)
            await trio.sleep(1)
            query = Query(namespace.client, [], stream="n/a")
            async with query.running():
                await query.drain()
                # As by a client that dies before it has fenced the ledger.
                await delete(namespace.client.store, "n", "a", namespace.client.now_ms())
                await namespace.create_stream("a")
                async with namespace.writer("a") as writer:
                    await writer.append_many([b"new"] * 5)
                    await trio.sleep(40)
                    rows = await query.step()
                    assert [row.value for row in rows or ()] == [b"new"] * 5

    run_scenario(scenario)


def test_a_restored_stream_continues_at_its_offset() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a", "b", "c") as namespace:
            for stream in ("a", "b", "c"):
                await append(namespace, stream, 3)
            query = Query(namespace.client, [], streamPattern="n/*")
            async with query.running():
                await query.drain()
                await namespace.delete_stream("a")
                await namespace.delete_stream("c")
                await trio.sleep(1)
                await append(namespace, "b", 3)
                await trio.sleep(1)
                await query.drain()
                await namespace.undelete_stream("a")
                await append(namespace, "a", 2)
                await trio.sleep(1)
                await query.drain()
                assert query.position["n/a"].gone_ms == 0
                assert by_stream(query.seen).items() >= (await all_of(namespace, "a", "b")).items()
                # After another deletion it is checked again.
                await namespace.delete_stream("a")
                await trio.sleep(1)
                assert await query.step() is None
                await namespace.undelete_stream("a")
                await trio.sleep(1)
                assert await query.step() is None
                await append(namespace, "a", 2)
                await namespace.delete_stream("a")
                await trio.sleep(1)
                with pytest.raises(DataLoss, match="sequences 5 to 6"):
                    await query.step()
            # A purged stream that was read to its end is no loss, and leaves the offsets.
            await namespace.undelete_stream("a")
            await trio.sleep(100)
            await Janitor(namespace.client, "n", orphan_age_ms=0).sweep()
            again = Query(namespace.client, query.log, streamPattern="n/*")
            async with again.running():
                assert len(await again.step() or ()) == 2
                assert list(again.position) == ["n/a", "n/b"]

    run_scenario(scenario)


def test_a_purged_stream_is_data_loss_of_unknown_size() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a", "b") as namespace:
            await append(namespace, "a", 5)
            query = Query(namespace.client, [], streamPattern="n/*", fail_on_data_loss=False)
            async with query.running():
                await query.step(Limits(records_max=2))
                await namespace.delete_stream("a")
                await trio.sleep(100)
                await Janitor(namespace.client, "n", orphan_age_ms=0).sweep()
                await append(namespace, "b", 1)
                await trio.sleep(1)
                await query.drain()
                assert list(query.position) == ["n/b"]

    run_scenario(scenario)


# Truncation


def test_truncated_records_are_an_error_that_names_range_and_rule() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace:
            for _ in range(3):
                await append(namespace, "a", 10)
            query = Query(namespace.client, [], stream="n/a")
            async with query.running():
                await query.step(Limits(records_max=4))
                await namespace.set_policy(retention_ms=1000)
                await trio.sleep(5)
                await append(namespace, "a", 2)
                await Janitor(namespace.client, "n").sweep()
                await trio.sleep(1)
                with pytest.raises(DataLoss) as caught:
                    await query.step()
            text = str(caught.value)
            assert "stream 'n/a': the records with sequences 4 to 29 (26 records)" in text
            assert "retention_ms of 1 s of namespace 'n'" in text
            assert "untruncate n/a" in text
            # After an operator has restored the records, the query continues.
            await namespace.set_policy(retention_ms=None)
            await namespace.untruncate("a")
            again = Query(namespace.client, query.log, stream="n/a")
            async with again.running():
                await again.drain()
            assert by_stream(query.seen + again.seen) == await all_of(namespace, "a")

    run_scenario(scenario)


def test_a_query_that_may_lose_records_continues_at_the_first_one_and_counts() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace:
            for _ in range(3):
                await append(namespace, "a", 10)
            everything = await read_all(namespace, "a")
            query = Query(namespace.client, [], stream="n/a", fail_on_data_loss=False)
            async with query.running():
                await query.step(Limits(records_max=4))
                await namespace.truncate("a", everything[17].position)
                await trio.sleep(1)
                await query.drain(Limits(records_max=5))
            read = [row.sequence for batch in query.seen for row in batch]
            assert read == [*range(4), *range(17, 30)]
            assert query.losses.records == 13

    run_scenario(scenario)


def test_a_planned_micro_batch_that_was_truncated_is_data_loss_when_it_is_repeated() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace:
            await append(namespace, "a", 20)
            everything = await read_all(namespace, "a")
            log: list[str] = []
            query = Query(namespace.client, log, stream="n/a")
            async with query.running():
                await query.step(Limits(records_max=10))
            await namespace.truncate("a", everything[6].position)
            strict = Query(namespace.client, log, stream="n/a")
            async with strict.running():
                with pytest.raises(DataLoss, match="sequences 0 to 5"):
                    await strict.again()
            lenient = Query(namespace.client, log, stream="n/a", fail_on_data_loss=False)
            async with lenient.running():
                assert [row.sequence for row in await lenient.again()] == [6, 7, 8, 9]
                assert lenient.losses.records == 6
                await lenient.drain()
            assert [row.sequence for row in lenient.seen[0]] == list(range(10, 20))

    run_scenario(scenario)


# Failures


def test_a_query_survives_an_unavailable_store() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a", "b") as namespace:
            for stream in ("a", "b"):
                await append(namespace, stream, 30)
            async with cluster.client("query") as client:
                query = Query(client, [], executor=namespace.client, streamPattern="n/*")
                async with query.running():
                    await query.step(Limits(records_max=11))
                    cluster.metadata.cut_off("query")
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(query.drain, Limits(records_max=7))
                        await trio.sleep(20)
                        cluster.metadata.heal()
                    await append(namespace, "b", 5)
                    await trio.sleep(5)
                    await query.drain()
            assert by_stream(query.seen) == await all_of(namespace, "a", "b")

    run_scenario(scenario)


# Everything at once


def test_records_that_retention_removed_before_a_repeat_are_data_loss() -> None:
    # Spark requests the initial offset again, and the earliest record has changed by then.
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace:
            for _ in range(3):
                await append(namespace, "a", 10)
            everything = await read_all(namespace, "a")
            log: list[str] = []
            query = Query(namespace.client, log, stream="n/a")
            async with query.running():
                await query.step(Limits(records_max=25))
            await namespace.truncate("a", everything[20].position)
            strict = Query(namespace.client, log, stream="n/a")
            async with strict.running():
                with pytest.raises(DataLoss, match="sequences 0 to 19"):
                    await strict.again()
            lenient = Query(namespace.client, log, stream="n/a", fail_on_data_loss=False)
            async with lenient.running():
                assert [row.sequence for row in await lenient.again()] == list(range(20, 25))
                assert lenient.losses.records == 20
            await append(namespace, "a", 10)
            await namespace.truncate("a", (await read_all(namespace, "a"))[10].position)
            gone = Query(namespace.client, log, stream="n/a", fail_on_data_loss=False)
            async with gone.running():
                assert await gone.again() == []
                await gone.drain()
            assert [row.sequence for row in gone.seen[0]] == list(range(30, 40))
            assert gone.losses.records == 30

    run_scenario(scenario)


def test_a_purged_segment_does_not_count_for_the_limit_of_bytes() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace:
            await append(namespace, "a", 500)
            query = Query(namespace.client, [], stream="n/a")
            async with query.running():
                await query.drain()
                await append(namespace, "a", 500)
                await trio.sleep(1)
                await namespace.truncate("a", Position(2, 0, 0))
                await trio.sleep(100)
                await Janitor(namespace.client, "n", orphan_age_ms=0).sweep()
                await trio.sleep(1)
                known = query.batches.tracker.streams["n/a"].metadata
                assert [each.number for each in known.segments] == [2]
                assert await query.step(Limits(bytes_max=1000)) is not None
                ranges = await query.batches.ranges(await query.start_of_last(), query.position)
                assert 500 < sum(each.nbytes for each in ranges) <= 1000
                await query.drain(Limits(bytes_max=1000))
            assert len([row for batch in query.seen for row in batch]) == 1000

    run_scenario(scenario)
