"""The output of a batch read: the plan in one line, and the observed tasks."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from connectors.spark.core.planner import SegmentRange, plan
from connectors.spark.monitoring.plan_summary import plan_text, print_plan
from connectors.spark.monitoring.progress import BaselineStages, ProgressWatch, watching
from connectors.spark.options.options import TERMINAL_VARIABLE, ReadOptions
from stream.core.metadata.streams import Segment, SegmentState


def options(**more: str) -> ReadOptions:
    chosen = {"streamPattern": "demo/*", "cluster": "zk://host:2181/ledgers", **more}
    return ReadOptions.parse(chosen, {}, is_streaming=False)


def ranges() -> list[SegmentRange]:
    def one(stream: str, number: int, size: int) -> SegmentRange:
        segment = Segment(
            number, 100 + number, 0, 5, SegmentState.SEALED, last_entry=999, records=1000
        )
        return SegmentRange(stream, segment, 0, 0, 999, None, size)

    return [one("demo/a", 1, 300 << 20), one("demo/a", 2, 100 << 20), one("demo/b#0", 1, 112 << 20)]


def test_the_plan_in_one_line() -> None:
    tasks = plan(ranges(), task_bytes_max=128 << 20)
    assert plan_text(options(), tasks) == (
        "ledgerstream: 2 streams, 3 segments, 512 MiB in 4 tasks: demo/*"
    )
    assert plan_text(options(), []) == (
        "ledgerstream: 0 streams, 0 segments, 0 B in 0 tasks: demo/*"
    )


@pytest.mark.parametrize(
    ("wanted", "terminal", "is_printed"),
    [("auto", "", False), ("auto", "1", True), ("true", "", True), ("false", "1", False)],
)
def test_the_plan_is_printed_on_a_terminal(
    wanted: str, terminal: str, is_printed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TERMINAL_VARIABLE, terminal)
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    print_plan(options(progress=wanted), plan(ranges(), task_bytes_max=128 << 20))
    assert bool(shown.getvalue()) == is_printed


class Tracker:
    """A status tracker that returns the values of the test."""

    def __init__(self) -> None:
        self.stages: dict[int, tuple[int, int, int]] = {}
        self.active: list[int] = []
        self.jobs: dict[int, list[int]] = {}

    def getJobIdsForGroup(self) -> list[int]:
        return list(self.jobs)

    def getJobInfo(self, job: int) -> Any:
        return SimpleNamespace(stageIds=self.jobs[job])

    def getActiveStageIds(self) -> list[int]:
        return self.active

    def getStageInfo(self, stage: int) -> Any:
        if stage not in self.stages:
            return None
        tasks, done, failed = self.stages[stage]
        return SimpleNamespace(numTasks=tasks, numCompletedTasks=done, numFailedTasks=failed)


def test_the_bar_counts_tasks_of_stages_that_began_in_the_block() -> None:
    tracker = Tracker()
    tracker.stages = {1: (9, 1, 0), 2: (16, 4, 1)}
    tracker.active = [1]
    tracker.jobs = {7: [1]}
    earlier = BaselineStages.of(tracker)  # type: ignore[arg-type]
    tracker.active = [1, 2]
    watch = ProgressWatch()
    watch.update(tracker, earlier)  # type: ignore[arg-type]
    assert (watch.tasks, watch.tasks_done, watch.failures) == (16, 4, 1)
    assert watch.bar().startswith("[#######.......................] 4 of 16 tasks, ")
    tracker.stages = {1: (9, 9, 0), 2: (16, 16, 1), 3: (2, 2, 0)}
    tracker.jobs = {7: [1], 8: [2], 9: [3]}
    tracker.active = []
    watch.finish(tracker, earlier)  # type: ignore[arg-type]
    assert watch.summary().startswith("18 tasks of 2 stages in ")
    assert watch.summary().endswith(", 1 attempt failed")


def test_without_a_terminal_nothing_is_shown_and_spark_is_not_polled() -> None:
    shown = io.StringIO()
    session: Any = SimpleNamespace()  # no SparkContext in it
    with watching(session, file=shown) as watch:
        pass
    assert shown.getvalue() == ""
    assert watch.tasks == 0
