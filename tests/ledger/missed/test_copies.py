"""MissedCopies: marks are recorded in the background, and nothing runs while there are none."""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from ledger.errors import LedgerError, MetadataCorrupt, MetadataUnavailable
from ledger.missed import copies
from ledger.missed.copies import FINISH_S, MissedCopies


class MarksDouble:
    """Marks in memory. While `error` is set, each call raises it."""

    def __init__(self) -> None:
        self.marked: dict[int, set[str]] = {}
        self.calls = 0
        self.error: LedgerError | None = None
        self.delay_s = 0.0

    async def mark(self, ledger_id: int, replicas: Collection[str]) -> None:
        self.calls += 1
        await trio.sleep(self.delay_s)
        if self.error is not None:
            raise self.error
        self.marked.setdefault(ledger_id, set()).update(replicas)


class DoubtDouble:
    """A doubt that records its bookie when it is given up."""

    def __init__(self, missed: MissedCopies, ledger_id: int) -> None:
        self._missed = missed
        self._ledger_id = ledger_id
        missed.begin(self)

    def give_up(self) -> None:
        self._missed.record(self._ledger_id, ["b1"])
        self._missed.end(self)


@asynccontextmanager
async def opened(marks: MarksDouble) -> AsyncIterator[MissedCopies]:
    missed = MissedCopies(marks, random.Random(1))
    async with trio.open_nursery() as nursery:
        missed.start(nursery)
        yield missed
        nursery.cancel_scope.cancel()


def tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


async def test_marks_are_recorded_and_the_task_ends() -> None:
    marks = MarksDouble()
    async with opened(marks) as missed:
        before = tasks()
        missed.record(1, ["b1"])
        missed.record(1, ["b2", "b1"])
        missed.record(2, ["b1"])
        missed.record(3, [])
        await trio.testing.wait_all_tasks_blocked()
        assert marks.marked == {1: {"b1", "b2"}, 2: {"b1"}}
        assert (marks.calls, missed.recorded, missed.pending, tasks()) == (2, 2, 0, before)


async def test_what_is_recorded_while_its_ledger_is_being_marked_is_not_lost(
    autojump_clock: trio.testing.MockClock,
) -> None:
    marks = MarksDouble()
    marks.delay_s = 1
    async with opened(marks) as missed:
        missed.record(1, ["b1"])
        await trio.sleep(0.5)
        missed.record(1, ["b2"])
        await trio.sleep(5)
        assert marks.marked == {1: {"b1", "b2"}}


async def test_an_outage_is_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    marks = MarksDouble()
    marks.error = MetadataUnavailable("out of reach")
    async with opened(marks) as missed:
        for ledger_id in range(40):
            missed.record(ledger_id, ["b1"])
        await trio.sleep(100)
        assert (missed.pending, missed.recorded) == (40, 0)
        assert marks.calls < 16 * 20  # the pauses grow
        marks.error = None
        await trio.sleep(11)
        assert len(marks.marked) == 40
        assert missed.pending == 0


async def test_marks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "MARKS_MAX", 3)
    marks = MarksDouble()
    async with opened(marks) as missed:
        for ledger_id in range(5):
            missed.record(ledger_id, ["b1"])
        missed.record(0, ["b2"])
        assert (missed.pending, missed.dropped) == (3, 2)
        await trio.testing.wait_all_tasks_blocked()
        assert marks.marked == {0: {"b1", "b2"}, 1: {"b1"}, 2: {"b1"}}


async def test_a_mark_that_cannot_be_read_is_reported_and_blocks_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    marks = MarksDouble()
    marks.error = MetadataCorrupt("urL1 cannot be read")
    async with opened(marks) as missed:
        with caplog.at_level(logging.WARNING):
            missed.record(1, ["b1"])
            await trio.testing.wait_all_tasks_blocked()
        assert "ledger=1: that b1 lack entries is not recorded: urL1" in caplog.text
        marks.error = None
        missed.record(2, ["b1"])
        await trio.testing.wait_all_tasks_blocked()
        assert marks.marked == {2: {"b1"}}
        assert missed.dropped == 1


async def test_the_oldest_of_too_many_doubts_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "DOUBTS_MAX", 2)
    marks = MarksDouble()
    async with opened(marks) as missed:
        for ledger_id in range(3):
            DoubtDouble(missed, ledger_id)
        assert missed.doubts == 2
        await trio.testing.wait_all_tasks_blocked()
        assert marks.marked == {0: {"b1"}}


async def test_a_client_that_closes_waits_for_doubts(
    autojump_clock: trio.testing.MockClock,
) -> None:
    marks = MarksDouble()
    async with opened(marks) as missed:
        doubt = DoubtDouble(missed, 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(missed.finish)
            await trio.sleep(FINISH_S / 4)
            missed.end(doubt)
        assert trio.current_time() == FINISH_S / 4
        assert marks.marked == {}


async def test_what_is_in_doubt_when_a_client_closes_is_marked_even_if_it_is_cancelled(
    autojump_clock: trio.testing.MockClock,
) -> None:
    marks = MarksDouble()
    marks.delay_s = 0.1
    with trio.CancelScope() as scope:
        async with opened(marks) as missed:
            missed.record(1, ["b2"])
            DoubtDouble(missed, 2)
            await trio.sleep(0.05)  # the first mark is being recorded
            scope.cancel()
            await missed.finish()
    assert marks.marked == {1: {"b2"}, 2: {"b1"}}
    assert trio.current_time() < FINISH_S


async def test_marks_that_are_being_recorded_when_a_client_closes_are_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    marks = MarksDouble()
    marks.delay_s = 0.1
    async with opened(marks) as missed:
        for ledger_id in range(40):
            missed.record(ledger_id, ["b1"])
        await trio.sleep(0.05)
        await missed.finish()
    assert sorted(marks.marked) == list(range(40))
    assert trio.current_time() < FINISH_S


async def test_an_outage_at_the_end_is_not_waited_for_and_reported(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    marks = MarksDouble()
    marks.error = MetadataUnavailable("out of reach")
    async with opened(marks) as missed:
        missed.record(7, ["b1"])
        with caplog.at_level(logging.WARNING):
            await missed.finish()
    assert trio.current_time() == pytest.approx(FINISH_S, abs=0.01)
    assert "entries of 1 ledgers (the first is 7) was not recorded in 1 s" in caplog.text
