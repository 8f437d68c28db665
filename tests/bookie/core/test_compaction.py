"""Which logs are rewritten, when, and how fast; against the plainest form of each rule."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.core.compaction import (
    CompactionClock,
    CompactionKind,
    CompactionOptions,
    LogUse,
    TokenBucket,
    choose_logs,
    ratio_histogram,
)
from ledger.errors import InvalidArgument

NONE, MINOR, MAJOR = CompactionKind.NONE, CompactionKind.MINOR, CompactionKind.MAJOR

uses = st.lists(
    st.builds(LogUse, st.integers(1, 50), st.integers(0, 1000), st.integers(0, 1100)),
    unique_by=lambda use: use.log_id,
)


@given(uses, st.floats(0, 1), st.integers(0, 2000))
def test_chosen_are_those_below_the_ratio_and_the_emptiest_come_first(
    logs: list[LogUse], ratio_max: float, full_bytes: int
) -> None:
    def ratio(use: LogUse) -> float:
        size = max(1, use.bytes_total, full_bytes)
        return use.bytes_live / size if use.bytes_live < size else 1.0

    chosen = choose_logs(logs, ratio_max, full_bytes=full_bytes)
    assert {use.log_id for use in chosen} == {use.log_id for use in logs if ratio(use) < ratio_max}
    for one, next_one in pairwise(chosen):
        assert (ratio(one), one.log_id) < (ratio(next_one), next_one.log_id)


@given(uses)
def test_the_histogram_counts_every_log_once(logs: list[LogUse]) -> None:
    counts = ratio_histogram(logs)
    assert len(counts) == 10
    assert sum(counts) == len(logs)
    for i in range(10):
        below = sum(use.ratio < (i + 1) / 10 for use in logs)
        assert sum(counts[: i + 1]) == (len(logs) if i == 9 else below)


steps = st.lists(
    st.tuples(
        st.floats(0, 60),
        st.sampled_from([NONE, MINOR, MAJOR]),
        st.sets(st.sampled_from([MINOR, MAJOR])),
        st.booleans(),
    ),
    max_size=40,
)


@given(steps)
def test_compactions_are_due_at_their_intervals(
    given: list[tuple[float, CompactionKind, set[CompactionKind], bool]],
) -> None:
    options = CompactionOptions(minor_interval_s=30, major_interval_s=100)
    clock = CompactionClock(options, 1000.0)
    now = minor_at = major_at = 1000.0
    for pause, most, suspended, is_forced in given:
        now += pause
        if is_forced:
            expected = most
        elif most is MAJOR and MAJOR not in suspended and now >= major_at + 100:
            expected = MAJOR
        elif most is not NONE and MINOR not in suspended and now >= minor_at + 30:
            expected = MINOR
        else:
            expected = NONE
        assert clock.due(now, most, suspended, is_forced=is_forced) is expected
        if expected is not NONE:
            clock.done(expected, now)
            minor_at = now  # a major one resets both
        if expected is MAJOR:
            major_at = now


def test_a_ratio_of_nothing_switches_a_compaction_off() -> None:
    clock = CompactionClock(CompactionOptions(minor_ratio_max=0, major_ratio_max=0), 0.0)
    assert clock.due(1e9, MAJOR) is NONE


@given(
    st.floats(1, 1000),
    st.floats(0, 500),
    st.lists(st.tuples(st.floats(0, 500), st.floats(0, 3)), min_size=1, max_size=50),
)
def test_no_more_is_taken_than_the_rate_allows(
    rate: float, burst: float, pieces: list[tuple[float, float]]
) -> None:
    now = 5.0
    bucket = TokenBucket(rate, burst, now)
    taken = 0.0
    for amount, idle_s in pieces:
        # Before this piece, all that was taken was paid for.
        assert taken <= burst + rate * (now - 5.0) + 1e-6 * (1 + taken)
        taken += amount
        wait_s = bucket.take(amount, now)
        assert wait_s >= 0
        if not idle_s and not amount:
            assert bucket.take(0, now + wait_s) <= 1e-6
        now += wait_s + idle_s


def test_a_bucket_that_never_rests_reaches_its_rate() -> None:
    bucket = TokenBucket(1000.0, 100.0, 0.0)
    now = 0.0
    for _ in range(1000):
        now += bucket.take(50, now)
    assert now == pytest.approx((1000 * 50 - 100) / 1000)
    assert TokenBucket(0, 0, 0.0).take(1e12, 0.0) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"minor_ratio_max": 1.1},
        {"major_ratio_max": -0.1},
        {"minor_ratio_max": 0.5, "major_ratio_max": 0.4},
        {"minor_interval_s": 0},
        {"bytes_per_s_max": -1},
        {"free_bytes_min": -1},
    ],
)
def test_settings_of_compaction_that_cannot_work_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument):
        CompactionOptions(**wrong)  # type: ignore[arg-type]
