"""The ledgers and pages that merged segments were in before: kept for a while, and no longer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio

from bookie.testing import SimCluster, simulate
from stream.core import trash
from stream.core.metadata.pages import Pages, page_name
from stream.core.metadata.segments import Run
from stream.core.position import BEGINNING, Position
from stream.core.trash import purged
from stream.retention.janitor import Janitor
from stream.retention.paged_ledgers import PagedLedgers
from stream.store.pages import forget_pages, pages_path
from tests.sim.page_limits import page_limits, small_merges
from tests.stream.retention.long_stream import SEGMENTS, Long, a_long_stream
from tests.stream.whole_streams import read_all


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with page_limits(), small_merges():
        yield


def test_ledgers_of_merged_segments_are_no_orphans_until_they_are_dropped() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            pages = long.namespace.store.pages
            early = PagedLedgers(pages)
            before = set(await long.client.list_ledgers())
            await early.named([await long.metadata()], before)
            await long.merge()
            segments = await long.segments()
            await long.namespace.truncate("s", Position(segments[3].number, 0, 0))
            await long.namespace.purge("s")
            stream, left = await long.metadata(), set(await long.client.list_ledgers())
            assert stream.pages.replaced
            assert len(left & before) > SEGMENTS // 2, "those that were merged are kept"
            for paged in (early, PagedLedgers(pages)):
                assert left <= await paged.named([stream], left) | set(stream.ledgers())
            await long.drop()
            await long.namespace.truncate("s", Position(segments[-1].number, 0, 0))
            await long.namespace.purge("s")
            stream = await long.metadata()
            assert not before & await early.named([stream], before) - set(stream.ledgers())

    simulate(scenario)


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_what_is_purged_is_deleted_also_as_it_was_before_a_merge(
    is_interrupted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def purge_in_part(long: Long) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(trash, "PURGED_AT_ONCE", 100)
            patch.setattr(Pages, "without_purged", lambda pages, _: ([], pages))
            await long.namespace.store.update_stream(
                "n", "s", lambda known: purged(known, known.last_dropped())
            )

    monkeypatch.setattr(trash, "PURGED_AT_ONCE", 1)

    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            await long.merge()
            segments = await long.segments()
            merged = [one for one in segments if one.ledger_id == segments[0].ledger_id]
            for behind in (segments[4].number, merged[-1].number + 1):
                await long.namespace.truncate("s", Position(behind, 0, 0))
                if is_interrupted:
                    await purge_in_part(long)
                await long.namespace.purge("s")
                left = set(await long.client.list_ledgers())
                assert left & {one.made_on for one in segments} == {
                    one.made_on for one in merged if one.number >= behind
                }
                assert (merged[0].ledger_id in left) == (behind <= merged[-1].number)

    simulate(scenario)


@pytest.mark.parametrize("by", ["truncate", "sweep"])
def test_what_a_purge_left_of_a_merge_goes_also_when_all_pages_have_gone(
    by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            await long.namespace.set_policy(trash_ms=0)
            await long.merge()
            made = {one.made_on for one in await long.segments() if one.is_merged}
            assert made <= set(await long.client.list_ledgers())
            first = (await long.metadata()).segments[0].number
            with monkeypatch.context() as patch:
                patch.setattr(Pages, "without_purged", lambda pages, _: ([], pages))
                await long.namespace.truncate("s", Position(first, 0, 0))
            stream = await long.metadata()
            assert stream.pages.has_purged
            assert not stream.pages
            if by == "truncate":
                await long.namespace.truncate("s", Position(first + 1, 0, 0))
            else:
                await Janitor(long.client, "n").sweep()
            assert not (await long.metadata()).pages.has_purged
            assert not made & set(await long.client.list_ledgers())

    simulate(scenario)


def test_a_lost_page_that_was_truncated_or_replaced_stops_nothing() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            run = (await long.metadata()).pages.roots[0]
            await long.namespace.truncate("s", Position(run.number + 1, 0, 0))
            await long.namespace.purge("s")
            await lose(long, run)
            assert await long.plan() is None
            await long.namespace.truncate("s", Position(run.last_number + 1, 0, 0))
            await long.grow()
            assert await long.merge() > 0
            await lose(long, (await long.metadata()).pages.replaced[0].run)
            assert await long.drop() > 0
            assert not (await long.metadata()).pages.replaced
            await trio.sleep(10)
            await long.namespace.purge("s")
            janitor = Janitor(
                long.client, "n", orphan_age_ms=5_000, sink_orphan_age_ms=5_000, merge_bytes_per_s=0
            )
            assert (await janitor.sweep()).orphans_deleted > 0
            left = {one.ledger_id for one in await long.segments()}
            assert set(await long.client.list_ledgers()) == left
            assert await read_all(long.namespace, "s") == long.records

    simulate(scenario)


def test_what_was_replaced_goes_also_while_retention_waits_for_a_lost_page() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            await long.merge()
            before = set(await long.client.list_ledgers())
            second = (await long.segments())[1]
            await lose(long, (await long.metadata()).pages.roots[0])
            await trio.sleep(2)
            age_ms = long.client.now_ms() - second.newest_ms
            await long.namespace.set_policy(retention_ms=age_ms - 100)
            janitor = Janitor(long.client, "n", merge_bytes_per_s=0, replaced_ms=1000)
            assert (await janitor.sweep()).failures == 1
            assert not (await long.metadata()).pages.replaced
            assert len(before) - len(await long.client.list_ledgers()) > SEGMENTS // 2
            assert (await long.metadata()).truncated_to == BEGINNING

    simulate(scenario)


async def lose(long: Long, run: Run) -> None:
    folder, store = (await long.metadata()).pages.folder, long.client.store
    await store.delete(f"{pages_path(folder)}/{page_name(run)}")
    forget_pages(store)
