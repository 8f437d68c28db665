"""Watchers of the LAC of a ledger are called once, in time, and at little cost."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from bookie.core.ledger_state import LedgerState, Watch

KEY = b"k" * 20


def test_watchers_are_called_once_and_may_watch_again() -> None:
    state = LedgerState(7, KEY)
    calls: list[int] = []
    watches: list[Watch] = []

    def watcher() -> None:
        calls.append(state.lac)
        watches.append(state.watch(state.lac, watcher))

    state.watch(-1, watcher)
    state.advance_lac(3)
    state.advance_lac(3)
    state.advance_lac(2)
    assert calls == [3]
    state.fence()
    assert calls == [3, 3]
    state.unwatch(watches[-1])
    state.unwatch(watches[-1])
    state.advance_lac(9)
    assert calls == [3, 3]
    assert state.lac == 9
    assert not state.is_watched


@given(
    st.lists(
        st.tuples(st.just("watch"), st.integers(-5, 20))
        | st.tuples(st.just("advance"), st.integers(-1, 20))
        | st.tuples(st.just("unwatch"), st.integers(0, 20))
        | st.tuples(st.just("wake"), st.just(0))
    )
)
def test_watchers_are_called_when_their_lac_is_passed(steps: list[tuple[str, int]]) -> None:
    state = LedgerState(7, KEY)
    watches: list[Watch] = []
    calls: list[int] = []
    waiting: dict[int, int] = {}
    for step, number in steps:
        called: list[int] = []
        if step == "watch":
            waiting[len(watches)] = number
            watches.append(state.watch(number, partial(calls.append, len(watches))))
        elif step == "advance":
            is_newer = number > state.lac
            state.advance_lac(number)
            called = [each for each, lac in waiting.items() if is_newer and lac < number]
        elif step == "wake":
            state.wake()
            called = list(waiting)
        elif number < len(watches):
            state.unwatch(watches[number])
            waiting.pop(number, None)
        assert sorted(calls) == called
        calls.clear()
        for each in called:
            del waiting[each]
        assert state.is_watched == bool(waiting)


def test_those_that_give_up_in_any_order_and_those_that_wait_on_cost_little() -> None:
    """Ten thousand long polls of one peer took seconds of the event loop when they ended, the
    newest first, and milliseconds of each add."""
    compared = 0

    class Watcher:
        def __call__(self) -> None:
            raise AssertionError("no LAC has passed")

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return self is other

        __hash__ = object.__hash__

    state = LedgerState(7, KEY)
    watches = [state.watch(2**62, Watcher()) for _ in range(2000)]
    for lac in range(100):
        state.advance_lac(lac)
    for watch in reversed(watches):
        state.unwatch(watch)
    assert not state.is_watched
    assert compared <= 20 * len(watches)
