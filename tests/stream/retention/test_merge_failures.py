"""What a janitor leaves alone after a merge that failed, for how long, and what it says."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any
from unittest.mock import AsyncMock

import pytest
import trio
from trio.testing import MockClock

from bookie.testing import SimCluster, simulate
from ledger.errors import (
    BookieUnavailable,
    LedgerError,
    MetadataConflict,
    MetadataCorrupt,
    MetadataUnavailable,
    NotEnoughBookies,
    OperationTimeout,
    Unauthorized,
)
from stream.core.metadata.streams import StreamMetadata
from stream.retention import janitor as janitor_module
from stream.retention import segment_merger, segment_merging
from stream.retention.janitor import Janitor
from stream.retention.segment_merger import (
    MergeReport,
    SegmentMerger,
    claim_path,
    merge_for_ever,
)
from stream.retention.segment_merging import MergeProgress, merge_segments
from stream.sinks.sinks import commit_batch
from stream.store import streams
from stream.takeover import StreamLedgers
from tests.sim.page_limits import page_limits, small_merges
from tests.stream.retention.long_stream import Long, a_long_stream
from tests.stream.retention.test_segment_merger import swept_and_merged
from tests.stream.sinks.sink_ledgers import write_ledger


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with page_limits(), small_merges():
        yield


class Failing:
    """Merges that fail with this error while they read that ledger (-1: none)."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        error: LedgerError,
        reading: int = -1,
        stricter: int = -1,
    ) -> None:
        self.calls = 0
        self._error = error
        self._reading = reading
        self._stricter = stricter
        monkeypatch.setattr(segment_merger, "merge_segments", self)

    async def __call__(self, *_: object, progress: MergeProgress, **__: object) -> StreamMetadata:
        self.calls += 1
        progress.reading, progress.stricter = self._reading, self._stricter
        raise self._error


async def merged_again(long: Long, merger: SegmentMerger) -> MergeReport:
    """Merges as after the next sweep but one pause."""
    await trio.sleep(601)
    merger.note(await long.namespace.policy(), [await long.metadata()])
    return await merger.merge()


