"""What is copied is checked entry by entry."""

from __future__ import annotations

import pytest

from ledger.errors import InvalidArgument
from stream.core.entry.encoder import encode
from stream.core.merge_check import MergeCheck
from stream.core.metadata.segments import Segment, SegmentEnd
from stream.core.segment_merging import (
    MergePlan,
)


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
