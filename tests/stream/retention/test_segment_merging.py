"""Merged segments on a simulated cluster: to every question, the answer stays the same."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio

from bookie.testing import SimCluster, simulate
from ledger.core.copies import CopyVerdict
from ledger.errors import InvalidArgument, NoSuchLedger
from stream import (
    EARLIEST,
    FromEnd,
    FromEventTime,
    FromSequence,
    FromTime,
    Namespace,
    Record,
    Start,
)
from stream.core.metadata.segments import Segment
from stream.core.metadata.streams import StreamMetadata
from stream.core.position import Position
from stream.core.receipt import Receipt
from stream.core.segment_merging import MergePlan
from stream.reading.lag import CursorLag, measure_lag
from stream.retention.janitor import Janitor
from stream.retention.segment_merging import (
    claim_path,
    drop_replaced,
    merge_segments,
    plan_merge,
    publish_merge,
)
from stream.sinks.sinks import SinkLedger, commit_batch
from tests.sim.page_limits import page_limits, small_merges
from tests.stream.sim_namespace import sim_namespace
from tests.stream.sinks.sink_ledgers import write_ledger
from tests.stream.whole_streams import read_all

SEGMENTS = 16


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with page_limits(), small_merges():
        yield


class Long:
    """A stream "s" with many small segments, of writers and of sinks."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.client = namespace.client
        self.receipts: list[Receipt] = []
        self.batches: list[SinkLedger] = []
        self.records: list[Record] = []

    async def grow(self, count: int = SEGMENTS) -> None:
        await self.namespace.ensure_stream("s")
        for number in range(count):
            await trio.sleep(1)
            if number % 4 == 1:
                async with self.namespace.writer("s") as writer:
                    value = b"w%d" % number
                    await writer.append_many([value] * 3, event_times=[10 * number] * 3)
                    self.receipts.append(await writer.append(value, receipt=True))
                continue
            entries = [[b"k%d/%d" % (number, e)] * 2 for e in range(1 + number % 3)]
            times = [[10 * number] * 2 for _ in entries]
            ledger = await write_ledger(self.client, "s", entries, event_times=times)
            await commit_batch(self.client, [ledger])
            self.batches.append(ledger)
        self.records = await read_all(self.namespace, "s")

    async def merge(self) -> int:
        """Merges what there is to merge; returns how many segments were merged."""
        count = 0
        policy = await self.namespace.policy()
        while (plan := await self.plan()) is not None:
            await merge_segments(self.client, policy, await self.metadata(), plan, bytes_per_s=1e9)
            count += len(plan.segments)
        return count

    async def plan(self) -> MergePlan | None:
        policy = await self.namespace.policy()
        return (await plan_merge(self.client, policy, await self.metadata())).plan

    async def metadata(self) -> StreamMetadata:
        return await self.namespace.stream_metadata("s")

    async def segments(self) -> list[Segment]:
        return await self.namespace.store.pages.listed(await self.metadata())

    async def drop(self) -> int:
        return (await drop_replaced(self.client, "n", await self.metadata(), 0))[1]


@asynccontextmanager
async def a_long_stream(cluster: SimCluster) -> AsyncIterator[Long]:
    async with sim_namespace(cluster) as namespace:
        long = Long(namespace)
        await long.grow()
        yield long


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


def test_a_janitor_merges_and_deletes_what_was_replaced_an_hour_later() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            janitor = Janitor(long.client, "n")
            report = await janitor.sweep()
            assert report.segments_merged > SEGMENTS // 2
            assert report.failures == 0
            assert (await janitor.sweep()).ledgers_deleted == 0
            await trio.sleep(3_601)
            report = await janitor.sweep()
            assert report.ledgers_deleted > SEGMENTS // 2
            assert report.orphans_deleted == 0
            info = await long.namespace.info("s")
            assert len(await long.client.list_ledgers()) == info.ledgers
            assert await read_all(long.namespace, "s") == long.records
            off = Janitor(long.client, "n", merge_bytes_per_s=0)
            await long.grow()
            assert (await off.sweep()).segments_merged == 0

    simulate(scenario)


def test_one_client_at_a_time_merges_in_a_namespace() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long, cluster.client("other") as other:
            await other.store.create(claim_path("n"), b"other", is_ephemeral=True)
            assert (await Janitor(long.client, "n").sweep()).segments_merged == 0
            await other.store.delete(claim_path("n"))
            assert (await Janitor(long.client, "n").sweep()).segments_merged > 0

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
            await long.client.delete_ledger(plan.segments[0].ledger_id)
            report = await Janitor(long.client, "n").sweep()
            assert (report.failures, report.segments_merged) == (1, 0)
            report = await Janitor(long.client, "n", merge_bytes_per_s=0).sweep()
            assert report.orphans_deleted == 0

    simulate(scenario)


def _longer(segment: Segment) -> Segment:
    return replace(segment, records=segment.records + 1)
