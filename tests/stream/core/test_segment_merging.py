"""Merging of small segments: against ledgers as lists of entries, and a stream without pages."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.errors import InvalidArgument, MetadataConflict
from stream.core import segment_merging
from stream.core.entry.encoder import encode
from stream.core.metadata import pages as pages_module
from stream.core.metadata.format import decode_stream, encode_stream
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.pages import Pages, page_name
from stream.core.metadata.segments import Segment, SegmentEnd
from stream.core.metadata.streams import StreamMetadata
from stream.core.position import Position
from stream.core.segment_merging import (
    AGE_MS,
    LEDGERS_MIN,
    REPLACED_MAX,
    MergeCheck,
    MergePlan,
    explain_merging,
    merged,
)
from stream.core.sinks import committed
from stream.core.trash import drained, purged_whole, trashed, without_replaced
from tests.effort import scaled
from tests.stream.core.metadata.test_pages import (
    PageNodes,
    a_change,
    a_position,
    attempt,
    check_answers,
    check_plans,
)

POLICY = NamespaceMetadata(name="n", created_ms=0)
Place = tuple[int, int]
"""Number of a segment, and an entry of it."""


def every(stream: StreamMetadata) -> Iterator[Segment]:
    for span in stream.spans():
        for part in stream.pages.split(span, lambda _: True):
            assert isinstance(part, Segment)
            yield part


def as_made(segment: Segment) -> Segment:
    """Returns the segment as it was before it was merged."""
    if not segment.is_merged:
        return segment
    return replace(segment, ledger_id=segment.made_on, made_on=-1, base_entry=0, base_bytes=0)


class World:
    """A stream in pages whose segments are merged, the same one in a list, and its ledgers."""

    def __init__(self, segments_per_page: int = 2, runs_per_page: int = 2) -> None:
        self.nodes = PageNodes(segments_per_page, runs_per_page)
        self.plain = StreamMetadata(name="s", created_ms=1).taken_over()
        self.head = self.nodes.stored(self.plain)
        self.ledgers: dict[int, list[Place]] = {}
        """What each ledger has; None of those that are deleted."""
        self.made: set[int] = set()
        self.merges = self.copied = 0

    def change(self, change: object) -> None:
        assert callable(change)
        wanted = attempt(change, self.plain)
        found = self.nodes.ask(self.head, partial(attempt, change))
        if isinstance(wanted, str) or isinstance(found, str):
            assert found == wanted
            return
        self.plain, self.head = wanted, self.nodes.stored(found)
        for segment in self.plain.segments:
            if not segment.is_open and segment.ledger_id not in self.made:
                self.made.add(segment.ledger_id)
                self.ledgers[segment.ledger_id] = [
                    (segment.number, entry) for entry in range(segment.last_entry + 1)
                ]

    def merge(self, ledger_id: int, now_ms: int, policy: NamespaceMetadata = POLICY) -> bool:
        outlook = self.nodes.ask(
            self.head, partial(explain_merging, policy=policy, now_ms=now_ms + AGE_MS)
        )
        plan = outlook.plan
        assert outlook.reason
        if plan is None:
            return False
        self.ledgers[ledger_id] = [
            self.ledgers[segment.ledger_id][segment.base_entry + entry]
            for segment in plan.segments
            for entry in range(segment.last_entry + 1)
        ]
        change = partial(merged, plan=plan, ledger_id=ledger_id, now_ms=now_ms)
        self.head = self.nodes.stored(self.nodes.ask(self.head, change))
        self.merges += 1
        self.copied += plan.nbytes
        return True

    def collect(self, until_ms: int) -> None:
        """Deletes what merges have replaced, and the garbage."""
        change = partial(without_replaced, until_ms=until_ms)
        self.head = self.nodes.stored(self.nodes.ask(self.head, change))
        for ledger_id in self.head.garbage:
            self.ledgers.pop(ledger_id, None)
        self.head = self.nodes.stored(self.head.forgotten(self.head.garbage))
        self.plain = self.plain.forgotten(self.plain.garbage)

    def segments(self) -> list[Segment]:
        return self.nodes.ask(self.head, lambda stream: list(every(stream)))

    def check(self) -> None:
        """Each entry is where its position says, and nothing else has changed."""
        segments = self.segments()
        assert [as_made(segment) for segment in segments] == list(self.plain.segments)
        for segment in segments:
            if segment.is_open:
                continue
            place = slice(segment.base_entry, segment.base_entry + segment.last_entry + 1)
            found = self.ledgers[segment.ledger_id][place]
            assert found == [(segment.number, entry) for entry in range(segment.last_entry + 1)]
        same = {"segments": (), "pages": Pages(), "garbage": ()}
        assert replace(self.head, **same) == replace(self.plain, **same)  # type: ignore[arg-type]

    def check_ledgers(self) -> None:
        """No ledger is left that nothing needs, once all that was replaced is gone."""
        while self.head.pages.replaced:
            self.collect(1 << 40)
        self.collect(1 << 40)
        needed = {segment.ledger_id for segment in self.segments()} & self.ledgers.keys()
        assert set(self.ledgers) == needed
        # Pages that nothing names are removed, too.
        named, stack = set[str](), list(self.head.pages.roots)
        while stack:
            run = stack.pop()
            if run.last_number < self.head.pages.first:
                continue
            named.add(page_name(run))
            page = self.nodes.nodes[page_name(run)]
            below = self.nodes.ask(
                self.head,
                lambda stream, run=page.run: stream.pages.stored(run),  # type: ignore[misc]
            )
            stack += [span for span in below if not isinstance(span, Segment)]
        assert named == set(self.nodes.nodes)


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_limits(monkeypatch)


def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has few segments merged at a time, up to 64 of them on a ledger."""
    monkeypatch.setattr(segment_merging, "LEDGERS_MIN", 2)
    monkeypatch.setattr(segment_merging, "LEDGERS_MAX", 6)
    monkeypatch.setattr(segment_merging, "SEGMENTS_MAX", 64)


