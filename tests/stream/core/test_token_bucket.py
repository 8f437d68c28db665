"""The quota grants at most its rate over any span, and needs no longer wait than it reports."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stream.core.token_bucket import BURST_S, TokenBucket

RATES = st.integers(1, 10**6)


@given(RATES, st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 10)), max_size=50))
def test_over_any_span_no_more_is_taken_than_the_rate_allows(
    rate: int, steps: list[tuple[int, float]]
) -> None:
    bucket, now = TokenBucket(rate, 0.0), 0.0
    taken: list[tuple[float, int]] = []
    for amount, pause_s in steps:
        now += pause_s
        if bucket.wait_s(now) == 0:
            bucket.take(amount, now)
            taken.append((now, amount))
    for begin in range(len(taken)):
        total = 0
        for at, amount in taken[begin:]:
            # Before the last request of a span some tokens were left.
            assert total <= rate * (at - taken[begin][0] + BURST_S) * (1 + 1e-9) + 1e-6
            total += amount


@given(RATES, st.integers(0, 10**7), st.floats(0, 100))
def test_after_the_wait_an_amount_may_be_taken(rate: int, amount: int, now: float) -> None:
    bucket = TokenBucket(rate, now)
    bucket.take(amount, now)
    wait_s = bucket.wait_s(now)
    assert wait_s <= amount / rate + 1 / rate
    assert bucket.wait_s(now + wait_s + 1e-3) == 0


def test_an_idle_writer_saves_up_one_burst() -> None:
    bucket = TokenBucket(100, 0.0)
    bucket.take(99, 1000.0)
    assert bucket.wait_s(1000.0) == 0
    bucket.take(1, 1000.0)
    assert bucket.wait_s(1000.0) > 0


def test_a_clock_that_moves_back_adds_nothing() -> None:
    bucket = TokenBucket(100, 10.0)
    bucket.take(200, 10.0)
    assert bucket.wait_s(5.0) == bucket.wait_s(10.0) > 0.9


def test_another_rate_keeps_the_debt() -> None:
    bucket = TokenBucket(100, 0.0)
    bucket.take(300, 0.0)
    assert bucket.at_rate(1000, 0.0).wait_s(0.0) < 0.3
    full = TokenBucket(100, 0.0).at_rate(10, 0.0)
    full.take(9, 0.0)
    assert full.wait_s(0.0) == 0
    full.take(1, 0.0)
    assert full.wait_s(0.0) > 0
