"""Janitors and the ledgers of segments in pages."""

from __future__ import annotations

import json
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from stream import Position
from stream.core.metadata.page_format import rewritten
from stream.core.metadata.pages import Replaced
from stream.core.metadata.streams import StreamMetadata
from stream.retention.janitor import Janitor
from stream.retention.paged_ledgers import PagedLedgers
from stream.retention.segment_merging import drop_replaced, plan_merge, publish_merge
from stream.store.streams import stream_path
from tests.stream.store.paged_cluster import HOUR_MS, PagedCluster, paged_cluster


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


# A document or page that is wrong about ledgers.


async def _have_a_ledger_twice(cluster: PagedCluster) -> None:
    """Its first segment leaves the trash."""
    first, _, third = await cluster.namespace.store.pages.listed(await _stream(cluster), 1, 3)
    moved = {3: replace(third, ledger_id=first.ledger_id)}
    await _change(cluster, lambda s: replace(s, pages=rewritten(s.pages, moved, 1)))
    await _change(cluster, lambda s: replace(s, pages=replace(s.pages, replaced=())))
    await cluster.namespace.truncate("s", Position(2, 0, 0))


async def _replace_what_is_in_use(cluster: PagedCluster) -> None:
    one = Replaced(1, 1, 64, (await _stream(cluster)).pages.roots[0])
    await _change(cluster, lambda s: replace(s, pages=replace(s.pages, replaced=(one,))))


def _merge_in_the_document(document: dict[str, Any]) -> None:
    document["segment_columns"].append("base_entry")
    for row in document["segments"]:
        row.append(0)


def _have_no_newest(document: dict[str, Any]) -> None:
    document |= {"segments": [], "is_purged": True}


async def _rewrite(cluster: PagedCluster, change: Callable[[dict[str, Any]], None]) -> None:
    path = stream_path("n", "s")
    node = await cluster.store.get(path)
    document = json.loads(zlib.decompress(node.data))
    change(document)
    await cluster.store.put(path, zlib.compress(json.dumps(document).encode(), 1), node.version)


async def _stream(cluster: PagedCluster) -> StreamMetadata:
    return await cluster.namespace.stream_metadata("s")


async def _change(
    cluster: PagedCluster, change: Callable[[StreamMetadata], StreamMetadata]
) -> None:
    await cluster.namespace.store.update_stream("n", "s", change)


@pytest.mark.parametrize(
    "damage",
    [
        _have_a_ledger_twice,
        _replace_what_is_in_use,
        partial(_rewrite, change=_merge_in_the_document),
        partial(_rewrite, change=_have_no_newest),
    ],
)
async def test_no_ledger_is_deleted_by_a_document_that_is_wrong(
    damage: Callable[[PagedCluster], Awaitable[None]],
) -> None:
    async with paged_cluster() as cluster:
        await cluster.namespace.create_stream("s")
        await cluster.grow("s", 300)
        await damage(cluster)
        before = await cluster.client.list_ledgers()
        for _ in range(2):
            cluster.wait(2 * HOUR_MS)
            cluster.forget_pages()
            assert (await Janitor(cluster.client, "n").sweep()).failures > 0
        assert await cluster.client.list_ledgers() == before
