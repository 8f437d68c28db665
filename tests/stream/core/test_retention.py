"""What a policy drops and when, checked against the simplest form of the rules."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import InvalidArgument
from stream.core.metadata.documents import DOCUMENT_BYTES_MAX
from stream.core.metadata.format import decode_stream, encode_stream
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.page_format import decode_page, paged
from stream.core.metadata.streams import Segment, SegmentEnd, SegmentState, StreamMetadata
from stream.core.position import BEGINNING, Position
from stream.core.retention import (
    Cause,
    Verdict,
    explain,
    explain_deleted,
    retained,
)
from stream.core.trash import purged, trashed, untruncated

HOUR = 3_600_000


def policy(**settings: object) -> NamespaceMetadata:
    return replace(NamespaceMetadata(name="n"), **settings)  # type: ignore[arg-type]


def stream_of(sizes: list[int], *, is_open: bool = False) -> StreamMetadata:
    """Returns a stream whose segment n has one record of these bytes, written at n seconds."""
    stream = StreamMetadata(name="s", created_ms=0).taken_over()
    for number, nbytes in enumerate(sizes, 1):
        end = SegmentEnd(0, 1, nbytes, 1000 * number, 1000 * number)
        stream = stream.begun(1, number, 0).sealed(1, end, 0)
    return stream.begun(1, 1000, 0) if is_open else stream


_policies = st.builds(
    policy,
    retention_ms=st.none() | st.integers(0, 10_000),
    retention_bytes=st.none() | st.integers(0, 500),
    retention_cursors=st.sampled_from([(), ("a",), ("a", "b"), ("gone",), ("a", "gone")]),
    trash_ms=st.sampled_from([0, 1, 2000, 5000]),
)
_cursors = st.fixed_dictionaries(
    {},
    optional={
        name: st.builds(Position, st.integers(0, 9), st.integers(0, 2), st.just(0))
        for name in ("a", "b", "c")
    },
)


@given(
    sizes=st.lists(st.integers(1, 100), max_size=8),
    is_open=st.booleans(),
    rules=_policies,
    cursors=_cursors,
    now_ms=st.integers(0, 12_000),
    truncations=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 9000)), max_size=3),
)
def test_retention_keeps_the_promised_segments_and_no_more(
    sizes: list[int],
    is_open: bool,
    rules: NamespaceMetadata,
    cursors: dict[str, Position],
    now_ms: int,
    truncations: list[tuple[int, int]],
) -> None:
    stream = stream_of(sizes, is_open=is_open)
    for number, at_ms in sorted(truncations, key=lambda truncation: truncation[1]):
        if 0 < number <= len(sizes):
            stream = stream.truncated(Position(number, 1, 0), at_ms)
    plan = explain(stream, rules, cursors, now_ms)
    begin = twin_begin(stream, sizes, rules, cursors, now_ms)
    assert plan.begin == begin
    after = retained(stream, plan)
    assert after.truncated_to == begin
    # Trash: segments dropped long enough ago are garbage; all others can be restored.
    marked = stream.truncated(begin, now_ms)
    due = [s.number for s in marked.dropped() if now_ms - s.dropped_ms >= rules.trash_ms]
    late = [s.number for s in marked.dropped() if now_ms - s.dropped_ms < rules.trash_ms]
    if late:
        due = [number for number in due if number < min(late)]
    assert [segment.number for segment in plan.purged] == due
    assert after.garbage == tuple(due)  # ledger n is segment n here
    assert [s.number for s in after.segments] == [
        s.number for s in stream.segments if s.number not in due
    ]
    # Each segment is treated as the plan says.
    assert [planned.number for planned in plan.segments] == [s.number for s in stream.segments]
    for planned, segment in zip(plan.segments, stream.segments, strict=True):
        assert planned.reason
        is_dropped_now = marked.is_dropped(segment) and not stream.is_dropped(segment)
        assert (planned.verdict is Verdict.DROP) == is_dropped_now
        assert planned.is_purged == (segment.number in due)
    again = explain(after, rules, cursors, now_ms)
    assert not again.dropped
    assert not again.purged
    assert retained(after, again) == after


def twin_begin(
    stream: StreamMetadata,
    sizes: list[int],
    rules: NamespaceMetadata,
    cursors: dict[str, Position],
    now_ms: int,
) -> Position:
    """Returns the first segment that the twin keeps.

    A segment may be dropped if all earlier ones may, if it is old or the later ones suffice, and
    if no cursor needs it; a missing cursor needs every segment.
    """
    begin = stream.truncated_to
    for number in range(1, len(sizes) + 1):
        end = Position(number, 1, 0)
        if end <= stream.truncated_to:
            continue
        is_old = rules.retention_ms is not None and now_ms - 1000 * number > rules.retention_ms
        is_surplus = (
            rules.retention_bytes is not None and sum(sizes[number:]) >= rules.retention_bytes
        )
        is_needed = any(
            name not in cursors or cursors[name] < end for name in rules.retention_cursors
        )
        if is_needed or not (is_old or is_surplus):
            return begin
        begin = end
    return begin


@given(
    sizes=st.lists(st.integers(1, 100), max_size=6),
    rules=_policies,
    cursors=_cursors,
    now_ms=st.integers(0, 12_000),
)
def test_segments_are_dropped_at_the_due_time_and_not_before(
    sizes: list[int], rules: NamespaceMetadata, cursors: dict[str, Position], now_ms: int
) -> None:
    plan = explain(stream_of(sizes), rules, cursors, now_ms)
    stream = retained(stream_of(sizes), plan)
    plan = explain(stream, rules, cursors, now_ms)
    if plan.next_ms is None:
        later = explain(stream, rules, cursors, 1 << 50)
        assert retained(stream, later) == stream
        return
    before = explain(stream, rules, cursors, plan.next_ms - 1)
    assert retained(stream, before) == stream
    assert retained(stream, explain(stream, rules, cursors, plan.next_ms)) != stream


def test_without_retention_nothing_is_dropped() -> None:
    plan = explain(stream_of([1, 2, 3]), policy(), {}, 1 << 60)
    assert plan.begin == BEGINNING
    assert {planned.cause for planned in plan.segments} == {Cause.NO_LIMIT}


def test_a_segment_without_a_known_time_is_as_young_as_its_seal() -> None:
    stream = StreamMetadata(name="s", created_ms=0).taken_over().begun(1, 5, 100)
    stream = stream.sealed(1, SegmentEnd(0, 1, 10), 50_000)
    assert explain(stream, policy(retention_ms=1000), {}, 51_000).begin == BEGINNING
    assert explain(stream, policy(retention_ms=1000), {}, 51_001).begin == Position(1, 1, 0)


def test_reasons_are_text_with_numbers() -> None:
    stream = stream_of([3 << 20, 2 << 20, 1 << 20], is_open=True)
    now_ms = 2 * HOUR
    kept = explain(stream, policy(retention_ms=24 * HOUR, retention_bytes=1 << 30), {}, now_ms)
    assert [planned.reason for planned in kept.segments] == [
        "newest record 1 h 59 min old, retention_ms keeps 1 d; "
        "3.00 MiB sealed behind it, retention_bytes keeps 1.00 GiB",
        "newest record 1 h 59 min old, retention_ms keeps 1 d; "
        "1.00 MiB sealed behind it, retention_bytes keeps 1.00 GiB",
        "newest record 1 h 59 min old, retention_ms keeps 1 d; "
        "0 B sealed behind it, retention_bytes keeps 1.00 GiB",
        "it is open: only sealed segments are dropped",
    ]
    assert kept.segments[0].due_ms == 1000 + 24 * HOUR + 1
    rules = policy(retention_ms=HOUR, retention_cursors=("billing",), trash_ms=HOUR)
    gone = explain(stream, rules, {"billing": Position(2, 0, 0)}, now_ms)
    assert [planned.reason for planned in gone.segments] == [
        "newest record 1 h 59 min old, over retention_ms of 1 h; then 1 h in the trash",
        "cursor 'billing' is at 2:0:0, not behind it",
        "cursor 'billing' is at 2:0:0, not behind it",
        "it is open: only sealed segments are dropped",
    ]
    after = retained(stream, gone)
    in_trash = explain(after, rules, {"billing": Position(2, 0, 0)}, now_ms + 60_000)
    assert in_trash.segments[0].reason == (
        "truncated 1 min ago, the trash keeps 1 h: 59 min left to restore it"
    )
    missing = explain(stream, rules, {"other": Position(9, 0, 0)}, now_ms)
    assert missing.segments[0].reason == (
        "cursor 'billing' of retention_cursors does not exist, or cannot be read: all is kept "
        "until it is created or removed from the setting"
    )
    at_once = explain(stream, policy(retention_bytes=1 << 20, trash_ms=0), {}, now_ms)
    assert at_once.segments[0].reason == (
        "3.00 MiB sealed behind it, retention_bytes wants 1.00 MiB; deleted at once (trash_ms is 0)"
    )


def test_a_deleted_stream_waits_for_the_end_of_its_window() -> None:
    stream = trashed(stream_of([1, 2], is_open=True), 10_000)
    early = explain_deleted(stream, policy(trash_ms=5000), 14_999)
    assert {planned.verdict for planned in early.segments} == {Verdict.IN_TRASH}
    assert (early.next_ms, early.deleted_ms) == (15_000, 10_000)
    due = explain_deleted(stream, policy(trash_ms=5000), 15_000)
    assert [planned.number for planned in due.purged] == [1, 2, 3]
    assert due.segments[0].reason == "deleted 5 s ago, the trash keeps 5 s"


@given(
    st.lists(
        st.tuples(st.sampled_from(["truncate", "untruncate", "purge"]), st.integers(0, 7)),
        max_size=12,
    )
)
def test_truncated_segments_are_restored_and_purged_ones_are_not(
    steps: list[tuple[str, int]],
) -> None:
    """The twin is the first record that readers see, and the first record still stored."""
    stream, first_seen, first_there = stream_of([5] * 6), 1, 1
    for now_ms, (what, number) in enumerate(steps):
        if what == "truncate":
            if number <= 6:
                stream = stream.truncated(Position(number, 1, 0), now_ms)
                first_seen = max(first_seen, number + 1)
        elif what == "untruncate":
            stream = untruncated(stream, None)
            first_seen = first_there
        else:
            through = min(number, first_seen - 1)
            stream = purged(stream, through)
            first_there = max(first_there, through + 1)
        assert [s.number for s in stream.segments] == list(range(first_there, 7))
        assert [s.number for s in stream.live()] == list(range(first_seen, 7))
        for segment in stream.segments:
            assert (segment.dropped_ms >= 0) == stream.is_dropped(segment)


def test_a_document_that_an_earlier_release_filled_is_truncated_and_deleted() -> None:
    now_ms, rng, count = 1_700_000_000_000, random.Random(3), 34_000
    segments = tuple(
        Segment(
            n, (n << 20) + rng.randrange(1 << 20), n - 1, now_ms, SegmentState.SEALED, 0, 1, 100,
            now_ms, now_ms, now_ms, rng.randrange(now_ms), rng.randrange(now_ms),
        )
        for n in range(1, count + 1)
    )  # fmt: skip
    full = StreamMetadata(
        name="s", created_ms=now_ms, segments=segments, next_sequence=count, next_segment=count + 1
    )
    data = encode_stream(full)
    assert 900_000 < len(data) <= DOCUMENT_BYTES_MAX, "as large as a document may be"
    full = decode_stream("s", data)
    rules = policy(retention_bytes=100 * 5_000)
    after, made = paged(retained(full, explain(full, rules, {}, now_ms)), "n/s~1")
    assert after.truncated_to == segments[count - 5_001].end
    assert len(encode_stream(after)) < 10_000
    assert after.pages.marks == ((count - 5_000, now_ms),)
    loaded = {page.run.digest: decode_page(page.run, page.data) for page in made}
    known = replace(after, pages=replace(after.pages, loaded=loaded))
    back, _ = paged(untruncated(known, Position(30, 0, 0)), "n/s~1")
    assert (back.truncated_to, back.pages.marks) == (Position(30, 0, 0), ((29, now_ms),))
    assert len(encode_stream(back)) < 10_000
    encode_stream(trashed(full, now_ms))


def test_purged_segments_do_not_appear_again() -> None:
    stream = stream_of([1, 1, 1]).truncated(Position(3, 1, 0), 5)
    for through in (2, 3):  # 3: no segment is left
        left = purged(stream, through)
        assert len(untruncated(left, None).live()) == len(left.segments)
        with pytest.raises(InvalidArgument, match="was purged and cannot be restored"):
            untruncated(left, Position(1, 0, 0))
