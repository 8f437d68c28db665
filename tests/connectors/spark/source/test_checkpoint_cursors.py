"""The cursors of the option `cursor` are where the checkpoint is, and retention waits for them."""

from __future__ import annotations

import json
import random

import pytest
import trio

from bookie.testing import SimCluster
from connectors.spark.core.admission import Limits
from connectors.spark.core.offsets import Offsets
from connectors.spark.source.checkpoint_cursors import CursorInUse
from ledger.client import LedgerClient
from ledger.errors import MetadataUnavailable, RetryableError
from stream import LATEST, Namespace, Position
from stream.core.metadata.cursors import CursorMetadata
from stream.retention.janitor import Janitor
from tests.connectors.spark.source.sample_namespaces import (
    all_of,
    append,
    run_scenario,
    sample_namespace,
)
from tests.connectors.spark.source.simulated_query import Query, ReadRecord, by_stream

TEN = Limits(records_max=10)


def query_of(client: LedgerClient, log: list[str]) -> Query:
    return Query(client, log, cursor="c", streamPattern="n/*")


def offsets(log: list[str], index: int) -> Offsets:
    return Offsets.from_json(json.loads(log[index]))


async def cursor_of(namespace: Namespace, stream: str = "a") -> CursorMetadata | None:
    found = {cursor.name: cursor for cursor in await namespace.cursors(stream)}
    return found.get("c")


async def at(namespace: Namespace, stream: str = "a") -> Position | None:
    cursor = await cursor_of(namespace, stream)
    return None if cursor is None else cursor.position


def test_a_cursor_follows_the_committed_micro_batches() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a", "b") as namespace:
            await append(namespace, "a", 30)
            query = query_of(namespace.client, [])
            async with query.running():
                assert await at(namespace) is None
                start = query.position
                ends = [start["n/a"].position]
                while await query.step(TEN) is not None:
                    assert await at(namespace) == ends[-1], "this micro-batch is not committed"
                    ends.append(query.position["n/a"].position)
                assert len(ends) == 4
                # A stream and a partition that join get theirs, each of its own.
                await namespace.create_stream("p", partitions=2)
                await append(namespace, "p#1", 3)
                await trio.sleep(2)
                await query.drain()
                await append(namespace, "a", 1)
                await trio.sleep(2)
                await query.drain()
                assert await at(namespace) == ends[-1]
                assert await at(namespace, "p#1") == query.position["n/p#1"].position
                # They have no records yet, so that nothing is read of them.
                assert await at(namespace, "b") == start["n/b"].position
                assert await at(namespace, "p#0") is None
            # A restart finds what is committed by then.
            again = query_of(namespace.client, query.log)
            async with again.running():
                assert await again.step() is None
                assert await at(namespace) == query.position["n/a"].position

    run_scenario(scenario)


def test_a_cursor_goes_back_only_with_the_checkpoint() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace:
            await append(namespace, "a", 40)
            query = query_of(namespace.client, [])
            async with query.running():
                await query.drain(TEN)
            third = await at(namespace)
            older = query.log[:2]
            again = query_of(namespace.client, older)
            async with again.running():
                assert await again.step(TEN) is not None
                second = await at(namespace)
                assert second is not None
                assert third is not None
                assert second < third
                await again.drain(TEN)
            assert await at(namespace) == third
            # The last micro-batch is not committed: it is read again, from where it began.
            uncommitted = query_of(namespace.client, query.log)
            async with uncommitted.running():
                end = uncommitted.position
                assert await uncommitted.batches.ranges(end, end) == []
                assert await at(namespace) == third
                await uncommitted.again()
                assert await at(namespace) == third

    run_scenario(scenario)


