"""Tasks made slow until Spark has begun copies of some: by chance alone some worlds had none."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable

from tests.spark.kills.injection import Stage
from tests.spark.kills.spark_processes import send, victims

_SLOW_S = 3.0
"""At most; a copy begins after a third of a second, if a core of the other host is idle."""
_BETWEEN_S = (0.2, 1.0)
_LOOK_S = 0.25


class Slower(threading.Thread):
    """Stops one task worker after the other, each until a copy is seen or for a while.

    Args:
        stage: its driver's workers are stopped, and its tally is told.
        copies_begun: how many copies Spark has begun so far.
        enough: so many of them.
    """

    def __init__(
        self, stage: Stage, copies_begun: Callable[[], int], enough: int, chance: random.Random
    ) -> None:
        super().__init__(name="slower", daemon=True)
        self._stage = stage
        self._copies_begun = copies_begun
        self._enough = enough
        self._chance = chance
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.is_set() and (before := self._copies_begun()) < self._enough:
            if found := victims(self._stage.driver.jvm, "task worker"):
                self._slow(self._chance.choice(found), before)
            self._is_over.wait(self._chance.uniform(*_BETWEEN_S))

    def _slow(self, pid: int, before: int) -> None:
        tally = self._stage.tally
        tally.note_stopped()
        try:
            if not send(pid, signal.SIGSTOP):
                return
            tally.count("task workers stopped for a copy", f"process {pid}")
            deadline_s = time.monotonic() + _SLOW_S
            while self._copies_begun() == before and time.monotonic() < deadline_s:
                if self._is_over.wait(_LOOK_S):
                    break
            send(pid, signal.SIGCONT)
        finally:
            tally.note_woken()

    def end(self, patience_s: float) -> None:
        """Waits so long for what is enough, then stops nobody any more."""
        self.join(patience_s)
        self._is_over.set()
        self.join()
