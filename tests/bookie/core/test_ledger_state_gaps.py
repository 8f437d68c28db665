"""Which entries below the last one a ledger's state knows to be absent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookie.core.ledger_state import GAP_ENTRIES_MIN, LedgerState
from tests.bookie.core.test_caches import KEY

RUNS = st.lists(
    st.tuples(st.integers(0, 20 * GAP_ENTRIES_MIN), st.integers(1, 3 * GAP_ENTRIES_MIN)),
    max_size=30,
)


def new_state() -> LedgerState:
    state = LedgerState(7, KEY)
    state.new_from = 0
    return state


@given(runs=RUNS)
def test_no_entry_of_a_gap_is_here(runs: list[tuple[int, int]]) -> None:
    state = new_state()
    twin: set[int] = set()
    for first, count in runs:
        state.added(first, first + count - 1)
        twin.update(range(first, first + count))
        assert state.new_from == max(twin) + 1
        for entry_id in range(state.new_from):
            end = state.gap_end(entry_id)
            assert twin.isdisjoint(range(entry_id, end))


def test_what_was_skipped_is_remembered_until_it_is_filled() -> None:
    state = new_state()
    state.added(100, 199)
    assert [state.gap_end(entry_id) for entry_id in (0, 99, 100, 200)] == [100, 100, 0, 0]
    state.added(40, 49)
    assert [state.gap_end(entry_id) for entry_id in (39, 40, 49, 50)] == [40, 0, 0, 100]
    state.added(50, 99)
    state.added(0, 20)
    assert not state.has_gaps, "19 entries are not worth remembering"


def test_few_gaps_are_remembered_and_none_after_a_removal() -> None:
    state = new_state()
    for number in range(1, 20):
        state.added(number * 100, number * 100)
    assert sum(bool(state.gap_end(number * 100 + 50)) for number in range(20)) == 8
    state.forget_new()
    assert not state.has_gaps


def test_stripes_are_no_gaps() -> None:
    state = new_state()
    for entry_id in range(0, 1000, GAP_ENTRIES_MIN):
        state.added(entry_id, entry_id)
    assert not state.has_gaps
