"""Segments in pages: everything that is asked of a stream is as if they were in one list."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.errors import LedgerError, MetadataConflict, MetadataCorrupt
from stream.core.metadata.format import decode_stream, encode_stream
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.page_format import decode_page, paged
from stream.core.metadata.pages import MARKS_MAX, NewPage, Pages, PagesNeeded, page_name
from stream.core.metadata.segments import Run, Segment, SegmentEnd, Span
from stream.core.metadata.streams import StreamMetadata
from stream.core.position import Position, Truncated
from stream.core.retention import RetentionPlan, explain, retained, size_shares
from stream.core.sinks import committed
from stream.core.trash import (
    drained,
    purged,
    purged_whole,
    trashed,
    undeleted,
    untruncated,
)
from tests.effort import scaled

T = TypeVar("T")

POLICIES = (
    NamespaceMetadata(name="n", created_ms=0, retention_ms=40, trash_ms=30),
    NamespaceMetadata(name="n", created_ms=0, retention_bytes=60, trash_ms=0),
    NamespaceMetadata(name="n", created_ms=0, retention_ms=90, retention_bytes=90, trash_ms=50),
    NamespaceMetadata(name="n", created_ms=0),
)


class PageNodes:
    """Pages as a store has them, and a stream whose document names them."""

    def __init__(self, segments_per_page: int = 2, runs_per_page: int = 2) -> None:
        self.sizes = segments_per_page, runs_per_page
        self.nodes: dict[str, NewPage] = {}
        self.reads = 0
        self._decoded: dict[NewPage, tuple[Span, ...]] = {}

    def stored(self, stream: StreamMetadata) -> StreamMetadata:
        """Returns the stream as a reader decodes it after it was stored."""
        head, made = paged(stream, "n/s~1", *self.sizes)
        for page in made:
            self.nodes[page_name(page.run)] = page
        for name in head.pages.dead:
            del self.nodes[name]
        return decode_stream(stream.name, encode_stream(head))

    def ask(self, stream: StreamMetadata, question: Callable[[StreamMetadata], T]) -> T:
        loaded: dict[str, tuple[Span, ...]] = {}
        while True:
            try:
                return question(stream.with_pages_read(loaded, set()))
            except PagesNeeded as needed:
                for _, run in needed.needed:
                    self.reads += 1
                    loaded[run.digest] = self._decode(run)

    def _decode(self, run: Run) -> tuple[Span, ...]:
        """Decodes the page of this run, once for all that is asked."""
        page = NewPage(run, self.nodes[page_name(run)].data)
        if page not in self._decoded:
            self._decoded[page] = decode_page(*page)
        return self._decoded[page]

    def expanded(
        self, stream: StreamMetadata, spans: Callable[[StreamMetadata], Sequence[Span]]
    ) -> list[Segment]:
        """Returns the single segments of some spans."""

        def expand(known: StreamMetadata) -> list[Segment]:
            found = [
                part for span in spans(known) for part in known.pages.split(span, lambda _: True)
            ]
            assert all(isinstance(one, Segment) for one in found)
            return [one for one in found if isinstance(one, Segment)]

        return self.ask(stream, expand)


def end_of(rng: random.Random, now_ms: int) -> SegmentEnd:
    records = rng.randrange(1, 8)
    event_ms = rng.choice((-1, rng.randrange(1000)))
    return SegmentEnd(
        rng.randrange(records), records, rng.randrange(1, 30), now_ms, now_ms, event_ms, event_ms
    )


def grown(
    stream: StreamMetadata, rng: random.Random, now_ms: int, ledger_id: int
) -> StreamMetadata:
    """Returns the stream after its writer rolled, or a sink committed a few ledgers."""
    if rng.random() < 0.2:
        if stream.open_segment is not None:
            stream = stream.sealed(stream.epoch, end_of(rng, now_ms), now_ms)
        ends = [(ledger_id + 1 + i, end_of(rng, now_ms)) for i in range(rng.randrange(1, 4))]
        return committed(stream, ends, now_ms)
    if rng.random() < 0.05:
        stream = stream.taken_over()
    if stream.open_segment is not None:
        stream = stream.sealed(stream.epoch, end_of(rng, now_ms), now_ms)
    if rng.random() < 0.02:
        stream = stream.continued_after(stream.restores + 1)
    return stream.begun(stream.epoch, ledger_id, now_ms)


def a_position(rng: random.Random, stream: StreamMetadata) -> Position:
    segment = rng.choice(stream.segments) if stream.segments else None
    if segment is None or segment.is_open:
        return Position(rng.randrange(stream.next_segment + 1), rng.randrange(2), 0)
    return rng.choice((segment.end, Position(segment.number, rng.randrange(8), rng.randrange(2))))


Change = Callable[[StreamMetadata], StreamMetadata]


def a_change(rng: random.Random, plain: StreamMetadata, now_ms: int, ledger_id: int) -> Change:
    kind = rng.random()
    if kind < 0.72:
        seed = rng.random()
        return lambda s: grown(s, random.Random(seed), now_ms, ledger_id)
    position = a_position(rng, plain)
    if kind < 0.80:
        return lambda s: s.truncated(position, now_ms)
    if kind < 0.84:
        back = rng.choice((None, position))
        return lambda s: untruncated(s, back)
    if kind < 0.90:
        through = rng.randrange(plain.last_dropped() + 1)
        return lambda s: purged(s, through)
    policy = rng.choice(POLICIES)
    return lambda s: retained(s, explain(s, policy, {}, now_ms))


def attempt(change: Change, stream: StreamMetadata) -> StreamMetadata | str:
    try:
        return change(stream)
    except (PagesNeeded, AssertionError):
        raise
    except LedgerError as error:
        return f"{type(error).__name__}: {error}"


def refusal(stream: StreamMetadata, at: Position) -> str:
    try:
        stream.check_position(at, is_given=True)
    except Truncated as error:
        return str(error)
    return ""


def check_same(nodes: PageNodes, paged_: StreamMetadata, plain: StreamMetadata) -> None:
    """Checks that the stream with pages is the plain one, for all that can be asked of it."""
    assert nodes.expanded(paged_, lambda s: tuple(s.spans())) == list(plain.segments)
    assert nodes.expanded(paged_, lambda s: s.dropped()) == list(plain.dropped())
    assert nodes.expanded(paged_, lambda s: s.live()) == list(plain.live())
    assert replace(paged_, segments=(), pages=Pages()) == replace(plain, segments=())
    if plain.segments:
        assert paged_.segments == plain.segments[-len(paged_.segments) :]
    assert len(paged_.segments) < 2 * nodes.sizes[0]
    assert all(len(level) < 2 * nodes.sizes[1] for level in paged_.pages.levels)
    # Pages that no segment is in any more are removed.
    named = {page_name(run) for run in paged_.pages.roots}
    assert named <= nodes.nodes.keys()
    kept = [page.run for page in nodes.nodes.values()]
    assert all(run.last_number >= paged_.pages.first for run in kept)


def check_answers(
    nodes: PageNodes, paged_: StreamMetadata, plain: StreamMetadata, rng: random.Random
) -> None:
    at = a_position(rng, plain)
    time_ms = rng.randrange(1, 400)
    ledger_id = rng.randrange(1, 500)
    questions: tuple[Callable[[StreamMetadata], object], ...] = (
        lambda s: s.first_available,
        lambda s: s.segment_at(at),
        lambda s: s.last_time_ms,
        lambda s: s.last_dropped(),
        lambda s: s.names(ledger_id),
        lambda s: s.segment_on(ledger_id),
        lambda s: s.listed(time_ms % 50, 7),
        lambda s: s.first_where(lambda span: span.is_open or span.last_time_ms >= time_ms),
        lambda s: s.first_where(lambda span: span.is_open or not 0 <= span.event_max_ms < time_ms),
        lambda s: s.last_where(lambda span: span.first_sequence <= time_ms),
        lambda s: refusal(s, at),
    )
    for question in questions:
        assert nodes.ask(paged_, question) == question(plain)


def check_plans(
    nodes: PageNodes, paged_: StreamMetadata, plain: StreamMetadata, now_ms: int
) -> None:
    for policy in POLICIES:
        found: RetentionPlan = nodes.ask(
            paged_, partial(explain, policy=policy, cursors={}, now_ms=now_ms)
        )
        wanted = explain(plain, policy, {}, now_ms)
        assert (found.begin, found.purge_through, found.next_ms, found.is_marked) == (
            wanted.begin, wanted.purge_through, wanted.next_ms, wanted.is_marked,
        )  # fmt: skip
        for part in ("segments", "dropped", "purged"):
            some, all_ = getattr(found, part), getattr(wanted, part)
            for name in ("count", "records", "nbytes"):
                assert sum(getattr(one, name) for one in some) == sum(
                    getattr(one, name) for one in all_
                )
        ask = partial(explain, policy=policy, cursors={}, now_ms=now_ms, in_short=True)
        short = nodes.ask(paged_, ask)
        assert (short.begin, short.purge_through) == (wanted.begin, wanted.purge_through)
        assert (short.dropped, short.purged) == (found.dropped, found.purged)


@settings(max_examples=scaled(ci=40, night=1000), deadline=None)
@given(st.integers(0, 1 << 32), st.integers(2, 4), st.integers(2, 4))
def test_a_stream_with_pages_is_the_same_stream(seed: int, segments: int, runs: int) -> None:
    rng, nodes = random.Random(seed), PageNodes(segments, runs)
    plain = StreamMetadata(name="s", created_ms=1).taken_over()
    head = nodes.stored(plain)
    for now_ms in range(1, 60):
        change = a_change(rng, plain, now_ms, ledger_id=4 * now_ms)
        wanted = attempt(change, plain)
        found = nodes.ask(head, partial(attempt, change))
        if isinstance(wanted, str) or isinstance(found, str):
            assert found == wanted
            continue
        plain, head = wanted, nodes.stored(found)
        check_same(nodes, head, plain)
        check_answers(nodes, head, plain, rng)
        check_plans(nodes, head, plain, now_ms + rng.randrange(60))


@settings(max_examples=scaled(ci=20, night=500), deadline=None)
@given(st.integers(0, 1 << 32))
def test_partitions_with_pages_share_their_size_alike(seed: int) -> None:
    rng = random.Random(seed)
    stores = [PageNodes() for _ in range(3)]
    plain = [StreamMetadata(name=f"s#{i}", created_ms=1).taken_over() for i in range(3)]
    for now_ms in range(1, 90):
        i = rng.randrange(3)
        plain[i] = grown(plain[i], rng, now_ms, 4 * now_ms)
        if rng.random() < 0.1:
            at = plain[i].segments[len(plain[i].segments) // 3]
            plain[i] = plain[i].truncated(Position(at.number, 0, 0), now_ms)
    heads = [nodes.stored(stream) for nodes, stream in zip(stores, plain, strict=True)]
    loaded: dict[str, tuple[Span, ...]] = {}
    wanted = size_shares(plain, 300)
    while True:
        known = [s.with_pages_read(loaded, set()) for s in heads]
        try:
            found = size_shares(known, 300)
        except PagesNeeded as needed:
            for _, run in needed.needed:
                page = next(
                    nodes.nodes[page_name(run)] for nodes in stores if page_name(run) in nodes.nodes
                )
                loaded[run.digest] = decode_page(run, page.data)
            continue
        break
    for name, share in wanted.items():
        assert found[name].drop_through == share.drop_through


def long_stream(segments: int, nodes: PageNodes) -> StreamMetadata:
    rng = random.Random(7)
    head = nodes.stored(StreamMetadata(name="s", created_ms=1).taken_over())
    for number in range(segments):
        ends = [(number + 1, end_of(rng, number))]
        head = nodes.stored(nodes.ask(head, partial(committed, ends=ends, now_ms=number)))
    return head


def test_a_document_stays_small_and_a_question_needs_a_page_of_each_level() -> None:
    nodes = PageNodes(8, 4)
    sizes, reads = [], []
    head = StreamMetadata(name="s", created_ms=1).taken_over()
    rng = random.Random(7)
    for step in range(30):
        ends = [(1000 * step + i, end_of(rng, step)) for i in range(100)]
        head = nodes.stored(nodes.ask(head, partial(committed, ends=ends, now_ms=5)))
        before = nodes.reads
        middle = Position(head.next_segment // 2, 0, 0)
        assert nodes.ask(head, partial(StreamMetadata.segment_at, position=middle)) is not None
        sizes.append(len(encode_stream(head)))
        reads.append(nodes.reads - before)
    assert max(reads) <= len(head.pages.levels) <= 5
    assert max(sizes) < 3 * sizes[0]


def test_equal_streams_make_equal_pages_and_different_ones_never_share_a_name() -> None:
    stream = long_stream(9, PageNodes(100))
    one, other = (paged(stream, "n/s~1", 2, 2)[1] for _ in range(2))
    assert one == other
    changed = replace(stream.segments[0], ledger_id=99)
    third = paged(replace(stream, segments=(changed, *stream.segments[1:])), "n/s~1", 2, 2)[1]
    assert not {page_name(p.run) for p in one[:1]} & {page_name(p.run) for p in third[:1]}


def test_a_time_of_truncation_is_never_moved_back_when_marks_are_merged() -> None:
    pages = Pages()
    times: dict[int, int] = {}
    rng, now_ms = random.Random(3), 0
    for number in range(1, 10 * MARKS_MAX):
        now_ms += rng.randrange(100)
        pages, times[number] = pages.marked(number, now_ms), now_ms
    assert len(pages.marks) == MARKS_MAX
    for number, time_ms in times.items():
        mark = next(mark for mark in pages.marks if number <= mark[0])
        assert mark[1] >= time_ms


def test_restoring_a_part_keeps_the_times_of_the_others() -> None:
    pages = Pages(marks=((4, 10), (9, 20)))
    assert pages.unmarked(6).marks == ((4, 10), (6, 20))
    assert pages.unmarked(4).marks == ((4, 10),)
    assert pages.unmarked(0).marks == ()


def test_a_deleted_stream_is_restored_or_drained_with_its_pages() -> None:
    nodes = PageNodes()
    stream = long_stream(30, nodes)
    deleted = nodes.stored(trashed(stream, 50))
    back = undeleted(deleted, "t", deleted.epoch + 1, 0)
    assert len(nodes.expanded(back, lambda s: tuple(s.spans()))) == 30
    gone, ledgers = nodes.stored(purged_whole(deleted)), set[int]()
    while gone.has_ledgers:
        ledgers |= set(gone.garbage)
        gone = nodes.stored(nodes.ask(replace(gone, garbage=()), drained))
    assert ledgers == set(range(1, 31))
    assert not nodes.nodes


def test_a_page_that_is_not_the_named_one_is_damage() -> None:
    nodes = PageNodes()
    stream = long_stream(9, nodes)
    run = stream.pages.roots[-1]
    data = nodes.nodes[page_name(run)].data
    with pytest.raises(MetadataCorrupt, match="have digest"):
        decode_page(run, data[:-1])
    other = nodes.nodes[page_name(stream.pages.roots[-2])]
    with pytest.raises(MetadataCorrupt, match="not"):
        decode_page(run, other.data)
    with pytest.raises(MetadataCorrupt, match="other segments"):
        decode_page(replace(run, records=run.records + 1), data)


def test_segments_that_are_not_truncated_cannot_be_purged_from_pages() -> None:
    nodes = PageNodes()
    stream = long_stream(9, nodes)
    with pytest.raises(MetadataConflict, match="not truncated"):
        nodes.ask(stream, lambda s: purged(s, 2))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"folder": "../n/s"}, "folder"),
        ({"folder": "n/.."}, "folder"),
        ({"first": -1}, "whole number"),
        ({"levels": [[]] * 33}, "levels"),
        ({"columns": ["digest"]}, "columns"),
        ({"marks": [[1, "x"]]}, "whole number"),
        ({"more": 1}, "fields"),
    ],
)
def test_damaged_names_of_pages_are_refused(change: dict[str, object], error: str) -> None:
    import zlib

    document = json.loads(zlib.decompress(encode_stream(long_stream(9, PageNodes()))))
    document["pages"] |= change
    with pytest.raises(MetadataCorrupt, match=error):
        decode_stream("s", json.dumps(document).encode())


def test_a_run_that_does_not_continue_is_refused() -> None:
    stream = long_stream(9, PageNodes())
    level = stream.pages.levels[0]
    broken = replace(level[-1], next_sequence=level[-1].next_sequence + 1)
    with pytest.raises(MetadataCorrupt, match="ends at"):
        replace(stream, pages=replace(stream.pages, levels=((*level[:-1], broken),)))
    with pytest.raises(MetadataCorrupt, match="in pages"):
        replace(stream, segments=())
    assert isinstance(level[0], Run)
