"""When a disk counts as full and what is then taken, against a twin too simple to be wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.core.disk_space import (
    GROWTH_BYTES_PER_S_MAX,
    RAN_OUT_LOOKS,
    DiskLimits,
    DiskState,
    DiskUse,
    FileSystem,
    WriteGate,
    checkpoint_bytes,
    decide_gate,
)

LIMITS = DiskLimits(
    warn_ratio=0.5, full_ratio=0.8, low_water_ratio=0.7, reserved_bytes=40, required_bytes=100
)
TOTAL = 2000


def _twin(state: DiskState, free: int, held: int, limits: DiskLimits, total: int) -> DiskState:
    """Percent and words, without any of the names of the real one."""
    usable = free - (limits.reserved_bytes - held)
    used = (total - usable) / total
    if used > limits.full_ratio:
        return DiskState.FULL
    if usable < limits.required_bytes:
        return DiskState.FULL
    was_full = state == DiskState.FULL
    if was_full and used >= limits.low_water_ratio:
        return DiskState.FULL
    if was_full and usable < limits.required_bytes + limits.required_bytes // 4:
        return DiskState.FULL
    if used > limits.warn_ratio:
        return DiskState.WARNED
    if usable < limits.required_bytes * 2:
        return DiskState.WARNED
    return DiskState.OK


@given(
    st.sampled_from((150, 1000, TOTAL)),
    st.lists(st.tuples(st.integers(0, 1000), st.sampled_from((0, 40)), st.booleans()), max_size=30),
)
def test_states_follow_the_twin(total: int, looks: list[tuple[int, int, bool]]) -> None:
    system, state, believed = FileSystem(LIMITS), DiskState.OK, 0
    for share, held, runs_out in looks:
        free = total * share // 1000
        before = state
        if runs_out:
            state, believed = DiskState.FULL, RAN_OUT_LOOKS
            assert system.ran_out() is (before is not state)
            before = state
        if believed:
            believed -= 1
        else:
            state = _twin(state, free, held, LIMITS, total)
        assert system.look(DiskUse(total, free, held)) is (before is not state)
        assert system.state is state


@given(st.integers(0, TOTAL), st.sampled_from((0, 40)), st.booleans())
def test_so_much_free_as_is_said_to_be_needed_is_enough(
    free: int, held: int, was_full: bool
) -> None:
    system = FileSystem(LIMITS)
    if was_full:
        system.ran_out()
    for _ in range(RAN_OUT_LOOKS + 1):
        system.look(DiskUse(TOTAL, free, held))
    if system.state is DiskState.FULL:
        needed = system.free_needed_bytes
        assert needed > free
        system.look(DiskUse(TOTAL, needed, held))
        assert system.state is not DiskState.FULL


def test_a_reserve_given_up_does_not_count_as_room() -> None:
    system = FileSystem(LIMITS)
    system.look(DiskUse(TOTAL, 380, 40))
    assert system.state is DiskState.FULL  # 81 %
    system.look(DiskUse(TOTAL, 420, 0))
    assert system.state is DiskState.FULL


def test_on_a_small_disk_what_is_needed_rules() -> None:
    limits = DiskLimits(required_bytes=400)
    system = FileSystem(limits)

    def state(free: int) -> DiskState:
        system.look(DiskUse(1000, free))
        return system.state

    assert state(399) is DiskState.FULL  # although only 60 % are used
    assert state(499) is DiskState.FULL  # it would flutter
    assert state(500) is DiskState.WARNED
    assert state(800) is DiskState.OK


def test_a_write_that_found_no_room_on_an_empty_disk_is_believed_for_a_while() -> None:
    """A quota, or no place for another file: the numbers never say so."""
    system = FileSystem(LIMITS)
    changes = 0
    for number in range(100):
        if number % RAN_OUT_LOOKS == 0:  # somebody tries again
            changes += system.ran_out()
        changes += system.look(DiskUse(TOTAL, TOTAL))
        assert system.state is DiskState.FULL
    assert changes == 1
    assert system.look(DiskUse(TOTAL, TOTAL))
    assert system.state is DiskState.OK


def test_an_empty_file_system_of_no_size_is_full() -> None:
    system = FileSystem(DiskLimits())
    system.look(DiskUse(0, 0))
    assert system.state is DiskState.FULL


def test_a_disk_near_to_full_is_looked_at_before_it_can_be() -> None:
    second = GROWTH_BYTES_PER_S_MAX
    system = FileSystem(DiskLimits(required_bytes=second))
    total = second * 1000
    system.look(DiskUse(total, second * 900))
    assert system.next_look_s(10) == 10
    system.look(DiskUse(total, second * 53))  # 50 are the last 5 %
    assert system.next_look_s(10) == pytest.approx(3, abs=0.01)
    system.look(DiskUse(total, second * 50 + 1))
    assert system.next_look_s(10) == 0.02
    system.look(DiskUse(total, second * 49))
    assert system.state is DiskState.FULL
    assert system.next_look_s(10) == 1


@pytest.mark.parametrize(
    ("states", "is_forced", "free", "read_only", "recovery"),
    [
        ((DiskState.OK, DiskState.WARNED), False, 0, False, True),
        ((DiskState.OK, DiskState.OK), True, 0, True, True),
        ((DiskState.OK, DiskState.FULL), False, 60, True, True),  # 60 and the reserve's 40
        ((DiskState.OK, DiskState.FULL), False, 59, True, False),
        ((DiskState.FULL, DiskState.OK), True, 0, True, False),
    ],
)
def test_the_gate(
    states: tuple[DiskState, ...], is_forced: bool, free: int, read_only: bool, recovery: bool
) -> None:
    systems = []
    for state in states:
        system = FileSystem(LIMITS)
        system.use = DiskUse(TOTAL, free, 40)
        system.state = state
        systems.append((system, 100))
    gate = WriteGate()
    decide_gate(gate, systems, is_forced=is_forced)
    assert (gate.is_read_only, gate.takes_recovery) == (read_only, recovery)
    assert gate.refuses(is_urgent=False) is read_only
    assert gate.refuses(is_urgent=True) is (read_only and not recovery)
    assert gate.is_shut is (read_only and not recovery)
    assert decide_gate(gate, systems, is_forced=is_forced) is False


@given(
    st.lists(st.sampled_from(DiskState), min_size=1, max_size=3),
    st.lists(st.tuples(st.booleans(), st.booleans()), max_size=10),
)
def test_the_causes_of_being_read_only_are_independent(
    states: list[DiskState], wishes: list[tuple[bool, bool]]
) -> None:
    systems = []
    for state in states:
        system = FileSystem(LIMITS)
        system.use = DiskUse(TOTAL, TOTAL, 40)
        system.state = state
        systems.append((system, 100))
    gate = WriteGate()
    seen = (False, False)
    for is_forced, is_emptying in wishes:
        changed = decide_gate(gate, systems, is_forced=is_forced, is_emptying=is_emptying)
        is_read_only = is_forced or is_emptying or DiskState.FULL in states
        assert (gate.is_read_only, gate.is_emptying) == (is_read_only, is_emptying)
        assert gate.takes_recovery
        assert changed is (seen != (is_read_only, is_emptying))
        seen = (is_read_only, is_emptying)


@given(st.integers(0, 1 << 40))
def test_room_for_a_checkpoint_is_more_than_what_is_in_memory(cache_bytes: int) -> None:
    assert checkpoint_bytes(cache_bytes) > cache_bytes * 1.3


@pytest.mark.parametrize("free_mib", [0, 100, 1599, 1600, 100_000])
def test_a_roomy_disk_needs_no_reserve_yet(free_mib: int) -> None:
    limits = DiskLimits(
        warn_ratio=0.9, full_ratio=0.95, low_water_ratio=0.95, reserved_bytes=100 << 20,
        required_bytes=200 << 20,
    )  # fmt: skip
    system = FileSystem(limits)
    system.look(DiskUse(total_bytes=1 << 40, free_bytes=free_mib << 20))
    assert system.wants_reserve is (free_mib < 1600)
