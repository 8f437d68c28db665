"""A jump of the wall clock by more than a day is believed after an hour, and not before."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.core.steady_clock import CLOCK_OFF_MS, HOLD_S, SteadyClock
from tests.effort import scaled

DAY = 86_400_000
YEAR = 365 * DAY
HOUR = 3_600_000
BEGUN = 1_700_000_000_000


class Machine:
    """Its true time, and the error of its wall clock."""

    def __init__(self) -> None:
        self.passed_ms = 0
        self.error_ms = 0
        self.notices: list[int] = []
        self.clock = SteadyClock(
            lambda: self.true_ms + self.error_ms,
            lambda: 77.0 + self.passed_ms / 1000,
            self.notices.append,
        )

    @property
    def true_ms(self) -> int:
        return BEGUN + self.passed_ms

    def after(self, milliseconds: int) -> int:
        self.passed_ms += milliseconds
        return self.clock.now_ms()


@pytest.mark.parametrize("jump_ms", [YEAR, -YEAR, 2 * DAY])
def test_a_jump_there_and_back_leaves_no_trace(jump_ms: int) -> None:
    machine = Machine()
    assert machine.after(0) == BEGUN
    machine.after(1000)
    machine.error_ms = jump_ms
    for _ in range(59):
        assert machine.after(60_000) == machine.true_ms
    machine.error_ms = 0
    assert machine.after(60_000) == machine.true_ms
    assert machine.after(YEAR) == machine.true_ms
    assert len(machine.notices) == 2
    assert machine.notices[0] == pytest.approx(jump_ms, abs=HOUR)
    assert machine.notices[1] == 0


@pytest.mark.parametrize("jump_ms", [YEAR, -YEAR])
def test_a_clock_that_was_wrong_is_followed_an_hour_after_it_was_set(jump_ms: int) -> None:
    machine = Machine()
    machine.after(0)
    machine.error_ms = jump_ms
    assert machine.after(1) == machine.true_ms
    assert machine.after(int(HOLD_S * 1000) - 1) == machine.true_ms
    assert machine.after(1) == machine.true_ms + jump_ms
    assert machine.after(5 * DAY) == machine.true_ms + jump_ms
    assert machine.notices == [jump_ms, 0]


def test_a_long_pause_and_small_corrections_are_no_jump() -> None:
    machine = Machine()
    machine.after(0)
    for pause in (5 * DAY, YEAR, 1):
        assert machine.after(pause) == machine.true_ms
    for step in (HOUR, -2 * HOUR, CLOCK_OFF_MS // 2):
        machine.error_ms += step
        assert machine.after(10) == machine.true_ms + machine.error_ms
    assert machine.notices == []


def test_a_second_jump_begins_the_hour_again() -> None:
    machine = Machine()
    machine.after(0)
    machine.error_ms = YEAR
    machine.after(1)
    machine.after(HOUR - 2)
    machine.error_ms = 2 * YEAR
    assert machine.after(1) == machine.true_ms
    assert machine.after(HOUR - 1) == machine.true_ms
    assert machine.after(1) == machine.true_ms + 2 * YEAR


_steps = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 1000, 60_000, HOUR // 2, 3 * HOUR, 3 * DAY]),
        st.sampled_from([None, None, None, 0, 5000, -5000, YEAR, -YEAR, 3 * DAY]),
    ),
    max_size=40,
)


@settings(max_examples=scaled(ci=200, night=5000))
@given(_steps)
def test_the_time_is_the_right_one_or_one_at_which_the_clock_stayed_for_an_hour(
    steps: list[tuple[int, int | None]],
) -> None:
    machine = Machine()
    machine.after(0)
    stayed: dict[int, int] = {0: 0}
    """Errors of the clock, and since when."""
    believed = {0}
    for pause, error in steps:
        machine.passed_ms += pause
        for value, since in stayed.items():
            if machine.passed_ms - since >= HOUR:
                believed.add(value)
        if error is not None and error != machine.error_ms:
            machine.error_ms = error
            stayed = {error: machine.passed_ms}
        believed |= {e for e in (0, 5000, -5000) if any(abs(e - b) < DAY for b in believed)}
        shown = machine.clock.now_ms() - machine.true_ms
        assert min(abs(shown - error) for error in believed) <= 20_000, (shown, believed)
