"""Which silence ends a session: scenarios for the pure part of the liveness check."""

from __future__ import annotations

import random

import pytest

from ledger.metastore.sqlite.liveness import HeartbeatMonitor

TIMEOUT_MS = 1000


def steady(until_ms: int) -> HeartbeatMonitor:
    """Returns heartbeats every quarter of the timeout, beginning at 0."""
    beats = HeartbeatMonitor(TIMEOUT_MS)
    beats.began(0)
    for now_ms in range(250, until_ms + 1, 250):
        beats.beat(now_ms)
    return beats


def test_without_a_session_nothing_is_known() -> None:
    assert HeartbeatMonitor(TIMEOUT_MS).expired_sessions({7: (0, 1)}, None, 10_000_000) == []


def test_a_session_that_could_have_renewed_itself_expires_after_its_timeout() -> None:
    beats = steady(5000)
    assert beats.expired_sessions({7: (4000, TIMEOUT_MS)}, 5000, 5000) == []
    assert beats.expired_sessions({7: (3999, TIMEOUT_MS), 8: (4999, 1)}, 5000, 5000) == [7]
    assert beats.expired_sessions({7: (0, 6000), 8: (0, 4000)}, 5000, 5000) == [8]


def test_a_new_process_must_observe_heartbeats_first() -> None:
    beats = HeartbeatMonitor(TIMEOUT_MS)
    beats.began(100_000)
    assert beats.expired_sessions({7: (0, 1)}, 100_000, 100_400) == []
    for now_ms in range(100_250, 101_001, 250):
        beats.beat(now_ms)
    assert beats.expired_sessions({7: (0, 1)}, 101_000, 101_000) == []
    assert beats.expired_sessions({7: (0, 1)}, 101_000, 101_001) == [7]


def test_after_a_gap_every_session_has_its_full_timeout_again() -> None:
    beats = steady(5000)
    assert beats.expired_sessions({7: (5000, TIMEOUT_MS)}, 5000, 9000) == []  # ours is overdue
    beats.beat(9000)
    assert beats.expired_sessions({7: (5000, TIMEOUT_MS)}, 9000, 9000) == []
    for now_ms in range(9250, 10_001, 250):
        beats.beat(now_ms)
        assert beats.expired_sessions({7: (5000, TIMEOUT_MS)}, now_ms, now_ms) == []
    assert beats.expired_sessions({7: (5000, TIMEOUT_MS)}, 10_000, 10_001) == [7]


def test_a_heartbeat_that_is_in_the_file_and_not_yet_noted_may_end_a_gap() -> None:
    beats = steady(5000)
    assert beats.expired_sessions({7: (0, TIMEOUT_MS)}, 5250, 5250) == []
    assert (
        beats.expired_sessions({7: (0, TIMEOUT_MS)}, None, 5250) == []
    )  # others ended our session
    beats.beat(5250)
    assert beats.expired_sessions({7: (0, TIMEOUT_MS)}, 5250, 5250) == [7]


@pytest.mark.parametrize("seed", range(30))
def test_a_locked_file_expires_no_session_and_a_dead_one_is_found(seed: int) -> None:
    # The file is locked at random times, for any duration. Every live process sends a heartbeat
    # each quarter of its timeout, or within a quarter after the lock is released.
    rng = random.Random(seed)
    timeouts = [rng.randrange(200, 3000) for _ in range(4)]
    beats = [HeartbeatMonitor(timeout) for timeout in timeouts]
    heartbeats, due = [0] * 4, [0] * 4
    for own in beats:
        own.began(0)
    dies_at = rng.randrange(10_000, 20_000)
    locked_until, expired_at = 0, None
    for now in range(0, 60_000, 10):
        if rng.random() < 0.003 and now < 40_000:
            locked_until = now + rng.choice((100, 1000, 10_000))
        if now < locked_until:
            continue
        for k in rng.sample(range(4), 4):
            if k == 0 and now >= dies_at:
                continue
            others = {o: (heartbeats[o], timeouts[o]) for o in range(4) if o != k}
            found = beats[k].expired_sessions(others, heartbeats[k], now)
            assert found == ([0] if found and now > dies_at else []), (now, dies_at)
            expired_at = expired_at or (now if found else None)
            if due[k] <= now - rng.randrange(timeouts[k] // 4):
                beats[k].beat(now)
                heartbeats[k], due[k] = now, now + timeouts[k] // 4
    assert expired_at is not None
    assert expired_at - dies_at > timeouts[0] // 2
