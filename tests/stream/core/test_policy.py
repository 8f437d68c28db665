"""When to roll and what to truncate, against the plainest statement of the rules."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stream.core.metadata import SegmentEnd, StreamMetadata
from stream.core.policy import (
    NamespaceMetadata,
    should_prepare,
    should_roll,
    what_to_truncate,
)
from stream.core.position import BEGINNING, Position

POLICY = NamespaceMetadata(name="n", roll_ms=1000, roll_bytes=1 << 16)


def test_a_segment_rolls_by_age_or_size_and_never_empty() -> None:
    for nbytes, now_ms, prepares, rolls in (
        (0, 10**6, False, False),
        (1, 499, False, False),
        (1, 500, True, False),
        (1, 999, True, False),
        (1, 1000, True, True),
        (1 << 15, 0, True, False),
        ((1 << 16) - 1, 0, True, False),
        (1 << 16, 0, True, True),
    ):
        facts = {"since_ms": 0, "nbytes": nbytes, "now_ms": now_ms}
        assert should_prepare(**facts, policy=POLICY) is prepares
        assert should_roll(**facts, policy=POLICY) is rolls


def stream_of(sizes: list[int], *, is_open: bool) -> StreamMetadata:
    """Segments with these bytes; segment n was last written at n seconds."""
    stream = StreamMetadata(name="s", created_ms=0).taken_over()
    for number, nbytes in enumerate(sizes, 1):
        end = SegmentEnd(0, 1, nbytes, 1000 * number, 1000 * number)
        stream = stream.begun(1, number, 0).sealed(1, end, 0)
    return stream.begun(1, 1000, 0) if is_open else stream


@given(
    st.lists(st.integers(1, 100), max_size=8),
    st.booleans(),
    st.none() | st.integers(0, 500),
    st.none() | st.integers(0, 10_000),
    st.integers(0, 12_000),
    st.integers(0, 8),
)
def test_retention_keeps_what_it_promises_and_no_more(
    sizes: list[int],
    is_open: bool,
    retention_bytes: int | None,
    retention_ms: int | None,
    now_ms: int,
    truncated: int,
) -> None:
    stream = stream_of(sizes, is_open=is_open)
    if 0 < truncated <= len(sizes):
        stream = stream.truncated(Position(truncated, 1, 0))
    policy = NamespaceMetadata(name="n", retention_bytes=retention_bytes, retention_ms=retention_ms)
    begin = what_to_truncate(stream, policy, now_ms)
    assert begin >= stream.truncated_to
    # The twin: a segment may go if all before it may, and it is old, or what follows suffices.
    expected = stream.truncated_to
    for number in range(1, len(sizes) + 1):
        if Position(number, 1, 0) <= stream.truncated_to:
            continue
        is_old = retention_ms is not None and now_ms - 1000 * number > retention_ms
        is_surplus = retention_bytes is not None and sum(sizes[number:]) >= retention_bytes
        if not (is_old or is_surplus):
            break
        expected = Position(number, 1, 0)
    assert begin == expected
    after = stream.truncated(begin)
    assert what_to_truncate(after, policy, now_ms) == begin
    assert stream.open_segment is None or stream.open_segment not in after.dropped()


def test_without_retention_nothing_goes() -> None:
    stream = stream_of([1, 2, 3], is_open=False)
    assert what_to_truncate(stream, POLICY, 1 << 60) == BEGINNING
