"""Janitors and the ledgers of segments in pages."""

from __future__ import annotations

from stream import Position
from stream.retention.janitor import Janitor
from tests.stream.store.paged_cluster import HOUR_MS, paged_cluster


async def test_ledgers_of_a_lost_page_are_deleted_by_a_janitor_that_has_read_it() -> None:
    async with paged_cluster() as cluster:
        namespace = cluster.namespace
        await namespace.create_stream("s")
        stream = await cluster.grow("s", 300)
        janitor = Janitor(cluster.client, "n", orphan_age_ms=HOUR_MS)
        cluster.wait(HOUR_MS)
        assert (await janitor.sweep()).orphans_deleted == 0
        await cluster.lose(stream, stream.pages.roots[0])
        await namespace.truncate("s", Position(65, 0, 0))
        assert (await janitor.sweep()).orphans_deleted == 0
        cluster.wait(HOUR_MS)
        reports = [await janitor.sweep() for _ in range(2)]
        assert sum(report.orphans_deleted for report in reports) == 64
        assert len(await cluster.client.list_ledgers()) == 300 - 64
