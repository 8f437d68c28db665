"""When segments are merged: beside sweeps, bounded, by one client, whatever fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import trio

from bookie.testing import SimCluster, simulate
from ledger.errors import OperationTimeout, Unauthorized
from stream.core import segment_merging as core
from stream.core.metadata.streams import StreamMetadata
from stream.core.position import Position
from stream.retention import segment_merger
from stream.retention.janitor import Janitor
from stream.retention.segment_merger import MergeReport, claim_path
from stream.retention.segment_merging import (
    merge_segments,
)
from stream.sinks.sinks import commit_batch
from tests.sim.page_limits import page_limits, small_merges
from tests.stream.retention.long_stream import SEGMENTS, Long, a_long_stream
from tests.stream.sim_namespace import sim_namespace
from tests.stream.sinks.sink_ledgers import write_ledger
from tests.stream.whole_streams import read_all


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with page_limits(), small_merges():
        yield


def test_a_janitor_merges_and_deletes_what_was_replaced_later() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            janitor = Janitor(long.client, "n", replaced_ms=60_000, orphan_age_ms=30_000)
            merged = await swept_and_merged(janitor)
            assert merged.segments > SEGMENTS // 2
            assert merged.ledgers > SEGMENTS // 2
            assert merged.failures == 0
            assert await janitor.merge() == MergeReport(), "no sweep has found more"
            await trio.sleep(50)
            report = await janitor.sweep()
            assert (report.ledgers_deleted, report.orphans_deleted) == (0, 0)
            await trio.sleep(11)
            assert (await Janitor(long.client, "n").sweep()).ledgers_deleted == 0, "by default"
            report = await janitor.sweep()
            assert report.ledgers_deleted > SEGMENTS // 2
            assert report.orphans_deleted == 0
            info = await long.namespace.info("s")
            assert len(await long.client.list_ledgers()) == info.ledgers
            assert await read_all(long.namespace, "s") == long.records
            off = Janitor(long.client, "n", merge_bytes_per_s=0)
            await long.grow()
            assert await swept_and_merged(off) == MergeReport()

    simulate(scenario)


def test_one_client_at_a_time_merges_in_a_namespace() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long, cluster.client("other") as other:
            await other.store.create(claim_path("n"), b"other", is_ephemeral=True)
            assert await swept_and_merged(Janitor(long.client, "n")) == MergeReport()
            await other.store.delete(claim_path("n"))
            assert (await swept_and_merged(Janitor(long.client, "n"))).segments > 0

    simulate(scenario)


def test_a_ledger_that_cannot_be_read_does_not_keep_others_from_being_merged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segment_merger, "_PAUSE_MS", 10_000)

    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            lost = (await long.segments())[3]
            await long.client.delete_ledger(lost.ledger_id)
            janitor = Janitor(long.client, "n")
            reports = [await swept_and_merged(janitor)]
            assert reports[0].failures == 1
            assert await swept_and_merged(janitor) == MergeReport(), "it is left alone for a while"
            for _ in range(8):
                await trio.sleep(11)
                reports.append(await swept_and_merged(janitor))
            assert sum(report.failures for report in reports) == 1
            in_pages = (await long.segments())[: -len((await long.metadata()).segments)]
            assert len({one.ledger_id for one in in_pages}) <= 4
            assert [one for one in in_pages if not one.is_merged] == [lost]
            assert (await janitor.sweep()).orphans_deleted == 0

    simulate(scenario)


def test_a_janitor_that_may_not_merge_does_everything_else_as_before(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refused(*_: object, **__: object) -> StreamMetadata:
        raise Unauthorized("the user needs the role write")

    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            monkeypatch.setattr(segment_merger, "merge_segments", refused)
            monkeypatch.setattr(segment_merger, "_AVOIDED_MS", 700_000)
            janitor = Janitor(long.client, "n")
            assert await swept_and_merged(janitor) == MergeReport()
            assert await swept_and_merged(janitor) == MergeReport()
            monkeypatch.undo()
            await trio.sleep(701)
            assert (await swept_and_merged(janitor)).segments > 0

    simulate(scenario)
    said = [one for one in caplog.records if "role write" in one.message]
    assert [one.levelname for one in said] == ["WARNING"], "not with each sweep"


def test_a_sweep_does_not_wait_for_a_merge() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long, trio.open_nursery() as nursery:
            await long.namespace.set_policy(trash_ms=1000)
            before = len(await long.client.list_ledgers())
            nursery.start_soon(Janitor(long.client, "n", merge_bytes_per_s=20).run, 10.0)
            await until_merging(long, before)
            for _ in range(3):
                first = (await long.namespace.info("s")).first_position.segment
                await long.namespace.truncate("s", Position(first + 1, 0, 0))
                await trio.sleep(12)
                segments = await long.segments()
                assert segments[0].number == first + 1
                assert not any(one.is_merged for one in segments), "it is in progress"
            for _ in range(60):
                await trio.sleep(30)
                if any(one.is_merged for one in await long.segments()):
                    nursery.cancel_scope.cancel()
                    return
            pytest.fail("nothing is merged")

    simulate(scenario)


def test_what_is_asked_of_a_janitor_once_is_bounded_in_time() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            janitor = Janitor(long.client, "n", merge_bytes_per_s=100)
            await janitor.sweep()
            assert await janitor.merge(limit_s=0) == MergeReport()
            await janitor.sweep()
            begun_s = trio.current_time()
            await janitor.merge(limit_s=5)
            assert trio.current_time() - begun_s < 60

    simulate(scenario)


def test_nothing_is_asked_while_no_stream_has_something_to_merge() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            janitor = Janitor(long.client, "n")
            calls = list[str]()
            await janitor.sweep()
            cluster.metadata.on_call = lambda _node, kind, path: calls.append(f"{kind} {path}")
            assert await janitor.merge(limit_s=0) == MergeReport()
            assert calls == [], "it has no time"
            while (await swept_and_merged(janitor)).segments:
                pass
            await janitor.sweep()
            calls.clear()
            assert await janitor.merge() == MergeReport()
            assert calls == []

    simulate(scenario)


def test_a_merge_ends_before_another_janitor_takes_its_ledger_for_an_orphan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All together would take twice that time."""
    monkeypatch.setattr(core, "LEDGERS_MAX", 1000)
    monkeypatch.setattr(core, "SEGMENTS_MAX", 1000)

    async def scenario(cluster: SimCluster) -> None:
        async with sim_namespace(cluster) as namespace, cluster.client("other") as other:
            await namespace.create_stream("s")
            ledgers = [await write_ledger(namespace.client, "s", [[b"%d" % n]]) for n in range(120)]
            for begin in range(0, len(ledgers), 20):
                await commit_batch(namespace.client, ledgers[begin : begin + 20])
            nbytes = (await namespace.info("s")).sealed_bytes
            monkeypatch.setattr(segment_merger, "_NBYTES_MIN", 1)
            slow = Janitor(
                namespace.client, "n", merge_bytes_per_s=nbytes / 120, orphan_age_ms=60_000
            )
            second = Janitor(other, "n", merge_bytes_per_s=0, orphan_age_ms=60_000)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(slow.run, 10.0)
                for _ in range(9):
                    await trio.sleep(10)
                    assert (await second.sweep()).orphans_deleted == 0
                nursery.cancel_scope.cancel()
            assert (await namespace.info("s")).ledgers < 100

    simulate(scenario)


