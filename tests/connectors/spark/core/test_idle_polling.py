"""How long a poll of an idle query waits, and how often it asks."""

from __future__ import annotations

from connectors.spark.core.idle_polling import ACTIVE_S, POLLED_WITHIN_S, WAIT_S, IdlePolling


def asks(polling: IdlePolling, now_s: float) -> tuple[float, int]:
    """Makes a call that learns of nothing; returns how long it waits, and how often it asks."""
    waits_s = polling.begin(now_s) - now_s
    asked = sum(polling.should_ask() for _ in range(3))
    polling.end(now_s + waits_s)
    return waits_s, asked


def test_an_idle_query_asks_four_times_a_second_and_before_each_answer() -> None:
    polling, now_s, asked, calls = IdlePolling(), 100.0, 0, 0
    while now_s < 200:  # Spark polls 10 ms after each answer
        waits_s, count = asks(polling, now_s)
        now_s += waits_s + 0.010
        asked, calls = asked + count, calls + 1
    assert asked == calls <= 100 / WAIT_S + 1


def test_a_query_with_records_or_with_an_interval_does_not_wait() -> None:
    polling = IdlePolling()
    assert asks(polling, 100.0) == (0.0, 1)
    assert asks(polling, 100.01) == (WAIT_S, 1)
    polling.note_change(100.3)
    assert asks(polling, 100.31) == (0.0, 1)
    assert asks(polling, 100.3 + ACTIVE_S) == (0.0, 1)
    assert asks(polling, 100.31 + ACTIVE_S) == (WAIT_S, 1)
    assert asks(polling, 101.0 + ACTIVE_S + WAIT_S + POLLED_WITHIN_S) == (0.0, 1)