def test_retention_waits_for_a_query_that_is_stopped() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace, cluster.client() as other:
            await namespace.set_policy(retention_ms=1, trash_ms=0, retention_cursors=("c",))
            log: list[str] = []
            seen: list[list[ReadRecord]] = []
            for round_ in range(4):
                for _ in range(3):
                    await append(namespace, "a", 10, f"r{round_}")
                await trio.sleep(3600)
                await Janitor(other, "n").sweep()
                query = query_of(namespace.client, log)
                async with query.running():
                    for _ in range(4):
                        await query.step(Limits(records_max=12))
                        await Janitor(other, "n").sweep()
                seen += query.seen
            query = query_of(namespace.client, log)
            async with query.running():
                await query.drain()
            (rows,) = by_stream(seen + query.seen).values()
            assert [sequence for sequence, _ in rows] == list(range(120))
            first = (await namespace.stream_metadata("a")).first_available
            assert first > Position(3, 0, 0), "what was read is dropped"

    run_scenario(scenario)


def test_a_first_micro_batch_that_is_read_again_holds_back_what_it_reads() -> None:
    """Spark asks for the initial offset again: by then the latest record is another one."""

    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace, cluster.client() as other:
            await namespace.set_policy(retention_ms=1, trash_ms=0, retention_cursors=("c",))

            def query_of_latest() -> Query:
                client = namespace.client
                return Query(client, log, cursor="c", stream="n/a", startingPosition="latest")

            log: list[str] = []
            await append(namespace, "a", 10)
            query = query_of_latest()
            async with query.running():
                await append(namespace, "a", 20)
                await trio.sleep(2)
                assert await query.step(TEN) is not None
            await append(namespace, "a", 20)
            again = query_of_latest()
            async with again.running():
                begun, planned = await again.start_of_last(), again.position
                assert begun["n/a"].sequence == 50
                assert len(await again.batches.ranges(begun, planned)) == 1
                position = await at(namespace)
                assert position is not None
                assert position < planned["n/a"].position
                await trio.sleep(3600)
                await Janitor(other, "n").sweep()
                rows = await again.again()
                assert [row.sequence for row in rows] == list(range(10, 20))
                await again.step(TEN)
                assert await at(namespace) == planned["n/a"].position

    run_scenario(scenario)


async def begin(query: Query) -> None:
    async with query.running():
        await query.step(TEN)


async def refusal(query: Query) -> str:
    async with query.running():
        with pytest.raises(CursorInUse) as caught:
            await query.step(TEN)
    assert query.log == []
    return str(caught.value)


def test_a_cursor_of_another_user_is_refused_before_anything_is_read() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace:
            await append(namespace, "a", 40)
            client = namespace.client
            query = query_of(client, [])
            async with query.running():
                await query.drain(TEN)
            held = await cursor_of(namespace)
            error = await refusal(query_of(client, []))
            assert "'n/a' is used by a query or program" in error
            assert "Cure: " in error
            assert "`ledgerstream cursor delete n/a c`" in error
            assert await cursor_of(namespace) == held
            await namespace.delete_cursor("a", "c")
            await begin(query_of(client, []))
            await namespace.delete_cursor("a", "c")
            async with namespace.cursor("a", "c") as cursor:
                cursor.advance(Position(1, 0, 1))
            assert "a query or program" in await refusal(query_of(client, []))
            await namespace.delete_cursor("a", "c")
            async with namespace.consumer("a", "c"):
                await trio.sleep(2)
                assert "a consumer group" in await refusal(query_of(client, []))
            assert "a consumer group" in await refusal(query_of(client, []))

    run_scenario(scenario)


def test_of_two_new_queries_with_one_cursor_one_continues() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace, cluster.client() as client:
            await append(namespace, "a", 60)
            one, other = query_of(namespace.client, []), query_of(client, [])
            async with one.running(), other.running():
                for query in (one, other):
                    await query.step(TEN)
                await one.step(TEN)
                with pytest.raises(CursorInUse):
                    await other.step(TEN)
                await one.step(TEN)
                assert await at(namespace) == offsets(one.log, -2)["n/a"].position

    run_scenario(scenario)


