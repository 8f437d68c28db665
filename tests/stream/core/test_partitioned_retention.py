"""Retention by size of a partitioned stream, checked against a twin that drops one by one."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.streams import SegmentEnd, StreamMetadata
from stream.core.position import Position
from stream.core.retention import Cause, explain, size_shares

Written = list[tuple[int, int]]
"""Bytes of each segment, and the seconds of its newest record."""


def partition_of(name: str, written: Written, *, is_open: bool = False) -> StreamMetadata:
    stream = StreamMetadata(name=name, created_ms=0).taken_over()
    for number, (nbytes, at_s) in enumerate(written, 1):
        end = SegmentEnd(0, 1, nbytes, 1000 * at_s, 1000 * at_s)
        stream = stream.begun(1, number, 0).sealed(1, end, 0)
    return stream.begun(1, 1000, 0) if is_open else stream


def naive(partitions: list[StreamMetadata], retention_bytes: int) -> dict[str, int]:
    """Drops the oldest first segment of a partition while enough bytes remain without it."""
    left = {stream.name: [s for s in stream.live() if not s.is_open] for stream in partitions}
    dropped = dict.fromkeys(left, 0)
    time_ms = dict.fromkeys(left, -1)
    while heads := [name for name in left if left[name]]:
        # A segment cannot be dropped before earlier ones: it is as old as the youngest of them.
        age = {name: max(time_ms[name], left[name][0].newest_ms) for name in heads}
        oldest = min(heads, key=lambda name: (age[name], name))
        rest = sum(s.nbytes for name in left for s in left[name]) - left[oldest][0].nbytes
        if rest < retention_bytes:
            break
        time_ms[oldest] = age[oldest]
        dropped[oldest] = left[oldest].pop(0).number
    return dropped


_written = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 20)), max_size=6)


@given(
    parts=st.lists(st.tuples(_written, st.booleans()), min_size=1, max_size=5),
    retention_bytes=st.integers(0, 600),
)
def test_the_oldest_of_all_partitions_goes_first(
    parts: list[tuple[Written, bool]], retention_bytes: int
) -> None:
    partitions = [
        partition_of(f"s#{number}", written, is_open=is_open)
        for number, (written, is_open) in enumerate(parts)
    ]
    shares = size_shares(partitions, retention_bytes)
    assert {name: share.drop_through for name, share in shares.items()} == naive(
        partitions, retention_bytes
    )
    policy = replace(NamespaceMetadata(name="n"), retention_bytes=retention_bytes)
    plans = [explain(s, policy, {}, 10**6, shares[s.name]) for s in partitions]
    total = sum(segment.nbytes for plan in plans for segment in plan.segments)
    dropped = [segment for plan in plans for segment in plan.dropped]
    kept = total - sum(segment.nbytes for segment in dropped)
    assert kept >= min(total, retention_bytes)
    assert all(s.cause is Cause.SIZE and s.bytes_behind >= retention_bytes for s in dropped)
    if len(partitions) == 1:
        plain = explain(partitions[0], policy, {}, 10**6)
        assert [s.number for s in plain.dropped] == [s.number for s in dropped]


@given(
    parts=st.lists(_written, min_size=2, max_size=4),
    retention_bytes=st.integers(0, 400),
    unread=st.integers(0, 3),
)
def test_a_partition_that_was_not_read_keeps_more(
    parts: list[Written], retention_bytes: int, unread: int
) -> None:
    partitions = [partition_of(f"s#{number}", written) for number, written in enumerate(parts)]
    all_read = size_shares(partitions, retention_bytes)
    gone = partitions.pop(unread % len(partitions)).name
    for name, share in size_shares(partitions, retention_bytes).items():
        assert name != gone
        assert share.drop_through <= all_read[name].drop_through


def test_a_segment_that_is_cut_counts_nothing() -> None:
    old, cut = partition_of("s#0", [(10, 1)]), partition_of("s#1", [(100, 2)])
    assert size_shares([old, cut], 100)["s#0"].drop_through == 1
    cut = replace(cut, truncated_to=Position(1, 0, 1))
    assert size_shares([old, cut], 100)["s#0"].drop_through == 0


def test_the_reason_counts_partitions() -> None:
    partitions = [partition_of("s#0", [(1 << 20, 1)]), partition_of("s#1", [(2 << 20, 2)])]
    policy = replace(NamespaceMetadata(name="n"), retention_bytes=1 << 20)
    shares = size_shares(partitions, 1 << 20)
    first, second = (explain(s, policy, {}, 10_000, shares[s.name]).segments[0] for s in partitions)
    assert first.reason.startswith(
        "2.00 MiB sealed behind it in 2 partitions, retention_bytes wants"
    )
    assert second.reason.startswith("0 B sealed behind it in 2 partitions, retention_bytes keeps")
