"""What works without a page that is missing: retention, and restoring what is behind it."""

from __future__ import annotations

import pytest

from ledger.metastore.backup import decode_backup, export_lines
from ledger.metastore.bookies import BookieRegistry
from stream import Position
from stream.retention.janitor import Janitor
from stream.retention.ledger_deletion import purge_through
from stream.store.pages import PageLost
from stream.store.streams import stream_path
from tests.stream.store.paged_cluster import HOUR_MS, PagedCluster, paged_cluster


async def lost_in_the_trash(cluster: PagedCluster, *, is_purged: bool) -> None:
    """Loses the first page of stream "s", which was truncated at two times, or purged in part."""
    namespace = cluster.namespace
    await namespace.create_stream("s")
    stream = await cluster.grow("s", 300)
    await namespace.truncate("s", Position(10, 0, 0))
    cluster.wait(1000)
    if is_purged:
        await purge_through(cluster.client, namespace.store, "n", stream, 9)
    stream = await namespace.truncate("s", Position(40, 0, 0))
    await cluster.lose(stream, stream.pages.roots[0])


@pytest.mark.parametrize("is_purged", [False, True])
async def test_a_lost_page_in_the_trash_does_not_stop_retention(is_purged: bool) -> None:
    async with paged_cluster() as cluster:
        namespace = cluster.namespace
        await lost_in_the_trash(cluster, is_purged=is_purged)
        await namespace.create_stream("other")
        (orphan,) = await cluster.client.make_ledgers("n", "other", 1)
        with pytest.raises(PageLost, match="truncate the stream to 65:0:0") as lost:
            await namespace.explain_retention("s")
        assert lost.value.run.last_number == 64
        await namespace.truncate("s", Position(65, 0, 0))  # as the error says
        plan = await namespace.explain_retention("s")
        assert (plan.begin, plan.purge_through) == (Position(65, 0, 0), 0)
        (entry,) = await namespace.trash()
        assert entry.first_position == Position(65, 0, 0), "what is lost cannot be restored"
        await namespace.set_policy(allow_drop=False, retention_bytes=1 << 40)
        assert (await namespace.info("s")).first_position == Position(65, 0, 0)

        cluster.wait(HOUR_MS - 1)
        janitor = Janitor(cluster.client, "n", orphan_age_ms=HOUR_MS)
        report = await janitor.sweep()
        stream = await namespace.stream_metadata("s")
        assert (report.failures, stream.pages.first) == (0, 10 if is_purged else 0)
        cluster.wait(1)
        report = await janitor.sweep()
        stream = await namespace.stream_metadata("s")
        assert (report.failures, stream.pages.first, stream.garbage) == (0, 65, ())
        assert orphan not in await cluster.client.list_ledgers()


async def test_what_is_behind_a_lost_page_can_be_restored() -> None:
    async with paged_cluster() as cluster:
        await lost_in_the_trash(cluster, is_purged=True)
        namespace = cluster.namespace
        await namespace.truncate("s", Position(100, 0, 0))
        stream = await namespace.untruncate("s")
        assert stream.truncated_to == Position(65, 0, 0)
        assert [one.number for one in await namespace.segments("s", since=65, limit=2)] == [65, 66]


async def test_a_page_that_is_purged_during_a_backup_does_not_harm_what_is_restored() -> None:
    """The document was read before, and names the page."""
    async with paged_cluster() as cluster, paged_cluster() as restored:
        namespace = cluster.namespace
        await BookieRegistry(cluster.store).init_cluster(cluster.client.rng)
        await namespace.create_stream("s")
        await cluster.grow("s", 300)
        await namespace.truncate("s", Position(70, 0, 0))
        lines = []
        async for line in export_lines(cluster.store, "/ledgers"):
            lines.append(line)
            if stream_path("n", "s") in line:
                await namespace.truncate("s", Position(150, 0, 0))
                await namespace.purge("s")
        backup = decode_backup(lines)
        assert sum("/pages/" in path for path, _ in backup.nodes) > 0
        for path, data in backup.nodes:
            if path.startswith(stream_path("n", "s")) or "/pages/" in path:
                await restored.store.create(path, data)
        with pytest.raises(PageLost, match="65 to 128"):
            await restored.namespace.explain_retention("s")
        assert (await restored.namespace.segments("s", since=150))[0].number == 150
        restored.wait(1000)
        await restored.namespace.truncate("s", Position(129, 0, 0))
        restored.wait(HOUR_MS)
        report = await Janitor(restored.client, "n").sweep()
        stream = await restored.namespace.stream_metadata("s")
        assert (report.failures, stream.pages.first) == (0, 129)