@settings(max_examples=scaled(ci=40, night=1000), deadline=None)
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


def grown_world(count: int, nbytes: int = 10, per_page: int = 64) -> World:
    world = World(per_page, 16)
    for begin in range(1, count + 1, 50):
        some = range(begin, min(begin + 50, count + 1))
        ends = [(n, SegmentEnd(0, 1, nbytes, n, n)) for n in some]
        world.change(partial(committed, ends=ends, now_ms=begin))
    return world


def test_ledgers_are_bounded_by_bytes_and_each_byte_is_copied_a_few_times() -> None:
    world, policy = World(64, 16), replace(POLICY, roll_bytes=1 << 16)
    count, nbytes = scaled(ci=3000, night=20_000), 100
    for number in range(1, count + 1):
        ends = [(number, SegmentEnd(0, 1, nbytes, number, number))]
        world.change(partial(committed, ends=ends, now_ms=number))
        if number % 64 == 0:
            while world.merge(10**6 + world.merges, number, policy):
                world.collect(1 << 40)
    in_pages = world.segments()[: -len(world.head.segments)]
    ledgers = {segment.ledger_id for segment in in_pages}
    full = len(in_pages) * nbytes / (policy.roll_bytes / segment_merging.SMALL_SHARE)
    assert len(ledgers) <= full + 4 * LEDGERS_MIN
    assert world.copied <= 8 * count * nbytes
    assert len(encode_stream(world.head)) < 20_000
    world.check()


def outlook(world: World, policy: NamespaceMetadata = POLICY, now_ms: int = 10**9) -> str:
    question = partial(explain_merging, policy=policy, now_ms=now_ms)
    return world.nodes.ask(world.head, question).reason


