"""The rate and the windows of copies, compared with naive twins and in simulated queues."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.autorecovery.copy_rate import WINDOW_BYTES_MIN, DelayWindow, TokenBucket

MIB = 1 << 20


@given(st.integers(0, 10**6), st.randoms(use_true_random=False))
def test_the_bytes_taken_never_exceed_the_rate(seed: int, rng: random.Random) -> None:
    """In any time: the rate times that time, a tenth of a second more, and one request."""
    rate = rng.choice([1000, MIB, 64 * MIB])
    bucket, now_s, taken = TokenBucket(rate), rng.random() * 100, 0
    begun_s, largest = now_s, 0
    for _ in range(200):
        wait_s = bucket.wait_s(now_s)
        now_s += wait_s
        if wait_s:
            assert bucket.wait_s(now_s) <= 2.0 / rate
            now_s += bucket.wait_s(now_s)
        nbytes = rng.randrange(1, rate)
        bucket.take(nbytes, now_s)
        if rng.random() < 0.3:  # the answer was shorter than estimated
            back = rng.randrange(nbytes)
            bucket.take(-back, now_s)
            nbytes -= back
        taken += nbytes
        largest = max(largest, nbytes)
        assert taken <= rate * (now_s - begun_s + 0.1) + rate + 2


def test_a_bucket_that_is_always_used_gives_its_whole_rate() -> None:
    bucket, now_s, taken = TokenBucket(MIB), 5.0, 0
    while now_s < 15.0:
        now_s += bucket.wait_s(now_s)
        bucket.take(64 * 1024, now_s)
        taken += 64 * 1024
    assert taken == pytest.approx(10 * MIB, rel=0.03)


def test_no_rate_is_no_bound() -> None:
    bucket = TokenBucket(0)
    bucket.take(10**15, 1.0)
    assert bucket.wait_s(1.0) == 0.0


class Queue:
    """A bookie that serves requests one after the other, after a constant time."""

    def __init__(self, window: DelayWindow, bytes_per_s: float, base_s: float) -> None:
        self.window = window
        self.bytes_per_s = bytes_per_s
        self.base_s = base_s
        self.now_s = 0.0
        self.free_at_s = 0.0
        self.in_flight: list[tuple[float, float, int]] = []
        self.bytes_served = 0
        self.delays: list[float] = []

    def run(self, seconds: float, *, others_s: float = 0.0) -> None:
        """`others_s`: what the requests of users add to the queue."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            while self.window.may_send(self.now_s):
                nbytes = max(65536, self.window.nbytes // 4)
                self.window.sent(nbytes)
                begin = max(self.now_s, self.free_at_s)
                self.free_at_s = begin + nbytes / self.bytes_per_s
                done = self.free_at_s + self.base_s + others_s
                self.in_flight.append((done, self.now_s, nbytes))
            done, sent_s, nbytes = self.in_flight.pop(0)
            self.now_s = max(self.now_s, done)
            self.delays.append(self.now_s - sent_s)
            self.bytes_served += nbytes
            self.window.answered(nbytes, self.now_s - sent_s, self.now_s)
            assert self.window.in_flight == sum(n for _, _, n in self.in_flight)


@pytest.mark.parametrize("mb_per_s", [20, 100, 500])
@pytest.mark.parametrize("base_s", [0.001, 0.01])
def test_a_bookie_without_other_traffic_is_used_fully_with_little_queueing(
    mb_per_s: int, base_s: float
) -> None:
    queue = Queue(DelayWindow(64 * MIB, 0.02), mb_per_s * 1e6, base_s)
    queue.run(10)
    before, begun_s = queue.bytes_served, queue.now_s
    queue.delays.clear()
    queue.run(10)
    assert (queue.bytes_served - before) / (queue.now_s - begun_s) > 0.9 * mb_per_s * 1e6
    queue.delays.sort()
    assert queue.delays[len(queue.delays) * 95 // 100] < base_s + 3 * 0.02


def test_the_window_shrinks_to_its_least_while_users_are_served_and_grows_again() -> None:
    window = DelayWindow(64 * MIB, 0.02)
    queue = Queue(window, 100e6, 0.002)
    queue.run(5)
    alone = window.nbytes
    queue.run(3, others_s=0.1)
    assert window.nbytes == WINDOW_BYTES_MIN
    queue.run(20)
    assert window.nbytes > alone / 2


def test_a_disk_that_became_slower_for_good_is_believed_after_ten_minutes() -> None:
    window = DelayWindow(64 * MIB, 0.02)
    queue = Queue(window, 100e6, 0.002)
    queue.run(5)
    queue.run(60, others_s=0.1)
    assert window.nbytes == WINDOW_BYTES_MIN
    queue.run(650, others_s=0.1)
    assert window.nbytes > 2 * MIB


def test_refusals_halve_the_window_once_and_pause_longer_each_time() -> None:
    window = DelayWindow(8 * MIB, 0.02)
    before = window.nbytes
    now_s = 100.0
    for _ in range(50):
        window.refused(now_s)
    assert window.nbytes == before // 2
    assert not window.may_send(now_s)
    pauses = []
    for _ in range(8):
        now_s = window.paused_until_s
        window.refused(now_s)
        pauses.append(round(window.paused_until_s - now_s, 3))
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0]
    assert window.nbytes == WINDOW_BYTES_MIN
    now_s = window.paused_until_s
    window.sent(1)
    window.answered(1, 0.001, now_s)
    window.refused(now_s)
    assert round(window.paused_until_s - now_s, 3) == 0.05


@given(st.lists(st.tuples(st.floats(1e-4, 2.0), st.floats(0, 40.0)), min_size=1, max_size=80))
def test_the_window_moves_as_the_least_delays_say(samples: list[tuple[float, float]]) -> None:
    """The naive twin keeps all samples and looks at all of them each time."""
    window = DelayWindow(8 * MIB, 0.02)
    now_s, seen = 0.0, list[tuple[float, float]]()
    for delay_s, after_s in samples:
        now_s += after_s
        seen.append((now_s, delay_s))
        minutes = sorted({int(at // 60) for at, _ in seen})[-10:]
        base_s = min(d for at, d in seen if int(at // 60) in minutes)
        queueing_s = min(d for _, d in seen[-4:]) - base_s
        before = window.nbytes
        window.sent(before)
        window.answered(before, delay_s, now_s)
        if queueing_s < 0.0199:
            assert window.nbytes >= before
            assert window.nbytes > before or before == 8 * MIB
        elif queueing_s > 0.0201:
            assert window.nbytes <= before
            assert window.nbytes < before or before == WINDOW_BYTES_MIN
            assert window.nbytes >= before // 2
        assert WINDOW_BYTES_MIN <= window.nbytes <= 8 * MIB


def test_a_small_limit_is_kept_and_one_request_may_always_be_in_flight() -> None:
    window = DelayWindow(1000, 0.02)
    assert window.nbytes == 1000
    for now in range(100):
        assert window.may_send(now)
        window.sent(5000)
        assert not window.may_send(now)
        window.answered(5000, 1.0 + now % 7, now)
    assert window.nbytes == 1000