def test_a_cursor_that_was_moved_or_deleted_by_hand_follows_the_checkpoint_again() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace:
            await append(namespace, "a", 80)
            query = query_of(namespace.client, [])
            async with query.running():
                for _ in range(3):
                    await query.step(TEN)
                await namespace.set_cursor("a", "c", Position(1, 0, 0))
                before = query.position["n/a"].position
                await query.step(TEN)
                assert await at(namespace) == before
                await namespace.set_cursor("a", "c", LATEST)  # beyond the checkpoint
                before = query.position["n/a"].position
                await query.step(TEN)
                assert await at(namespace) == before
                await namespace.delete_cursor("a", "c")
                before = query.position["n/a"].position
                await query.step(TEN)
                assert await at(namespace) == before

    run_scenario(scenario)


def test_a_query_with_a_checkpoint_may_get_the_option_later() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace:
            await append(namespace, "a", 60)
            log: list[str] = []
            plain = Query(namespace.client, log, stream="n/a")
            async with plain.running():
                await plain.step(TEN)
                await plain.step(TEN)
            assert "cursor_owner" not in log[-1]
            query = query_of(namespace.client, log)
            async with query.running():
                ends = [query.position["n/a"].position]
                for _ in range(3):
                    await query.step(TEN)
                    ends.append(query.position["n/a"].position)
                assert await at(namespace) == ends[-2]
            # Without the option the cursors stay, and still belong to the query.
            rest = Query(namespace.client, log, stream="n/a")
            async with rest.running():
                await rest.step(TEN)
            again = query_of(namespace.client, log)
            async with again.running():
                await again.drain(TEN)
            assert by_stream(plain.seen + query.seen + rest.seen + again.seen) == await all_of(
                namespace, "a"
            )

    run_scenario(scenario)


@pytest.mark.parametrize("seed", range(4))
def test_a_cursor_is_never_beyond_the_checkpoint_and_retention_never_ahead_of_it(seed: int) -> None:
    """A metadata store that fails, with answers that are lost or late; queries that die."""

    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a", "b") as namespace, cluster.client() as other:
            await namespace.set_policy(retention_ms=1, trash_ms=0, retention_cursors=("c",))
            chance, log = random.Random(seed), list[str]()
            seen: list[list[ReadRecord]] = []

            async def check() -> None:
                for stream in ("a", "b"):
                    position = await at(namespace, stream)
                    if position is not None and log:
                        last = offsets(log, -1).get(f"n/{stream}")
                        assert last is not None
                        assert position <= last.position

            for _ in range(6):
                for stream in ("a", "b"):
                    await append(namespace, stream, chance.randrange(1, 40))
                options = cluster.metadata.options
                options.error_before_probability = options.error_after_probability = 0.1
                options.error_late_probability = 0.1
                query = query_of(other, log)
                committed = len(log)
                try:
                    async with query.running():
                        for _ in range(chance.randrange(1, 5)):
                            await query.step(Limits(records_max=chance.randrange(1, 30)))
                except* RetryableError:
                    pass
                options.error_before_probability = options.error_after_probability = 0.0
                options.error_late_probability = 0.0
                await trio.sleep(5)
                # What was logged and not read is read again by the next run.
                assert len(log) - committed - len(query.seen) in (0, 1)
                del log[committed + len(query.seen) :]
                seen += query.seen
                await check()
                await Janitor(namespace.client, "n").sweep()
                await check()
            last = query_of(namespace.client, log)
            async with last.running():
                await last.drain()
            for rows in by_stream(seen + last.seen).values():
                assert [sequence for sequence, _ in rows] == list(range(len(rows)))

    run_scenario(scenario, seed)


def test_a_store_that_does_not_answer_is_no_reason_to_stop() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace:
            await append(namespace, "a", 60)
            query = query_of(namespace.client, [])
            async with query.running():
                await query.step(TEN)
                await query.step(TEN)
                cluster.metadata.options.error_after_probability = 1.0
                assert query.cursors is not None
                with pytest.raises(MetadataUnavailable):
                    await query.cursors.move(query.batches.tracker, query.position)
                cluster.metadata.options.error_after_probability = 0.0
                # Its outcome was unknown; it was stored, and is found to be ours.
                await query.cursors.move(query.batches.tracker, query.position)
                assert await at(namespace) == query.position["n/a"].position
                await query.drain(TEN)

    run_scenario(scenario)
