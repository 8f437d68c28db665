"""The pause before a writer uses a bookie that failed again."""

from __future__ import annotations

from ledger.core.bookie_backoff import PAUSE_S_MAX, BookieBackoff


def _changes(backoff: BookieBackoff, holds_s: float, until_s: float) -> int:
    """Returns how often a bookie is used again that fails `holds_s` seconds after each use."""
    now_s, count = 0.0, 0
    while now_s < until_s:
        now_s += holds_s
        backoff.failed("slow", now_s)
        while backoff.is_resting("slow", now_s):
            now_s += 0.25
        backoff.taken("slow", now_s)
        count += 1
    return count


def test_a_bookie_that_stays_slow_is_rarely_used_again() -> None:
    day_s = 86_400
    assert _changes(BookieBackoff(60), 10.0, day_s) < day_s / PAUSE_S_MAX + 20


def test_a_bookie_that_is_restarted_occasionally_is_used_again_at_once() -> None:
    backoff = BookieBackoff(60)
    for now_s in (100.0, 200.0, 300.0):
        backoff.failed("b", now_s)
        assert not backoff.is_resting("b", now_s)
        backoff.taken("b", now_s + 5)


def test_a_bookie_that_works_long_enough_starts_again_without_a_pause() -> None:
    backoff = BookieBackoff(60)
    backoff.failed("b", 0)
    for now_s, pause_s in ((10, 1), (20, 2), (30, 4)):
        backoff.taken("b", now_s - 5)
        backoff.failed("b", now_s)
        assert backoff.is_resting("b", now_s + pause_s - 0.1)
        assert not backoff.is_resting("b", now_s + pause_s)
    backoff.taken("b", 40)
    backoff.failed("b", 101)
    assert not backoff.is_resting("b", 101)
    backoff.taken("b", 101)
    backoff.failed("b", 102)
    assert backoff.is_resting("b", 102.9)
    assert not backoff.is_resting("b", 103)


def test_other_bookies_and_those_that_failed_before_their_use_do_not_wait() -> None:
    backoff = BookieBackoff(60)
    backoff.failed("b", 0)
    backoff.failed("b", 1)
    assert not backoff.is_resting("b", 1)
    assert not backoff.is_resting("other", 1)
