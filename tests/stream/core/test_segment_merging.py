"""Merging of small segments: against ledgers as lists of entries, and a stream without pages."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.core.steady_clock import CLOCK_OFF_MS
from ledger.errors import MetadataConflict
from stream.core import segment_merging
from stream.core.merge_limits import SMALL_SHARE
from stream.core.metadata import pages as pages_module
from stream.core.metadata.format import decode_stream, encode_stream
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.page_format import decode_page
from stream.core.metadata.segments import SegmentEnd
from stream.core.metadata.streams import StreamMetadata
from stream.core.position import Position
from stream.core.segment_merging import (
    AGE_MS,
    LEDGERS_MIN,
    REPLACED_MAX,
    RETENTION_SHARE,
    SPAN_MS,
    WHOLE_STREAM,
    MergeOutlook,
    MergePlan,
    MergeScope,
    explain_merging,
    merged,
)
from stream.core.sinks import committed
from stream.core.trash import drained, purged_whole, trashed, without_replaced
from tests.effort import scaled
from tests.stream.core.merge_world import (
    POLICY,
    World,
    as_made,
    grown_world,
    small_limits,
    world_of,
)
from tests.stream.core.metadata.test_pages import (
    a_change,
    a_position,
    check_answers,
    check_plans,
)


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_limits(monkeypatch)


@settings(max_examples=scaled(ci=8, night=1000), deadline=None)
@given(st.integers(0, 1 << 32), st.integers(2, 4), st.integers(2, 4))
def test_a_stream_whose_segments_are_merged_is_the_same_stream(
    seed: int, segments: int, runs: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        small_limits(patch)
        rng, world = random.Random(seed), World(segments, runs)
        for now_ms in range(1, 60):
            world.change(a_change(rng, world.plain, now_ms, ledger_id=4 * now_ms))
            if rng.random() < 0.4:
                world.merge(100_000 + now_ms, now_ms)
            if rng.random() < 0.3:
                world.collect(now_ms - rng.randrange(20))
            world.check()
            world.check_kept()
            unmerged = replace(world.plain, garbage=world.head.garbage)
            check_plans(world.nodes, world.head, unmerged, now_ms + rng.randrange(60))
            if not world.merges:
                check_answers(world.nodes, world.head, unmerged, rng)
            at = a_position(rng, world.plain)
            found = world.nodes.ask(world.head, partial(StreamMetadata.segment_at, position=at))
            wanted = world.plain.segment_at(at)
            assert (found and as_made(found)) == wanted
        world.check_ledgers()


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("seed", range(6))
def test_a_deleted_stream_leaves_no_ledger(seed: int) -> None:
    rng, world = random.Random(seed), World()
    for now_ms in range(1, 80):
        ends = [(now_ms, SegmentEnd(0, 1, 10, now_ms, now_ms))]
        world.change(partial(committed, ends=ends, now_ms=now_ms))
        if rng.random() < 0.3:
            world.merge(1000 + now_ms, now_ms)
    assert world.head.pages.replaced
    gone = world.nodes.stored(purged_whole(world.nodes.stored(trashed(world.head, 90))))
    while gone.has_ledgers:
        for ledger_id in gone.garbage:
            world.ledgers.pop(ledger_id, None)
        gone = world.nodes.stored(world.nodes.ask(replace(gone, garbage=()), drained))
    assert not world.ledgers
    assert not world.nodes.nodes


def test_ledgers_are_bounded_by_bytes_and_each_byte_is_copied_a_few_times() -> None:
    world, policy = World(64, 16), replace(POLICY, roll_bytes=1 << 16)
    count, nbytes = scaled(ci=1600, night=19_200), 100
    for last in range(64, count + 1, 64):
        world.change(partial(committed, ends=ends_of(last, 64, nbytes), now_ms=last))
        while world.merge(10**6 + world.merges, last, policy):
            world.collect(1 << 40)
    in_pages = world.segments()[: -len(world.head.segments)]
    ledgers = {segment.ledger_id for segment in in_pages}
    full = len(in_pages) * nbytes / (policy.roll_bytes / SMALL_SHARE)
    assert len(ledgers) <= full + 4 * LEDGERS_MIN
    assert world.copied <= 8 * count * nbytes
    assert len(encode_stream(world.head)) < 20_000
    world.check()


def ends_of(last: int, count: int, nbytes: int) -> list[tuple[int, SegmentEnd]]:
    """Returns the last of `count` new segments, and those before it."""
    numbers = range(last - count + 1, last + 1)
    return [(number, SegmentEnd(0, 1, nbytes, number, number)) for number in numbers]


def test_ledgers_are_bounded_where_each_look_goes_on_from_the_last_one() -> None:
    """As a janitor looks: again and again, while the newest segments are too young."""
    world, policy = World(8, 4), replace(POLICY, roll_bytes=1 << 16)
    count, since, settled = scaled(ci=1040, night=8000), 0, 0
    for last in range(16, count + 1, 16):
        now_ms = 1000 * last
        world.change(partial(committed, ends=ends_of(last, 16, 10), now_ms=now_ms))
        while True:
            found = world.look(policy, now_ms, MergeScope(since))
            assert found.since >= since or found.plan is None
            since, settled = found.since, settled + found.is_settled
            if found.plan is None:
                break
            world.carry_out(found.plan, 10**6 + world.merges, now_ms)
            world.collect(1 << 40)
    old = [one for one in world.segments() if one.number < count - 400]
    full = len(old) * 10 / (policy.roll_bytes / SMALL_SHARE)
    assert len({segment.ledger_id for segment in old}) <= full + 3 * LEDGERS_MIN
    assert world.copied <= 5 * 10 * count
    assert not settled, "there are always young ones"
    while (plan := world.look(policy, 1 << 40).plan) is not None:
        world.carry_out(plan, 10**6 + world.merges, 1)
    assert world.look(policy, 1 << 40).is_settled
    world.check()


def test_small_ledgers_beside_full_ones_are_merged() -> None:
    full = POLICY.roll_bytes
    world = world_of(([full] * 8 + [10] * 56) * 3)
    found = world.look(POLICY, 10**9)
    assert found.plan is not None
    assert (found.plan.first, found.plan.last) == (9, 64)
    few = world_of([10] * 20 + [full // 20] + [10] * 107)
    found = few.look(POLICY, 10**9)
    assert found.plan is not None
    assert (found.plan.first, found.plan.last) == (1, 20), "the large one is no reason to wait"


@pytest.mark.parametrize(
    ("sizes", "scope"),
    [
        ([POLICY.roll_bytes] * 8 + [10] * 56, MergeScope(nbytes_max=POLICY.roll_bytes // 8)),
        ([400 * POLICY.roll_bytes] * 8 + [10] * 56, WHOLE_STREAM),
    ],
    ids=["a janitor copies little", "of an earlier policy"],
)
def test_ledgers_above_the_limits_do_not_hide_small_ones(
    sizes: list[int], scope: MergeScope
) -> None:
    world = world_of(sizes * 2)
    plan = world.look(POLICY, 10**9, scope).plan
    assert plan is not None
    assert (plan.first, plan.last) == (9, 64)


def counted(world: World, scope: MergeScope = WHOLE_STREAM) -> tuple[MergeOutlook, int, int]:
    """Returns what a look says, how many pages it read, and how often it began again."""
    asked, reads = 0, world.nodes.reads

    def ask(stream: StreamMetadata) -> MergeOutlook:
        nonlocal asked
        asked += 1
        return explain_merging(stream, POLICY, 10**9, scope)

    found = world.nodes.ask(world.head, ask)
    return found, world.nodes.reads - reads, asked


def test_a_look_requests_the_pages_of_a_level_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of new ledgers, of those that are full by time, and of a plan that merges merged ones."""
    count, full, world = 1216, 120, World(8, 4)
    for last in range(8, count + 1, 8):
        ends = [(n, SegmentEnd(0, 1, 10, 1000 * n, 1000 * n)) for n in range(last - 7, last + 1)]
        world.change(partial(committed, ends=ends, now_ms=1000 * last - 7000))
    levels = len(world.head.pages.levels)
    assert levels >= 3
    monkeypatch.setattr(segment_merging, "SPAN_MS", 1000 * full)
    found, reads, asked = counted(world)
    assert found.plan is not None
    assert reads > 100
    assert asked <= levels + 3
    while world.merge(10**6 + world.merges, 10**9):
        world.collect(1 << 40)
    found, reads, asked = counted(world)
    assert found.is_settled
    assert reads <= 4 * count / full
    assert asked <= levels + 2
    found, reads, _ = counted(world, MergeScope(looked_max=1))
    assert reads <= 3 * levels
    assert "on were not looked at" in found.reason
    monkeypatch.setattr(segment_merging, "SPAN_MS", 1000 * 20 * full)
    found, reads, asked = counted(world)
    assert found.plan is not None
    assert found.plan.ledgers >= LEDGERS_MIN
    assert reads > 100
    assert asked <= 2 * (levels + 2)


