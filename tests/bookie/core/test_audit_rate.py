"""Refusals of a peer cannot fill the audit log, and none of them is forgotten."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookie.core.audit_rate import (
    BURST,
    BURST_OF_ALL,
    COUNTED_MAX,
    OTHERS,
    PER_S,
    PER_S_OF_ALL,
    AuditRate,
)


def test_a_peer_has_a_burst_and_then_a_line_a_second() -> None:
    rate = AuditRate(0.0)
    assert sum(rate.admits(0.0, "10.0.0.7") for _ in range(100)) == BURST
    assert rate.admits(0.0, "10.0.0.8"), "another peer is not affected"
    assert sum(rate.admits(1.0, "10.0.0.7") for _ in range(100)) == PER_S
    assert rate.take_left_out() == {"10.0.0.7": 100 - BURST + 100 - int(PER_S)}
    assert not rate.has_left_out


def test_many_peers_together_are_limited_too() -> None:
    rate = AuditRate(0.0)
    admitted = sum(rate.admits(0.0, f"10.0.{n // 256}.{n % 256}") for n in range(5000))
    assert admitted == BURST_OF_ALL
    left_out = rate.take_left_out()
    assert len(left_out) == COUNTED_MAX + 1
    assert sum(left_out.values()) == 5000 - BURST_OF_ALL
    assert left_out[OTHERS] == 5000 - BURST_OF_ALL - COUNTED_MAX
    assert sum(rate.admits(1.0, f"10.1.0.{n}") for n in range(200)) == PER_S_OF_ALL


def test_memory_is_bounded() -> None:
    rate = AuditRate(0.0, peers_max=10)
    for number in range(1000):
        rate.admits(0.0, str(number))
    assert len(rate) == 10


@given(
    st.lists(st.tuples(st.floats(0, 3), st.sampled_from(["a", "b", "c"])), max_size=200),
    st.integers(1, 3),
)
def test_each_refusal_is_written_or_counted_once(
    refusals: list[tuple[float, str]], peers_max: int
) -> None:
    rate = AuditRate(0.0, peers_max=peers_max)
    now, written, counted = 0.0, 0, 0
    for elapsed_s, address in refusals:
        now += elapsed_s
        written += rate.admits(now, address)
        if elapsed_s > 2:
            counted += sum(rate.take_left_out().values())
    counted += sum(rate.take_left_out().values())
    assert written + counted == len(refusals)
    if peers_max == 3:
        assert written <= 3 * (BURST + PER_S * now + 1)
