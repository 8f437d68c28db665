"""The buffers between the trio thread and its callers, with arbitrary consumers and writers.

Everything runs in one thread here; the same objects cross the buffers as between threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import LedgerClosed
from ledger.runtime.bridge import Completion, Job
from stream.bridge.appends import Appends, Lane, PendingRecord
from stream.bridge.prefetch import Fetched, Prefetch


def wake(completions: Sequence[Completion]) -> None:
    for completion in completions:
        completion.is_set = True
        for waiter in completion.waiters or ():
            waiter()


def post(job: Job) -> None:
    job.run()


class Source:
    """Supplies numbers up to a goal, and fails once at each number of `failing`."""

    def __init__(self, failing: set[int]) -> None:
        self.next = 0
        self.failing = failing
        self.pulled_max = 0

    async def pull(self, goal: int) -> int | None:
        await trio.lowlevel.checkpoint()
        if self.next >= goal:
            return None
        if self.next in self.failing:
            self.failing.remove(self.next)
            raise OSError(f"at {self.next}")
        self.next += 1
        return self.next - 1


async def take(prefetch: Prefetch[int, int], goal: int) -> int | None:
    """Takes the next number as the asyncio and blocking faces do; None at the goal."""
    while True:
        fetched: Fetched[int, int] | None = prefetch.head()
        if fetched is None:
            completion, woken = prefetch.want(goal), trio.Event()
            completion.waiters = [woken.set]
            if not completion.is_set:
                await woken.wait()
            continue
        if fetched.item is not None:
            if fetched.item >= goal:
                return None
            prefetch.pop()
            return fetched.item
        prefetch.pop()
        if fetched.error is not None:
            raise fetched.error
        if fetched.goal == goal:
            return None


@given(
    goals=st.lists(st.integers(0, 60), min_size=1, max_size=8),
    failing=st.sets(st.integers(0, 60), max_size=5),
    bytes_max=st.integers(1, 200),
    cuts=st.sets(st.integers(0, 80), max_size=10),
)
def test_prefetching_loses_and_repeats_nothing(
    goals: list[int], failing: set[int], bytes_max: int, cuts: set[int]
) -> None:
    errors_expected = len([each for each in failing if each < max(goals)])

    async def main() -> None:
        source = Source(set(failing))
        prefetch: Prefetch[int, int] = Prefetch(
            source.pull, lambda _: 10, post, wake, bytes_max=bytes_max
        )
        seen: list[int] = []
        errors = calls = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(prefetch.run)
            for goal in goals:
                while True:
                    calls += 1
                    got: int | None = None
                    with trio.CancelScope() as scope:
                        if calls in cuts:
                            scope.cancel()
                        try:
                            got = await take(prefetch, goal)
                        except OSError:
                            errors += 1
                            continue
                    if scope.cancelled_caught:
                        continue
                    if got is None:
                        break
                    seen.append(got)
                    assert source.next - len(seen) <= bytes_max // 10 + 1
                assert seen == list(range(max(goal, len(seen))))
            nursery.cancel_scope.cancel()
        assert seen == list(range(max(goals)))
        assert errors == errors_expected

    trio.run(main)


async def test_a_closed_buffer_ends_its_consumer() -> None:
    source = Source(set())
    prefetch: Prefetch[int, int] = Prefetch(source.pull, lambda _: 10, post, wake)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(prefetch.run)
        assert await take(prefetch, 5) == 0
        await trio.testing.wait_all_tasks_blocked()
        prefetch.close()
    assert [await take(prefetch, 5) for _ in range(5)] == [1, 2, 3, 4, None]
    with pytest.raises(LedgerClosed):
        await take(prefetch, 9)


class Record(PendingRecord):
    """A record that is accepted when its gate is open, and never confirmed by itself."""

    __slots__ = ("gate", "number", "order")

    def __init__(self, number: int, gate: Gate, order: list[int]) -> None:
        super().__init__(b"x", None, None, None)
        self.number = number
        self.gate = gate
        self.order = order

    def take(self) -> None:
        if not self.gate.places:
            raise trio.WouldBlock
        self.gate.places -= 1
        self.order.append(self.number)


class Gate:
    """The capacity of a writer, granted in portions."""

    def __init__(self) -> None:
        self.places = 0
        self.opened = trio.Event()

    def open(self, places: int) -> None:
        self.places = places
        self.opened.set()

    async def wait(self) -> None:
        while not self.places:
            self.opened = trio.Event()
            await self.opened.wait()


class TwoLanes(Appends):
    """Appends with two lanes, for even and odd numbers, each with capacity of its own."""

    def __init__(self) -> None:
        super().__init__("s", post, wake, 1 << 20)
        self.gates = [Gate(), Gate()]
        self.both = [Lane(gate.wait, self.end) for gate in self.gates]

    @property
    def error(self) -> None:
        return None

    def lane_of(self, record: PendingRecord) -> Lane:
        assert isinstance(record, Record)
        return self.both[record.number % 2]

    def lanes(self) -> list[Lane]:
        return self.both


async def test_a_lane_that_is_stuck_does_not_stop_the_other() -> None:
    appends = TwoLanes()
    taken: list[int] = []
    records = [Record(number, appends.gates[number % 2], taken) for number in range(10)]
    async with trio.open_nursery() as nursery:
        for lane in appends.lanes():
            nursery.start_soon(lane.run_pushing)
        for record in records:
            appends.submit(record)
        assert taken == []
        for places in (1, 2, 2):
            appends.gates[1].open(places)
            await trio.testing.wait_all_tasks_blocked()
        assert taken == [1, 3, 5, 7, 9]
        records[2].is_withdrawn = True
        appends.gates[0].open(100)
        await appends.in_turn(trio.lowlevel.checkpoint)
        assert taken[5:] == [0, 4, 6, 8]
        nursery.cancel_scope.cancel()
    assert all(record.is_set for record in records)
    with pytest.raises(LedgerClosed, match="withdrawn"):
        records[2].outcome()


async def test_a_record_submitted_while_a_writer_closes_does_not_affect_earlier_ones() -> None:
    appends = TwoLanes()
    early, late = (Record(number, appends.gates[1], []) for number in (1, 3))
    appends.submit(early)
    jobs: list[Job] = []
    appends._post = jobs.append
    appends.submit(late)
    appends.close()
    for job in jobs:
        job.run()
    assert (early.is_set, late.is_set) == (False, True)
    with pytest.raises(LedgerClosed, match="closed"):
        late.outcome()


async def test_records_pending_in_a_closed_writer_get_an_error() -> None:
    appends = TwoLanes()
    record = Record(1, appends.gates[1], [])
    appends.submit(record)
    assert not record.is_set
    appends.close()
    appends.end_all()
    with pytest.raises(LedgerClosed, match="closed"):
        record.outcome()
    with pytest.raises(LedgerClosed, match="closed"):
        appends.submit(Record(3, appends.gates[1], []))


async def test_records_of_a_loop_that_has_ended_are_refused() -> None:
    appends = TwoLanes()
    jobs: list[Job] = []
    appends._post = jobs.append
    record = Record(1, appends.gates[1], [])
    appends.submit(record)
    assert len(jobs) == 1
    jobs[0].refuse(LedgerClosed("the loop has ended"))
    assert record.is_set
    with pytest.raises(LedgerClosed):
        record.outcome()
    with pytest.raises(LedgerClosed):
        appends.submit(Record(3, appends.gates[1], []))
