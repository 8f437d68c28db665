"""Merged segments on a simulated cluster: to every question, the answer stays the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import trio

from bookie.testing import SimCluster, simulate
from ledger.core.copies import CopyVerdict
from ledger.errors import (
    InvalidArgument,
    LedgerError,
    MetadataConflict,
    MetadataUnavailable,
    NoSuchLedger,
)
from ledger.lost_ledgers import look_for_lost_ledger
from ledger.metastore.base import Check
from ledger.reading.replica_fetch import ReplicaFetch
from ledger.verify import verify_ledger
from stream import (
    EARLIEST,
    FromEnd,
    FromEventTime,
    FromSequence,
    FromTime,
    Start,
)
from stream.adoption import describe_lost
from stream.core.metadata.pages import NewPage, page_name
from stream.core.metadata.segments import Run, Segment
from stream.core.metadata.streams import StreamMetadata
from stream.core.position import Position
from stream.core.segment_merging import MergePlan
from stream.reading.lag import CursorLag, measure_lag
from stream.reading.segment_feed import SegmentFeed
from stream.retention.janitor import Janitor
from stream.retention.segment_merging import (
    merge_segments,
    publish_merge,
)
from stream.sinks.sinks import commit_batch
from stream.store import streams
from stream.store.pages import PageStore, pages_path
from tests.sim.page_limits import page_limits, small_merges
from tests.stream.retention.long_stream import SEGMENTS, Long, a_long_stream
from tests.stream.sim_namespace import sim_namespace
from tests.stream.sinks.sink_ledgers import write_ledger
from tests.stream.whole_streams import read_all


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with page_limits(), small_merges():
        yield


async def answers(long: Long) -> dict[str, object]:
    """Returns what the stream answers to every kind of question."""
    namespace, stream = long.namespace, await long.metadata()
    found: dict[str, object] = {"all": await read_all(namespace, "s")}
    starts: list[Start] = [FromEnd(n) for n in range(0, 30, 7)]
    for record in long.records:
        starts += [record.position, FromSequence(record.sequence), FromTime(record.append_time_ms)]
        starts.append(FromEventTime(record.event_time_ms or 0))
    for start in starts:
        async with namespace.reader("s", start=start) as reader:
            found[str(start)] = reader.position
    async with namespace.backward_batches("s") as batches:
        found["backward"] = [r async for batch in batches for r in reversed(batch.records())]
    lags: list[CursorLag] = [
        await measure_lag(long.client, stream, record.position, 10**12) for record in long.records
    ]
    info = await namespace.info("s")
    found |= {"lags": lags, "begin": info.first_position, "end": info.end_position}
    found |= {"records": info.records, "bytes": info.sealed_bytes, "segments": info.segments}
    return found


def test_every_question_has_the_same_answer_before_and_after() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            before = await answers(long)
            assert before["all"] == long.records
            ledgers = len(await long.client.list_ledgers())
            assert await long.merge() > SEGMENTS // 2
            assert await answers(long) == before
            assert (await long.namespace.info("s")).ledgers < SEGMENTS // 2
            assert len(await long.client.list_ledgers()) > ledgers, "the old ones are kept for now"
            assert await long.drop() > SEGMENTS // 2
            assert len(await long.client.list_ledgers()) == (await long.namespace.info("s")).ledgers
            await trio.sleep(60)  # bookies collect garbage
            assert await answers(long) == before

    simulate(scenario)


def test_copies_and_receipts_are_verified_in_the_merged_ledger() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            entries = (await long.namespace.verify("s")).entries
            await long.merge()
            await long.drop()
            report = await long.namespace.verify("s")
            assert (report.verdict, report.entries) == (CopyVerdict.WHOLE, entries)
            assert len(report.segments) == (await long.namespace.info("s")).ledgers
            merged = [one for one in report.segments if one.last_segment > one.segment]
            assert merged
            for receipt in long.receipts:
                found = await long.namespace.verify("s", receipt=receipt)
                assert (found.verdict, found.entries) == (CopyVerdict.WHOLE, 1)
            first = merged[0]
            await long.client.delete_ledger(first.ledger_id)
            assert (await long.namespace.verify("s")).verdict is CopyVerdict.DAMAGE

    simulate(scenario)


def test_a_batch_that_was_merged_is_known_as_committed() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            await long.merge()
            for is_dropped in (False, True):
                if is_dropped:
                    await long.drop()
                for ledger in long.batches[:6]:
                    again = await commit_batch(long.client, [ledger])
                    assert again.is_repeat
                    assert again.streams[0].records == ledger.end.records
            assert await read_all(long.namespace, "s") == long.records

    simulate(scenario)


def test_a_reader_in_the_middle_goes_on_when_its_ledger_is_gone() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            space = long.namespace
            async with (
                space.reader("s", start=EARLIEST) as reader,
                space.backward_batches("s") as backward,
            ):
                some = [await reader.next_batch(), await reader.next_batch()]
                back = [await backward.__anext__(), await backward.__anext__()]
                await long.merge()
                await long.drop()
                await trio.sleep(60)
                found = [r for batch in some for r in batch.records()]
                found += [r async for batch in reader.read_to_end() for r in batch.records()]
                assert found == long.records
                last = [r for batch in back for r in reversed(batch.records())]
                last += [r async for batch in backward for r in reversed(batch.records())]
                assert last == long.records[::-1]

    simulate(scenario)


def test_a_reader_that_has_read_of_the_merge_still_leaves_the_ledger_that_it_has_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ReplicaFetch, "batch_entries", 4)

    async def scenario(cluster: SimCluster) -> None:
        async with sim_namespace(cluster) as space:
            await space.create_stream("s")
            long = Long(space)
            for _ in range(3):
                ledger = await write_ledger(space.client, "s", [[b"x"]] * 12)
                await commit_batch(space.client, [ledger])
            await long.grow()
            feed = SegmentFeed(space.client, space.store, "n", "s")
            feed.read_ahead_bytes, feed.position = 1, Position(1, 0, 0)
            end = Position((await long.segments())[-1].number + 1, 0, 0)
            first = await feed.next_batch(end)
            assert first is not None
            found = [*first.records()]
            await long.merge()
            await long.drop()
            assert (await long.segments())[0].is_merged
            await trio.sleep(60)
            await feed.refresh()
            while (batch := await feed.next_batch(end)) is not None:
                found += batch.records()
            await feed.aclose()
            assert found == long.records

    simulate(scenario)


def test_truncated_in_the_middle_a_merged_ledger_stays_until_its_last_segment_goes() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            await long.namespace.set_policy(trash_ms=1000)
            await long.merge()
            await long.drop()
            segments = await long.segments()
            together = [s for s in segments if s.ledger_id == segments[0].ledger_id]
            assert len(together) > 2
            middle = Position(together[1].number, 0, 0)
            await long.namespace.truncate("s", middle)
            await long.namespace.untruncate("s")
            assert await read_all(long.namespace, "s") == long.records
            await long.namespace.truncate("s", middle)
            await trio.sleep(2)
            janitor = Janitor(long.client, "n", merge_bytes_per_s=0)
            assert (await janitor.sweep()).segments_purged == 1
            assert together[0].ledger_id in await long.client.list_ledgers()
            left = [record for record in long.records if record.position >= middle]
            assert await read_all(long.namespace, "s") == left
            await long.namespace.truncate("s", Position(together[-1].number + 1, 0, 0))
            await trio.sleep(2)
            assert (await janitor.sweep()).ledgers_deleted == 1
            assert together[0].ledger_id not in await long.client.list_ledgers()

    simulate(scenario)


def test_what_is_not_as_the_stream_says_is_not_merged_and_nothing_is_left() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            plan, policy = await long.plan(), await long.namespace.policy()
            assert plan is not None
            before = await long.client.list_ledgers()
            stream = await long.metadata()
            with pytest.raises(InvalidArgument, match=r"by its stream|begins at"):
                await merge_segments(
                    long.client, policy, stream,
                    MergePlan((plan.segments[0], _longer(plan.segments[1])), 2), bytes_per_s=1e9,
                )  # fmt: skip
            assert await long.client.list_ledgers() == before
            with pytest.raises(NoSuchLedger):
                await publish_merge(long.client, "n", "s", plan, 10**9)

    simulate(scenario)


def test_no_ledger_is_named_that_lacks_a_copy() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            plan, policy = await long.plan(), await long.namespace.policy()
            assert plan is not None
            assert policy.ack_quorum < policy.write_quorum == len(cluster.bookies)
            before = await long.client.list_ledgers()
            await cluster.kill_bookie(cluster.bookies[0])
            with pytest.raises(LedgerError):
                await merge_segments(long.client, policy, await long.metadata(), plan)
            assert not any(one.is_merged for one in await long.segments())
            await cluster.start_bookie(cluster.bookies[0])
            await trio.sleep(30)
            assert set(await long.client.list_ledgers()) == set(before)
            assert await long.merge() > 0
            merged = next(one for one in await long.segments() if one.is_merged)
            metadata = await long.client.ledger_metadata(merged.ledger_id)
            assert metadata.ack_quorum == policy.ack_quorum
            report = await verify_ledger(long.client, merged.ledger_id)
            assert report.verdict is CopyVerdict.WHOLE

    simulate(scenario)


@pytest.mark.parametrize("is_purged", [False, True])
def test_no_page_is_left_by_a_merge_that_other_changes_overtake(
    is_purged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            create, tries, is_busy = PageStore.create, 0, False

            async def overtaken(
                self: PageStore, path: str, made: Sequence[NewPage], same: Check, known: set[str]
            ) -> None:
                nonlocal tries, is_busy
                is_overtaken = bool(made) and tries < 5 and not is_busy
                is_before = is_overtaken and tries % 2 == 0
                if not is_before:
                    await create(self, path, made, same, known)
                if is_overtaken:
                    tries, is_busy = tries + 1, True
                    if is_purged and tries == 3:
                        last = (await long.segments())[-1].number
                        await long.namespace.truncate("s", Position(last, 0, 0))
                        await long.namespace.purge("s")
                    else:
                        await commit_batch(
                            long.client, [await write_ledger(long.client, "s", [[b"x"]])]
                        )
                    is_busy = False
                if is_before:
                    await create(self, path, made, same, known)  # a conflict: nothing is written

            monkeypatch.setattr(PageStore, "create", overtaken)
            plan, policy = await long.plan(), await long.namespace.policy()
            assert plan is not None
            stream = await long.metadata()
            if is_purged:
                with pytest.raises(MetadataConflict):
                    await merge_segments(long.client, policy, stream, plan)
            else:
                await merge_segments(long.client, policy, stream, plan)
            assert tries == (3 if is_purged else 5)
            monkeypatch.undo()
            assert await nodes_of_pages(long) == await named_pages(long)

    simulate(scenario)


@pytest.mark.parametrize("is_full", [True, False])
def test_no_page_is_left_by_a_merge_that_the_metadata_do_not_take(
    is_full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The document is full, or whether a page was written is in doubt."""
    create = PageStore._create

    async def doubtful(*arguments: object) -> None:
        await create(*arguments)  # type: ignore[arg-type]
        raise MetadataUnavailable("the answer was lost")

    def full(_: StreamMetadata) -> bytes:
        raise InvalidArgument("the document is full")

    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            plan, policy = await long.plan(), await long.namespace.policy()
            assert plan is not None
            stream, before = await long.metadata(), await long.client.list_ledgers()
            if is_full:
                monkeypatch.setattr(streams, "encode_stream", full)
            else:
                monkeypatch.setattr(PageStore, "_create", doubtful)
            with pytest.raises(InvalidArgument if is_full else MetadataUnavailable):
                await merge_segments(long.client, policy, stream, plan, bytes_per_s=1e9)
            monkeypatch.undo()
            assert await nodes_of_pages(long) == await named_pages(long)
            assert await long.client.list_ledgers() == before

    simulate(scenario)


