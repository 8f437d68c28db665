"""Clocks that are wrong by a year: what is shown, what is kept, and which clock decides nothing."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.core.clocks import (
    QUIET_MS,
    doubt_of_mark,
    doubt_of_silence,
    doubt_of_store,
    is_ahead,
    is_witnessed,
    known_times,
    moment_text,
)
from stream.core.metadata.namespaces import NamespaceMetadata, should_roll
from stream.core.metadata.streams import SegmentEnd, StreamMetadata
from stream.core.position import Position
from stream.core.retention import Cause, RetentionPlan, Verdict, explain, explain_deleted, retained
from stream.core.trash import trashed

DAY = 86_400_000
YEAR = 365 * DAY
NOW = 1_795_600_000_000  # 2026-11-25


def policy(**settings: object) -> NamespaceMetadata:
    return replace(NamespaceMetadata(name="n"), **settings)  # type: ignore[arg-type]


def stream_of(*stamps: tuple[int, int]) -> StreamMetadata:
    """Returns a stream with a sealed segment for each (time of its creation, newest record)."""
    stream = StreamMetadata(name="s", created_ms=stamps[0][0]).taken_over()
    for number, (created_ms, newest_ms) in enumerate(stamps, 1):
        end = SegmentEnd(0, 1, 100, newest_ms, newest_ms)
        stream = stream.begun(1, number, created_ms).sealed(1, end, created_ms + 1000)
    return stream


def plan_of(stream: StreamMetadata, now_ms: int = NOW, **settings: object) -> RetentionPlan:
    return explain(stream, policy(**{"retention_ms": 7 * DAY, **settings}), {}, now_ms)


def test_a_record_stamped_a_year_ahead_is_kept_and_that_is_explained() -> None:
    plan = plan_of(stream_of((NOW - 20 * DAY, NOW - 20 * DAY), (NOW - DAY, NOW + YEAR)))
    assert [s.verdict for s in plan.segments] == [Verdict.DROP, Verdict.KEEP]
    kept = plan.segments[1]
    assert kept.reason == (
        "newest record stamped 2027-11-25 09:46 UTC, 365 d ahead of this clock, retention_ms "
        "keeps 7 d"
    )
    assert kept.due_ms == NOW + YEAR + 7 * DAY + 1
    [warning] = plan.warnings
    assert warning == (
        "the newest record of segment 2 is stamped 2027-11-25 09:46 UTC, 365 d ahead of this "
        "clock: retention by age keeps it until 2027-12-02 09:46 UTC, later records get the same "
        "time, and lag in seconds is 0. Cure: correct this clock; if it is right, truncate behind "
        "the segment when its records may go, or set retention_bytes, and continue in a new stream"
    )


def test_a_record_stamped_a_year_ago_is_as_old_as_its_segment() -> None:
    """The clock of its writer was a year behind: age alone would drop it at once."""
    stream = stream_of((NOW - DAY, NOW - YEAR))
    assert [s.verdict for s in plan_of(stream).segments] == [Verdict.KEEP]
    assert [s.verdict for s in plan_of(stream, NOW + 7 * DAY).segments] == [Verdict.DROP]


def test_what_was_dropped_by_a_clock_a_year_ahead_is_explained() -> None:
    stream = stream_of((NOW - DAY, NOW - DAY)).truncated(Position(1, 1, 0), NOW + YEAR)
    plan = plan_of(stream, trash_ms=7 * DAY)
    [segment] = plan.segments
    assert (segment.verdict, segment.cause) == (Verdict.IN_TRASH, Cause.TRUNCATED)
    assert segment.reason == (
        "truncated at 2027-11-25 09:46 UTC, 365 d ahead of this clock, the trash keeps 7 d: "
        "372 d left to restore it"
    )
    [warning] = plan.warnings
    assert "the trash keeps it until 2027-12-02 09:46 UTC. Cure: " in warning
    deleted = explain_deleted(trashed(stream_of((NOW - DAY, NOW - DAY)), NOW + YEAR), policy(), NOW)
    assert "was deleted at 2027-11-25 09:46 UTC" in deleted.warnings[0]


def test_usual_times_are_no_reason_for_a_warning() -> None:
    stream = stream_of((NOW - 20 * DAY, NOW - 20 * DAY), (NOW, NOW + DAY // 2))
    assert plan_of(stream).warnings == ()
    dropped = retained(stream, plan_of(stream, trash_ms=DAY))
    assert plan_of(dropped, NOW - DAY // 2, trash_ms=DAY).warnings == ()


def test_a_segment_that_began_in_the_future_is_rolled_at_once() -> None:
    rolls = policy(roll_ms=DAY, roll_bytes=1 << 30)
    assert should_roll(since_ms=NOW + YEAR, nbytes=1, now_ms=NOW, policy=rolls)
    assert not should_roll(since_ms=NOW + YEAR, nbytes=0, now_ms=NOW, policy=rolls)
    assert not should_roll(since_ms=NOW + DAY // 2, nbytes=1, now_ms=NOW, policy=rolls)


@pytest.mark.parametrize(("off_ms", "words"), [(YEAR, "ahead of"), (-YEAR, "behind")])
def test_a_clock_that_the_metadata_store_contradicts_decides_nothing(
    off_ms: int, words: str
) -> None:
    doubt = doubt_of_store(NOW + off_ms, NOW)
    assert doubt is not None
    assert f"365 d {words} that of the metadata store: nothing is dropped or deleted. Cure" in doubt
    assert "--trust-clock" in doubt
    assert doubt_of_store(NOW + off_ms // 400, NOW) is None


def test_a_clock_behind_the_last_sweep_decides_nothing() -> None:
    doubt = doubt_of_mark(NOW - YEAR, NOW)
    assert doubt is not None
    assert "2025-11-25 09:46 UTC, 365 d behind the last sweep of a janitor" in doubt
    assert doubt_of_mark(NOW, -1) is None
    assert doubt_of_mark(NOW, NOW + 1000) is None


def test_silence_names_the_newest_time() -> None:
    text = doubt_of_silence(policy(), NOW + YEAR, NOW)
    assert "2027-11-25 09:46 UTC" in text
    assert "2026-11-25 09:46 UTC, 365 d before" in text


@given(st.integers(-(1 << 62), 1 << 62), st.integers(0, 1 << 45))
def test_a_witness_is_neither_far_behind_nor_ahead(time_ms: int, now_ms: int) -> None:
    assert is_witnessed(now_ms, time_ms) == (now_ms - QUIET_MS <= time_ms <= now_ms + DAY)
    assert is_ahead(time_ms, now_ms) == (time_ms > now_ms + DAY)
    assert re.fullmatch(r"-?\d+ ms|\d{1,4}-\d\d-\d\d \d\d:\d\d UTC", moment_text(time_ms))


def test_the_janitors_own_stamps_are_no_witness() -> None:
    stream = stream_of((1000, 2000)).truncated(Position(1, 1, 0), NOW)
    assert max(known_times(stream)) == 2000