def test_what_is_merged_and_why_not_is_said_with_numbers() -> None:
    assert "are few" in outlook(grown_world(100))
    world = grown_world(128)
    assert outlook(world).startswith("segments 1 to 64 on 64 ledgers, 640 B together, become one")
    assert "64 of them with records younger than 5" in outlook(world, now_ms=200)
    old = replace(POLICY, retention_ms=10**9)
    assert "64 of them near the end of their retention" in outlook(world, old)
    surplus = replace(POLICY, retention_bytes=700)
    assert "near the end" in outlook(world, surplus)
    assert "below 32" in outlook(grown_world(128, nbytes=POLICY.roll_bytes // 8))
    assert "no ledger of older segments is below" in outlook(
        grown_world(128, nbytes=POLICY.roll_bytes // 8)
    )


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


def test_the_document_keeps_what_was_replaced() -> None:
    world = grown_world(300)
    assert world.merge(1000, 5)
    again = decode_stream("s", encode_stream(world.head))
    assert again == world.head
    assert again.pages.replaced
    assert {(one.replaced_ms, one.first) for one in again.pages.replaced} >= {(5, 1)}
    assert world.nodes.ask(again, lambda s: s.names(7)), "it was made on this ledger"
    assert world.nodes.ask(again, lambda s: s.segment_on(7)).number == 7  # type: ignore[union-attr]
    together = world.nodes.ask(again, lambda s: s.together_at(Position(3, 0, 0), 100))
    assert [segment.number for segment in together] == list(range(3, 103))


# What is copied


def plan_of(*sizes: tuple[int, ...]) -> tuple[MergePlan, list[bytes]]:
    """Returns a plan of segments, one for each tuple with the records of its entries."""
    segments, payloads, sequence = list[Segment](), list[bytes](), 0
    for number, counts in enumerate(sizes, 1):
        entries, at = list[bytes](), 0
        for count in counts:
            is_committed = number % 2 == 0
            first = at if is_committed else sequence + at
            entries.append(
                encode([b"x"] * count, first_sequence=first, append_time_ms=1,
                       is_sequence_in_segment=is_committed)
            )  # fmt: skip
            at += count
        end = SegmentEnd(len(counts) - 1, at, sum(map(len, entries)), 1, 1)
        segments.append(Segment(number, number, sequence, 1).sealed(end, 1))
        payloads += entries
        sequence += at
    return MergePlan(tuple(segments), len(segments)), payloads


def copied(plan: MergePlan, payloads: list[bytes]) -> None:
    check = MergeCheck(plan)
    for payload in payloads:
        check.add(payload)
    check.end()


def test_a_copy_is_checked_entry_by_entry() -> None:
    plan, payloads = plan_of((3, 2), (1,), (4, 4, 4), (2, 2))
    copied(plan, payloads)
    assert (plan.entries, plan.nbytes) == (len(payloads), sum(map(len, payloads)))
    for wrong, error in (
        (payloads[1:], "begins at sequence 3"),
        (payloads[:-1], "segment 4 has 1 entries, 2 by its stream"),
        ([*payloads, payloads[-1]], "more entries"),
        ([payloads[0], payloads[0], *payloads[2:]], "begins at sequence 0, 3 records"),
        ([*payloads[:2], payloads[6], *payloads[3:]], "segment 2 has 2 records"),
    ):
        with pytest.raises(InvalidArgument, match=error):
            copied(plan, wrong)


def test_a_long_search_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_merging, "LOOKED_MAX", 50)
    world, policy = World(8, 4), replace(POLICY, roll_bytes=1 << 16)
    for number in range(1, 400):
        nbytes = 10_000 if number % 8 == 0 and number < 300 else 10
        ends = [(number, SegmentEnd(0, 1, nbytes, number, number))]
        world.change(partial(committed, ends=ends, now_ms=number))
    since, looks = 0, 0
    plan: MergePlan | None = None
    while plan is None:
        look = partial(explain_merging, policy=policy, now_ms=10**9, since=since)
        reads = world.nodes.reads
        found = world.nodes.ask(world.head, look)
        assert world.nodes.reads - reads < 30
        assert found.plan is not None or found.since > since
        plan, since, looks = found.plan, found.since, looks + 1
    assert looks > 4
    assert plan.first > 296