def test_what_a_lost_ledger_of_merged_segments_has_is_not_said_wrongly() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            first = (await long.segments())[:2]
            await long.merge()
            merged = (await long.segments())[0].ledger_id
            found = dict[int, int]()
            for ledger_id in (merged, *(one.ledger_id for one in first)):
                await long.client.delete_ledger(ledger_id)
                lost = await look_for_lost_ledger(long.client, ledger_id)
                assert lost is not None
                found[ledger_id] = (await describe_lost(long.client, lost)).records
            assert found == {merged: -1} | {one.ledger_id: one.records for one in first}

    simulate(scenario)


async def nodes_of_pages(long: Long) -> set[str]:
    folder, store = pages_path((await long.metadata()).pages.folder), long.client.store
    return {
        f"{bucket}/{name}"
        for bucket in await store.children(folder)
        for name in await store.children(f"{folder}/{bucket}")
    }


async def named_pages(long: Long) -> set[str]:
    """Returns the pages that the document names, or one that it names, and those replaced."""
    pages, found = (await long.metadata()).pages, set[str]()
    stack = [(run, pages.first, 1 << 62) for run in pages.roots]
    stack += [(one.run, one.first, one.last) for one in pages.replaced]
    while stack:
        run, first, last = stack.pop()
        if run.last_number < first or run.number > last:
            continue
        found.add(page_name(run))
        spans = await long.namespace.store.pages.read(pages.folder, run)
        stack += [(span, first, last) for span in spans if isinstance(span, Run)]
    return found


def _longer(segment: Segment) -> Segment:
    return replace(segment, records=segment.records + 1)
