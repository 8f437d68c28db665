"""A peer that fails waits longer each time, costs no more memory, and keeps nobody else out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.core.failed_attempts import (
    DELAY_S_MAX,
    FORGET_S,
    WAIT_S_MAX,
    FailedAttempts,
    address_of_peer,
)


def test_each_failure_costs_more_than_the_one_before() -> None:
    attempts, now, waits = FailedAttempts(), 0.0, []
    for _ in range(8):
        wait_s = attempts.wait_s(now, "10.0.0.1", "ann")
        assert wait_s is not None
        waits.append(wait_s)
        now += wait_s
        attempts.failed(now, "10.0.0.1", "ann")
    assert waits == [0, 0, 0, 0.5, 1, 2, 4, 8]
    assert attempts.wait_s(now, "10.0.0.1", "ann") is None


def test_attempts_in_parallel_wait_behind_each_other() -> None:
    attempts = FailedAttempts()
    for _ in range(4):
        attempts.failed(0, "10.0.0.1", "ann")
    assert attempts.wait_s(0, "10.0.0.1", "ann") == 1
    waits = [attempts.wait_s(0, "10.0.0.1", "ann") for _ in range(1000)]
    assert waits[:10] == [2, 3, 4, 5, 6, 7, 8, 9, 10, None]
    assert set(waits[9:]) == {None}


def test_a_failure_keeps_out_nobody_else() -> None:
    attempts = FailedAttempts()
    for _ in range(15):
        attempts.failed(0, "10.0.0.1", "ann")
    assert attempts.wait_s(0, "10.0.0.1", "ann") is None
    assert attempts.wait_s(0, "10.0.0.1", "bob") == 0
    assert attempts.wait_s(0, "10.0.0.2", "ann") == 0


def test_guessing_names_costs_the_address() -> None:
    attempts = FailedAttempts()
    for number in range(40):
        attempts.failed(0, "10.0.0.1", f"user{number}")
    assert attempts.wait_s(0, "10.0.0.1") is None
    assert attempts.wait_s(0, "10.0.0.2") == 0


def test_failures_are_forgotten_with_time_and_by_success() -> None:
    attempts = FailedAttempts()
    for _ in range(7):
        attempts.failed(0, "10.0.0.1", "ann")
        attempts.failed(0, "10.0.0.1", "bob")
    assert attempts.wait_s(0, "10.0.0.1", "ann") == 8
    attempts.succeeded("10.0.0.1", "ann")
    assert attempts.wait_s(0, "10.0.0.1", "ann") == 0
    assert attempts.wait_s(1, "10.0.0.1", "bob") == 7
    assert attempts.wait_s(FORGET_S + 1, "10.0.0.1", "bob") == 0
    assert attempts.wait_s(FORGET_S + 1, "10.0.0.1") == 0
    assert len(attempts) == 0


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=300))
def test_memory_is_bounded_and_waits_are(failures: list[tuple[int, int]]) -> None:
    attempts, now = FailedAttempts(peers_max=20), 0.0
    for address, user in failures:
        wait_s = attempts.wait_s(now, str(address), str(user))
        assert wait_s is None or 0 <= wait_s <= WAIT_S_MAX
        attempts.failed(now, str(address), str(user))
        assert len(attempts) <= 20
        now += 0.1
    # The longest wait is over at last.
    wait_s = attempts.wait_s(now + DELAY_S_MAX, "0", "0")
    assert wait_s == 0


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("10.1.2.3:4000", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6:4000", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2::9]:4000", "2001:db8:1:2::/64"),
        ("::ffff:10.1.2.3:4000", "10.1.2.3"),
        ("fe80::1%eth0:4000", "fe80::/64"),
        ("client-7:4000", "client-7"),
        ("", ""),
    ],
)
def test_what_counts_as_one_address(peer: str, address: str) -> None:
    assert address_of_peer(peer) == address