def test_nothing_is_read_of_a_stream_with_large_ledgers_alone() -> None:
    world = grown_world(2500, nbytes=POLICY.roll_bytes)
    reads = world.nodes.reads
    found = world.look(POLICY, 10**9)
    assert (found.plan, found.is_settled) == (None, True)
    assert world.nodes.reads == reads


@pytest.mark.parametrize(
    ("change", "scope", "nbytes", "span_ms"),
    [
        ({}, WHOLE_STREAM, POLICY.roll_bytes, SPAN_MS),
        ({"retention_bytes": 36_000}, WHOLE_STREAM, 36_000 // RETENTION_SHARE, SPAN_MS),
        ({"retention_ms": 48 * 86_400_000}, WHOLE_STREAM, POLICY.roll_bytes, 6 * 86_400_000),
        ({}, MergeScope(nbytes_max=3000), 3000, SPAN_MS),
        ({"roll_bytes": 1 << 16}, WHOLE_STREAM, 1 << 16, SPAN_MS),
    ],
)
def test_what_a_merged_ledger_keeps_on_disk_when_most_of_it_was_purged_is_bounded(
    change: dict[str, int], scope: MergeScope, nbytes: int, span_ms: int
) -> None:
    step_ms = 3 * 3_600_000
    world = world_of([100] * 300, step_ms=step_ms)
    policy, now_ms = replace(POLICY, **change), 303 * step_ms  # type: ignore[arg-type]
    found = world.look(policy, now_ms, scope).plan
    assert found is not None
    while (plan := world.look(policy, now_ms, scope).plan) is not None:
        assert plan.nbytes <= nbytes
        assert plan.segments[-1].newest_ms - plan.segments[0].created_ms <= span_ms
        world.carry_out(plan, 10**6 + world.merges, now_ms)
        world.collect(1 << 40)
    ledgers = {one.ledger_id for one in world.segments() if one.number <= 192}
    share = max(19_200 / nbytes, 192 * step_ms / span_ms)
    assert len(ledgers) <= SMALL_SHARE * share + 2 * LEDGERS_MIN


def test_a_ledger_that_cannot_be_copied_is_left_out() -> None:
    world = grown_world(128)
    scope = MergeScope(avoid=frozenset({20}))
    plans = []
    while (plan := world.look(POLICY, 10**9, scope).plan) is not None:
        plans.append((plan.first, plan.last))
        world.carry_out(plan, 10**6 + world.merges, 10**9)
    assert plans == [(1, 19), (21, 64)]


def test_records_from_the_future_are_not_young_for_ever() -> None:
    world, time_ms = World(64, 16), SPAN_MS // 2
    for last, at_ms in ((64, 1), (128, time_ms), (192, time_ms), (256, time_ms)):
        ends = [(n, SegmentEnd(0, 1, 10, at_ms, at_ms)) for n in range(last - 63, last + 1)]
        world.change(partial(committed, ends=ends, now_ms=at_ms))
    merged_up_to = []
    for now_ms in (time_ms - CLOCK_OFF_MS, time_ms - CLOCK_OFF_MS + 1, time_ms + AGE_MS):
        plan = world.look(POLICY, now_ms).plan
        assert plan is not None
        merged_up_to.append(plan.last)
    assert merged_up_to == [192, 64, 192]


def outlook(world: World, policy: NamespaceMetadata = POLICY, now_ms: int = 10**9) -> str:
    return world.look(policy, now_ms).reason


def test_what_is_merged_and_why_not_is_said_with_numbers() -> None:
    assert "are few" in outlook(grown_world(100))
    world = grown_world(128)
    assert outlook(world).startswith("segments 1 to 64 on 64 ledgers, 640 B together, become one")
    assert "64 of them with records younger than 5" in outlook(world, now_ms=200)
    old = replace(POLICY, retention_ms=10**9)
    assert "64 of them near the end of their retention" in outlook(world, old)
    surplus = replace(POLICY, retention_bytes=700)
    assert "near the end" in outlook(world, surplus)
    assert "few or none of the older ledgers are below 32" in outlook(
        grown_world(128, nbytes=POLICY.roll_bytes // 8)
    )
    large = [POLICY.roll_bytes // 8]
    world = world_of(large * 30 + [10] * 5 + large * 93, per_page=32)
    assert "5 ledgers are below" in outlook(world)


def test_a_merge_waits_while_the_ledgers_of_too_many_are_kept() -> None:
    world = grown_world(128)
    one = pages_module.Replaced(1, 1, 64, world.head.pages.roots[0])
    pages = replace(world.head.pages, replaced=(one,) * REPLACED_MAX)
    world.head = replace(world.head, pages=pages)
    assert "64 merges wait to be deleted" in outlook(world)


def test_segments_in_the_trash_are_not_merged_nor_is_a_ledger_that_is_partly_there() -> None:
    world = grown_world(300)
    world.change(lambda s: s.truncated(Position(40, 0, 0), 500))
    assert outlook(world).startswith("segments 40 to ")
    assert world.merge(1000, 10**9)
    world.change(lambda s: s.truncated(Position(60, 0, 0), 600))
    assert not world.merge(2000, 10**9)
    world.check()


def test_a_plan_is_refused_if_its_segments_were_merged_or_purged_meanwhile() -> None:
    world = grown_world(300)
    plan = world.nodes.ask(world.head, partial(explain_merging, policy=POLICY, now_ms=10**9)).plan
    assert plan is not None
    again = partial(merged, plan=plan, ledger_id=9999, now_ms=1)
    assert world.merge(1000, 10**9)
    with pytest.raises(MetadataConflict, match="merged by another"):
        world.nodes.ask(world.head, again)
    with pytest.raises(MetadataConflict):
        world.nodes.ask(replace(world.head, pages=replace(world.head.pages, first=2)), again)


def test_what_was_replaced_goes_also_if_a_page_of_it_is_lost() -> None:
    world = grown_world(300)
    assert world.merge(5000, 10**6)
    for last in range(320, 701, 20):
        world.change(partial(committed, ends=ends_of(last, 20, 10), now_ms=last))
    assert world.merge(6000, 10**6)
    assert len(world.head.pages.replaced) > 4, "over several pages"
    lost = world.head.pages.replaced[1].run
    page = world.nodes.nodes.pop(pages_module.page_name(lost))
    listed = {span.ledger_first for span in decode_page(lost, page.data)}

    def without(stream: StreamMetadata) -> StreamMetadata:
        pages = replace(stream.pages, lost=frozenset({lost.digest}))
        return without_replaced(replace(stream, pages=pages), 1 << 40)

    while world.head.pages.replaced:
        world.head = world.nodes.stored(world.nodes.ask(world.head, without))
        for ledger_id in world.head.garbage:
            world.ledgers.pop(ledger_id, None)
        world.head = world.nodes.stored(world.head.forgotten(world.head.garbage))
    world.check()
    assert set(world.ledgers) - {one.ledger_id for one in world.segments()} == listed, "orphans"
    for ledger_id in listed:
        assert not world.nodes.ask(world.head, partial(StreamMetadata.needs, ledger_id=ledger_id))


def test_the_document_keeps_what_was_replaced() -> None:
    world, now_ms = grown_world(300), 10**6
    assert world.merge(1000, now_ms)
    again = decode_stream("s", encode_stream(world.head))
    assert again == world.head
    assert again.pages.replaced
    assert {(one.replaced_ms, one.first) for one in again.pages.replaced} >= {(now_ms, 1)}
    assert world.nodes.ask(again, lambda s: s.names(7)), "it was made on this ledger"
    assert world.nodes.ask(again, lambda s: s.segment_on(7)).number == 7  # type: ignore[union-attr]
    together = world.nodes.ask(again, lambda s: s.together_at(Position(3, 0, 0), 100))
    assert [segment.number for segment in together] == list(range(3, 103))
    assert world.nodes.ask(again, lambda s: s.needs(7)), "it is kept for readers"
    while world.head.pages.replaced:
        world.collect(1 << 40)
    assert world.nodes.ask(world.head, lambda s: s.names(7)), "a batch is known by it"
    assert not world.nodes.ask(world.head, lambda s: s.needs(7))


def test_a_long_search_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_merging, "LOOKED_MAX", 50)
    world, policy = World(8, 4), replace(POLICY, roll_bytes=1 << 16)
    for number in range(1, 400):
        is_large = number < 100 or (number % 8 == 0 and number < 300)
        nbytes = 10_000 if is_large else 10
        ends = [(number, SegmentEnd(0, 1, nbytes, number, number))]
        world.change(partial(committed, ends=ends, now_ms=number))
    since, looks = 0, 0
    plan: MergePlan | None = None
    while plan is None:
        reads = world.nodes.reads
        found = world.look(policy, 10**9, MergeScope(since))
        assert world.nodes.reads - reads < 30
        assert found.plan is not None or found.since > since
        plan, since, looks = found.plan, found.since, looks + 1
    assert looks > 4
    assert plan.first > 296
