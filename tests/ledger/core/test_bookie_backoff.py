"""When a bookie that failed under a writer is taken back."""

from __future__ import annotations

from ledger.core.bookie_backoff import PAUSE_S_MAX, BookieBackoff


def _changes(chances: BookieBackoff, holds_s: float, until_s: float) -> int:
    """Returns how often a bookie is used again that fails after this many seconds each time."""
    now_s, count = 0.0, 0
    while now_s < until_s:
        now_s += holds_s
        chances.failed("slow", now_s)
        while chances.is_resting("slow", now_s):
            now_s += 0.25
        chances.taken("slow", now_s)
        count += 1
    return count


def test_a_bookie_that_stays_slow_is_rarely_used_again() -> None:
    day_s = 86_400
    assert _changes(BookieBackoff(60), 10.0, day_s) < day_s / PAUSE_S_MAX + 20


def test_a_bookie_that_is_restarted_occasionally_is_used_again_at_once() -> None:
    chances = BookieBackoff(60)
    for now_s in (100.0, 200.0, 300.0):
        chances.failed("b", now_s)
        assert not chances.is_resting("b", now_s)
        chances.taken("b", now_s + 5)


def test_a_bookie_that_works_long_enough_starts_again_without_a_pause() -> None:
    chances = BookieBackoff(60)
    chances.failed("b", 0)
    for now_s, pause_s in ((10, 1), (20, 2), (30, 4)):
        chances.taken("b", now_s - 5)
        chances.failed("b", now_s)
        assert chances.is_resting("b", now_s + pause_s - 0.1)
        assert not chances.is_resting("b", now_s + pause_s)
    chances.taken("b", 40)
    chances.failed("b", 101)
    assert not chances.is_resting("b", 101)
    chances.taken("b", 101)
    chances.failed("b", 102)
    assert chances.is_resting("b", 102.9)
    assert not chances.is_resting("b", 103)


def test_other_bookies_and_those_that_failed_before_their_use_do_not_wait() -> None:
    chances = BookieBackoff(60)
    chances.failed("b", 0)
    chances.failed("b", 1)
    assert not chances.is_resting("b", 1)
    assert not chances.is_resting("other", 1)