def test_a_merge_that_takes_too_long_is_given_up_and_tried_with_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            plan, policy = await long.plan(), await long.namespace.policy()
            assert plan is not None
            before, stream = await long.client.list_ledgers(), await long.metadata()
            with pytest.raises(OperationTimeout, match="were not copied in"):
                await merge_segments(
                    long.client, policy, stream, plan, bytes_per_s=plan.nbytes / 100, copy_s=10
                )
            assert await long.client.list_ledgers() == before
            merger = segment_merger.SegmentMerger(long.client, "n", 1e6, copy_s=1.0)
            merger._bytes_per_s = plan.nbytes / 100
            monkeypatch.setattr(merger, "_bounded", lambda _: merger._nbytes_most)
            merger.note(policy, [stream])
            assert (await merger.merge()).failures == 1
            assert merger._nbytes_max == segment_merger._NBYTES_MIN < merger._nbytes_most
            merger._bytes_per_s = 1e9
            await trio.sleep(601)
            merger.note(policy, [stream])
            assert (await merger.merge()).segments > 0

    simulate(scenario)


def test_segments_that_are_purged_while_they_are_copied_are_no_failure() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            await long.namespace.set_policy(trash_ms=0)
            janitor = Janitor(long.client, "n", merge_bytes_per_s=20)
            async with merging(long, janitor) as reports:
                made = max(await long.client.list_ledgers())
                first = (await long.segments())[0]
                await long.namespace.truncate("s", Position(first.number + 4, 0, 0))
                await trio.sleep(60)  # bookies have forgotten the ledgers
            assert reports == [MergeReport()]
            assert made not in await long.client.list_ledgers()

    simulate(scenario)


def test_a_claim_of_another_client_is_not_taken_away() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long, cluster.client("other") as other:
            janitor, path = Janitor(long.client, "n", merge_bytes_per_s=50), claim_path("n")
            async with merging(long, janitor):
                await other.store.delete(path)  # as if its session was lost
                await other.store.create(path, b"other", is_ephemeral=True)
            assert (await other.store.get(path)).data == b"other"

    simulate(scenario)


async def swept_and_merged(janitor: Janitor) -> MergeReport:
    """Sweeps without a failure, and then merges."""
    assert (await janitor.sweep()).failures == 0
    return await janitor.merge()


async def until_merging(long: Long, before: int) -> None:
    """Returns once a merge copies: before it, there were this many ledgers."""
    for _ in range(1000):
        if len(await long.client.list_ledgers()) > before:
            return
        await trio.sleep(0.5)
    pytest.fail("nothing is merged")


@asynccontextmanager
async def merging(long: Long, janitor: Janitor) -> AsyncIterator[list[MergeReport]]:
    """Enters once a merge copies, and leaves when it has ended; the report is in the list then."""
    reports = list[MergeReport]()

    async def merge() -> None:
        reports.append(await janitor.merge())

    assert (await janitor.sweep()).failures == 0
    before = len(await long.client.list_ledgers())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(merge)
        await until_merging(long, before)
        yield reports
