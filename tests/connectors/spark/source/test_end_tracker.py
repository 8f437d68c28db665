"""The questions of the tracker of the ends while nothing happens."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from bookie.testing import SimCluster
from bookie.testing.metastore import SimMetadataStore
from connectors.spark.core.idle_polling import ANSWER_KEPT_S
from connectors.spark.source.end_tracker import EndTracker
from ledger.client import LedgerClient
from ledger.reading.reader import LedgerReader
from stream.store.streams import stream_path
from tests.connectors.spark.source.sample_namespaces import append, run_scenario, sample_namespace
from tests.connectors.spark.source.simulated_query import Query


def node_of(client: LedgerClient) -> str:
    assert isinstance(client.store, SimMetadataStore)
    return client.store.node


async def questions(cluster: SimCluster, query: Query) -> list[tuple[str, str]]:
    """Polls the ends of the streams; returns the calls of the metadata store."""
    asked: list[tuple[str, str]] = []
    own = node_of(query.client)

    def note(node: str, kind: str, path: str) -> None:
        if node == own:
            asked.append((kind, path))

    cluster.metadata.on_call = note
    await query.batches.tracker.poll_ends()
    cluster.metadata.on_call = None
    return asked


def test_an_idle_query_asks_again_as_soon_as_it_may_have_missed_something() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace, cluster.client() as client:
            query = Query(client, [], stream="n/a")
            async with namespace.writer("a") as writer, query.running():
                await writer.append(b"x")
                await trio.sleep(1)
                await query.drain()
                await trio.sleep(1)
                assert await questions(cluster, query) != []
                assert await questions(cluster, query) == []
                # A change of the metadata, whatever it is.
                await namespace.create_stream("b")
                assert set(await questions(cluster, query)) == {("get", stream_path("n", "a"))}
                assert await questions(cluster, query) == []
                # After a while the bookies are asked, too.
                await trio.sleep(ANSWER_KEPT_S)
                assert len(await questions(cluster, query)) > 2
                assert await questions(cluster, query) == []
                # A store that does not answer leaves doubt.
                cluster.metadata.cut_off(node_of(client))
                await questions(cluster, query)
                cluster.metadata.heal()
                assert len(await questions(cluster, query)) > 2

    run_scenario(scenario)


def test_what_is_sealed_is_found_without_a_notification() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace, cluster.client() as client:
            query = Query(client, [], stream="n/a")
            async with query.running():
                for count in range(1, 20):
                    await append(namespace, "a", count)
                    await query.batches.tracker.poll_ends()
                    assert len(await query.step() or ()) == count
                    await query.batches.tracker.poll_ends()
                    assert await query.step() is None

    run_scenario(scenario)


def test_a_bookie_that_hangs_with_the_long_poll_hides_records_for_a_bounded_time() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace, cluster.client() as client:
            query = Query(client, [], stream="n/a")
            async with namespace.writer("a") as writer, query.running():
                await writer.append(b"x")
                await trio.sleep(1)
                await query.drain()
                await query.batches.tracker.poll_ends()
                cluster.network.partition([node_of(client)], cluster.bookies[:1])
                await writer.append(b"y")
                found = None
                with trio.fail_after(2 * ANSWER_KEPT_S):
                    while found is None:
                        await query.batches.tracker.poll_ends()
                        found = await query.step()
                        await trio.sleep(0.25)
                assert [row.value for row in found] == [b"y"]

    run_scenario(scenario)


def test_bookies_are_asked_for_a_segment_that_metadata_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its first records may be confirmed before the watch has reported it."""

    async def watch_nothing(tracker: EndTracker, name: str) -> None:
        tracker._listening.hears("metadata", name)
        await trio.sleep_forever()

    monkeypatch.setattr(EndTracker, "_watch_metadata", watch_nothing)

    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace, cluster.client() as client:
            await append(namespace, "a", 1)
            query = Query(client, [], stream="n/a")
            async with query.running():
                await query.drain()
                await trio.sleep(1)
                assert await questions(cluster, query) != []
                assert await questions(cluster, query) == []
                async with namespace.writer("a") as writer:
                    await writer.append(b"x")
                    await trio.sleep(1)
                    await query.batches.tracker.poll_ends()
                    rows = await query.step()
                    assert rows is not None
                    assert [row.value for row in rows] == [b"x"]

    run_scenario(scenario)


def test_no_answer_is_kept_while_a_new_segment_is_not_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its task still waits for the segment before it, whose end it has not heard of."""
    waits: list[trio.Event] = []

    async def wait(_reader: LedgerReader, known: int, _timeout_s: float) -> int:
        waits.append(trio.Event())
        await waits[-1].wait()
        return known

    monkeypatch.setattr(LedgerReader, "wait_lac_after", wait)

    async def scenario(cluster: SimCluster) -> None:
        async with sample_namespace(cluster, "a") as namespace, cluster.client() as client:
            query = Query(client, [], stream="n/a")
            async with query.running():
                async with namespace.writer("a") as writer:
                    await writer.append(b"x")
                    await trio.sleep(1)
                    await query.batches.tracker.poll_ends()
                    await query.drain()
                    assert await questions(cluster, query) != []
                    assert await questions(cluster, query) == []
                async with namespace.writer("a") as writer:
                    await writer.append(b"y")
                    await trio.sleep(1)
                    assert len(waits) == 1
                    waits.pop().set()
                    await trio.sleep(0.01)  # its tasks block
                    for _ in range(3):
                        assert await questions(cluster, query) != []

    run_scenario(scenario)
