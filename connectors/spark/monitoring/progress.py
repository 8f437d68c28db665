"""Shows the progress of Spark's tasks on a terminal, and their duration at the end.

Polls Spark's own status tracker in a thread of the driver. Shows nothing if the output is no
terminal. The summary of what will be read is printed by the process that plans (plan_summary.py).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from connectors.spark.monitoring.lag import Lag as Lag
from connectors.spark.monitoring.lag import LagListener as LagListener
from connectors.spark.monitoring.lag import lag_of as lag_of
from connectors.spark.monitoring.plan_summary import count_text
from connectors.spark.version import is_remote

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession

_REFRESH_S = 0.25
_BAR_WIDTH = 30
_STAGES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class BaselineStages:
    """The stages and jobs to leave out: those that started before the block."""

    stages: frozenset[int] = frozenset()
    newest_job: int = -1

    @classmethod
    def of(cls, tracker: StatusTracker) -> BaselineStages:
        jobs = tracker.getJobIdsForGroup()
        return cls(frozenset(tracker.getActiveStageIds()), max(jobs, default=-1))


@dataclass(slots=True)
class ProgressWatch:
    """The tasks that Spark has run since the block began, as far as they were observed."""

    begun_s: float = field(default_factory=time.monotonic)
    stages: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """By stage: tasks, completed tasks, failed attempts."""

    @property
    def tasks(self) -> int:
        return sum(tasks for tasks, _, _ in self.stages.values())

    @property
    def tasks_done(self) -> int:
        return sum(done for _, done, _ in self.stages.values())

    @property
    def failures(self) -> int:
        return sum(failed for _, _, failed in self.stages.values())

    def bar(self) -> str:
        filled = _BAR_WIDTH * self.tasks_done // max(1, self.tasks)
        return (
            f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {self.tasks_done} of {self.tasks} "
            f"tasks, {self._elapsed()}"
        )

    def summary(self) -> str:
        failed = f", {count_text(self.failures, 'attempt')} failed" if self.failures else ""
        stages = count_text(len(self.stages), "stage")
        return f"{count_text(self.tasks_done, 'task')} of {stages} in {self._elapsed()}{failed}"

    def update(self, tracker: StatusTracker, earlier: BaselineStages) -> None:
        """Reads the state of running stages, and of all stages observed before."""
        running = [stage for stage in tracker.getActiveStageIds() if stage not in earlier.stages]
        self._note(tracker, {*self.stages, *running})

    def finish(self, tracker: StatusTracker, earlier: BaselineStages) -> None:
        """Reads the final state, also of stages that were too short to be observed running.

        Covers jobs without a group.
        """
        self.update(tracker, earlier)
        for job in tracker.getJobIdsForGroup():
            info = tracker.getJobInfo(job) if job > earlier.newest_job else None
            if info is not None:
                self._note(tracker, set(info.stageIds))

    def _note(self, tracker: StatusTracker, stages: set[int]) -> None:
        for stage in stages:
            info = tracker.getStageInfo(stage)
            if info is not None and (stage in self.stages or len(self.stages) < _STAGES_MAX):
                self.stages[stage] = (info.numTasks, info.numCompletedTasks, info.numFailedTasks)

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self.begun_s:.1f} s"


@contextmanager
def watching(
    spark: SparkSession, *, progress: bool | None = None, file: TextIO | None = None
) -> Iterator[ProgressWatch]:
    """Shows a bar of Spark's tasks while the block runs, and a summary line at its end.

    Shows nothing with Spark Connect, whose clients get no information on tasks.

    Args:
        progress: whether to show the progress; None: if `file` is a terminal.
        file: the output, stderr by default.
    """
    watch = ProgressWatch()
    shown = sys.stderr if file is None else file
    if is_remote(spark) or not (shown.isatty() if progress is None else progress):
        yield watch
        return
    tracker = spark.sparkContext.statusTracker()
    earlier = BaselineStages.of(tracker)
    is_over = threading.Event()

    def show() -> None:
        while not is_over.wait(_REFRESH_S):
            watch.update(tracker, earlier)
            if watch.stages and shown.isatty():
                print(f"\r{watch.bar()}\x1b[K", end="", file=shown, flush=True)

    thread = threading.Thread(target=show, name="ledgerstream-progress", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        is_over.set()
        thread.join()
        watch.finish(tracker, earlier)
        if shown.isatty():
            print("\r\x1b[K", end="", file=shown)
        print(watch.summary(), file=shown, flush=True)
