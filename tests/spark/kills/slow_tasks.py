"""Slows down tasks until Spark has started copies of some, because not every world has any."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable

from tests.spark.kills.injection import KillPhase
from tests.spark.kills.spark_processes import find_processes, send

_SLOW_S = 3.0
"""Maximum; a copy starts after a third of a second, if a core of the other host is idle."""
_BETWEEN_S = (0.2, 1.0)
_LOOK_S = 0.25


class Slower(threading.Thread):
    """Stops one task worker after the other, each until a copy is seen or for a while.

    Args:
        phase: has the driver whose workers are stopped, and the tally that counts this.
        copies_begun: returns the number of copies that Spark has started.
        enough: the number of copies after which it stops.
    """

    def __init__(
        self, phase: KillPhase, copies_begun: Callable[[], int], enough: int, chance: random.Random
    ) -> None:
        super().__init__(name="slower", daemon=True)
        self._phase = phase
        self._copies_begun = copies_begun
        self._enough = enough
        self._chance = chance
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.is_set() and (before := self._copies_begun()) < self._enough:
            if found := find_processes(self._phase.driver.jvm, "task worker"):
                self._slow(self._chance.choice(found), before)
            self._is_over.wait(self._chance.uniform(*_BETWEEN_S))

    def _slow(self, pid: int, before: int) -> None:
        tally = self._phase.tally
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
        """Waits up to `patience_s` for enough copies, and then ends."""
        self.join(patience_s)
        self._is_over.set()
        self.join()