@pytest.mark.parametrize(
    ("error", "avoided"),
    [(OperationTimeout("silent"), [[7], [7]]), (BookieUnavailable("restarts"), [[], [7]])],
)
def test_what_cannot_be_read_is_left_alone_and_nothing_else_changes(
    error: LedgerError, avoided: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            merger = SegmentMerger(long.client, "n", 1e6)
            nbytes_max = merger._nbytes_max
            Failing(monkeypatch, error, reading=7)
            found = []
            for _ in avoided:
                assert (await merged_again(long, merger)).failures == 1
                found.append([*merger._seen["s"].avoid])
            assert found == avoided
            assert merger._nbytes_max == nbytes_max

    simulate(scenario)


@pytest.mark.parametrize("error", [Unauthorized("no role"), NotEnoughBookies("too few are up")])
def test_what_is_missing_for_all_streams_is_tried_with_one_and_said_once(
    error: LedgerError, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(segment_merger, "_AVOIDED_MS", 1_000_000)
    caplog.set_level(logging.INFO, logger=segment_merger.__name__)

    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            await long.namespace.create_stream("t")
            for _ in range(10):
                await commit_batch(long.client, [await write_ledger(long.client, "t", [[b"x"]])])
            failing, janitor = Failing(monkeypatch, error), Janitor(long.client, "n")
            calls = []
            for pause_s in (0, 60, 550, 450):
                await trio.sleep(pause_s)
                assert await swept_and_merged(janitor) == MergeReport()
                calls.append(failing.calls)
            assert calls == ([1, 1, 1, 2] if isinstance(error, Unauthorized) else [1, 1, 2, 2])

    simulate(scenario)
    said = [one.levelname for one in caplog.records if str(error) in one.message]
    assert said == ["WARNING", "INFO"]


def test_a_stream_is_left_alone_while_its_metadata_cannot_be_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            failing = Failing(monkeypatch, MetadataUnavailable("flaps"))
            janitor = Janitor(long.client, "n")
            with pytest.raises(MetadataUnavailable):
                await swept_and_merged(janitor)
            assert await swept_and_merged(janitor) == MergeReport()
            assert failing.calls == 1

    simulate(scenario)


def test_a_merge_that_hangs_ends_when_what_is_asked_for_once_must_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def hang(*_: object) -> None:
        await trio.sleep_forever()

    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            monkeypatch.setattr(segment_merging, "_append", hang)
            janitor = Janitor(long.client, "n")
            await janitor.sweep()
            begun_s = trio.current_time()
            assert await janitor.merge(limit_s=5) == MergeReport(), "with more time it may end"
            assert 5 < trio.current_time() - begun_s < 12

    simulate(scenario)


@pytest.mark.parametrize("slow", ["copying", "asking"])
def test_a_merge_with_less_time_than_it_may_take_is_no_failure(
    slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            found = long.client.ledger_metadata

            async def slowly(*arguments: Any) -> Any:
                await trio.sleep(4)
                return await found(*arguments)

            if slow == "asking":
                monkeypatch.setattr(long.client, "ledger_metadata", slowly)
            nbytes = sum(one.nbytes for one in await long.segments())
            rate = 1e6 if slow == "asking" else nbytes / 500
            merger = SegmentMerger(long.client, "n", 1e6)
            nbytes_max, merger._bytes_per_s = merger._nbytes_max, rate
            monkeypatch.setattr(merger, "_bounded", lambda _: 1 << 40)
            merger.note(await long.namespace.policy(), [await long.metadata()])
            begun_s = trio.current_time()
            assert await merger.merge(limit_s=6) == MergeReport()
            assert 10 < trio.current_time() - begun_s < 15
            assert merger._nbytes_max == nbytes_max

    simulate(scenario)


def test_what_may_be_merged_at_once_grows_only_if_more_would_be_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            plan, merger = await long.plan(), SegmentMerger(long.client, "n", 1e6)
            assert plan is not None
            for tried, took, allowed in (
                (plan.nbytes, 0.5, 2 * plan.nbytes),
                (plan.nbytes, 0.51, plan.nbytes),
                (2 * plan.nbytes, 0.01, 2 * plan.nbytes),
            ):
                merger._nbytes_max = tried
                merger._note_merged("s", plan, took)
                assert merger._nbytes_max == allowed
            merger._nbytes_max = merger._nbytes_most
            merger._note_merged("s", plan, 0.0)
            assert merger._nbytes_max == merger._nbytes_most
            monkeypatch.setattr(segment_merger, "_NBYTES_MIN", 1)
            progress, slow = MergeProgress(is_given_up=True), OperationTimeout("slow")
            assert await merger._failed("s", plan, progress, slow, is_limited=False) == 1
            assert merger._nbytes_max == plan.nbytes // 2, "half of what was tried"

    simulate(scenario)


def test_a_shortage_that_no_older_ledger_causes_is_over_after_ten_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A weaker digest was chosen since, which needs no other bookies."""

    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            await long.namespace.set_policy(digest_type="DUMMY")
            merger = SegmentMerger(long.client, "n", 1e6)
            with monkeypatch.context() as patch:
                patch.setattr(StreamLedgers, "make", AsyncMock(side_effect=NotEnoughBookies("up")))
                merger.note(await long.namespace.policy(), [await long.metadata()])
                assert await merger.merge() == MergeReport()
            assert not merger._seen["s"].avoid
            with monkeypatch.context() as patch:
                Failing(patch, NotEnoughBookies("one died during the merge"), stricter=1)
                assert await merged_again(long, merger) == MergeReport()
            assert not merger._seen["s"].avoid
            assert (await merged_again(long, merger)).segments > 0

    simulate(scenario)


def test_a_merge_lets_others_change_the_stream_first(monkeypatch: pytest.MonkeyPatch) -> None:
    tries_s = list[float]()

    async def conflicting(*_: object, **__: object) -> None:
        tries_s.append(trio.current_time())
        raise MetadataConflict("another client was first")

    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            plan, policy = await long.plan(), await long.namespace.policy()
            assert plan is not None
            monkeypatch.setattr(segment_merging, "UPDATE_TRIES_MAX", 20)
            monkeypatch.setattr(streams.StreamStore, "put_stream", conflicting)
            with pytest.raises(MetadataConflict):
                await merge_segments(long.client, policy, await long.metadata(), plan)
            assert len(tries_s) == 20
            assert tries_s[-1] - tries_s[0] > 3

    simulate(scenario)


def test_a_claim_that_the_client_could_not_release_is_its_own() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            token = Janitor(long.client, "n")._merger._token
            await long.client.store.create(claim_path("n"), token, is_ephemeral=True)
            assert (await swept_and_merged(Janitor(long.client, "n"))).segments > 0
            async with cluster.client("other") as other:
                assert Janitor(other, "n")._merger._token != token

    simulate(scenario)


async def test_a_bug_in_merging_ends_nothing_else(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Merger:
        def __init__(self, error: Exception | None = None) -> None:
            self.calls, self.error = 0, error

        async def merge(self) -> MergeReport:
            self.calls += 1
            if self.error is not None:
                raise self.error
            return MergeReport()

    bugs = Merger(IndexError("a bug")), Merger(ExceptionGroup("bugs", [AssertionError()]))
    away, whole = Merger(MetadataUnavailable("for a moment")), Merger()
    with trio.move_on_after(35):
        await merge_for_ever({"a": bugs[0], "b": bugs[1], "c": away, "d": whole}, 10.0)
    assert [one.calls for one in (*bugs, away, whole)] == [1, 1, 3, 3]
    assert sum("this is a bug" in one.message for one in caplog.records) == 2
    assert "IndexError: a bug" in caplog.text, "with its traceback"


def test_an_error_of_retention_is_reported_whatever_else_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def retention(*_: object) -> None:
        raise MetadataCorrupt("retention fails")

    async def drop(*_: object, **__: object) -> None:
        raise MetadataUnavailable("dropping fails")

    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            monkeypatch.setattr(janitor_module, "apply_retention", retention)
            monkeypatch.setattr(janitor_module, "drop_replaced", drop)
            assert (await Janitor(long.client, "n").sweep()).failures == 1

    simulate(scenario)
    assert "retention fails" in caplog.text
    assert "dropping fails" not in caplog.text
