"""Janitors and the ledgers of segments in pages."""

from __future__ import annotations

from stream import Position
from stream.retention.janitor import Janitor
from stream.retention.paged_ledgers import PagedLedgers
from stream.retention.segment_merging import drop_replaced, plan_merge, publish_merge
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


async def test_an_orphan_is_looked_for_in_no_page_of_merged_segments() -> None:
    async with paged_cluster() as cluster:
        await cluster.namespace.create_stream("s")
        await cluster.grow("s", 300)
        orphan, merged = await cluster.client.make_ledgers("n", "s", 2)
        cluster.wait(HOUR_MS)
        policy, stream = (
            await cluster.namespace.policy(),
            await cluster.namespace.stream_metadata("s"),
        )
        plan = (await plan_merge(cluster.client, policy, stream)).plan
        assert plan is not None
        stream = await publish_merge(cluster.client, "n", "s", plan, merged)
        stream, _ = await drop_replaced(cluster.client, "n", stream, 0)
        paged = PagedLedgers(cluster.namespace.store.pages)
        assert await paged.named([stream], [orphan]) == set(), "nothing was read"
        assert await paged.named([stream], [merged]) == {merged}
