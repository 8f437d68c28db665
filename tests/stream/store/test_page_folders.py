"""Where pages are, what is removed there, and how many segments are listed from them."""

from __future__ import annotations

import pytest

from ledger.errors import InvalidArgument, MetadataConflict
from ledger.metastore.base import Check
from stream.core.metadata.page_format import paged
from stream.core.metadata.pages import page_name
from stream.retention.janitor import Janitor
from stream.retention.trash import TOMBSTONE_MS
from stream.store.pages import pages_path
from stream.store.streams import stream_path
from tests.sim.page_limits import page_limits
from tests.stream.store.paged_cluster import HOUR_MS, nodes_below, paged_cluster

PAGES = "/ledgerstream/namespaces/n/pages"


async def test_a_stream_never_uses_the_pages_of_another_of_its_name_and_time() -> None:
    async with paged_cluster() as cluster:
        namespace = cluster.namespace
        for stream in ("a", "b"):
            await namespace.create_stream(stream)  # in one millisecond
        await cluster.grow("a", 100)
        await cluster.grow("b", 200)
        await namespace.delete_stream("b")
        cluster.wait(1000)
        await namespace.delete_stream("a")
        await namespace.undelete_stream("a", as_name="b")
        await cluster.grow("b", 100)
        cluster.wait(HOUR_MS - 1000)
        report = await Janitor(cluster.client, "n").sweep()
        assert (report.failures, report.streams_purged, report.ledgers_deleted) == (0, 1, 200)
        cluster.forget_pages()
        assert len(await namespace.segments("b")) == 200
        assert len(await cluster.client.list_ledgers()) == 200


async def test_pages_of_a_writer_that_died_go_with_the_stream() -> None:
    async with paged_cluster() as cluster:
        namespace, store = cluster.namespace, cluster.namespace.store
        await namespace.create_stream("s")
        stream = await cluster.grow("s", 100)
        _, version = await store.read_stream("n", "s")
        is_same = Check(stream_path("n", "s"), version)
        await store.pages.prepare("n", stream, is_same, 16, 16)  # and dies
        assert len(await nodes_below(cluster.store, PAGES)) == 5
        await namespace.delete_stream("s")
        await namespace.purge("s")
        assert await nodes_below(cluster.store, PAGES) == []
        cluster.wait(TOMBSTONE_MS)
        await Janitor(cluster.client, "n").sweep()
        assert await cluster.client.list_ledgers() == []


async def test_a_page_that_goes_while_it_is_found_again_is_a_conflict() -> None:
    """The document has changed then: a writer tries again, and does not take its ledger for one
    that was deleted."""
    async with paged_cluster() as cluster:
        namespace, store = cluster.namespace, cluster.namespace.store
        await namespace.create_stream("s")
        stream = await cluster.grow("s", 100)
        _, version = await store.read_stream("n", "s")
        folder = f"n/s~{stream.created_ms}~{stream.segments[0].ledger_id}"
        page = paged(stream, folder, 50, 16)[1][0]
        path = f"{pages_path(folder)}/{page_name(page.run)}"
        await cluster.store.create(path, page.data)

        async def purge() -> None:
            await cluster.store.delete(path)

        cluster.store.before_page = purge
        ledger = await cluster.client.ledgers.path(stream.segments[0].ledger_id)
        with page_limits(50, 16), pytest.raises(MetadataConflict, match="was purged meanwhile"):
            await store.put_stream("n", stream, version, ledger_path=ledger)


@pytest.mark.parametrize("limit", [-1, 0])
async def test_a_limit_of_segments_is_never_none(limit: int) -> None:
    async with paged_cluster() as cluster:
        await cluster.namespace.create_stream("s")
        await cluster.grow("s", 5)
        if limit == 0:
            assert await cluster.namespace.segments("s", limit=0) == []
        else:
            with pytest.raises(InvalidArgument, match="limit is -1: it must be 0 or more"):
                await cluster.namespace.segments("s", limit=limit)
