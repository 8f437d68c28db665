"""The clock of the simulation: what is to happen, in the order of time."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Events:
    """A queue of calls. Calls for the same time happen in the order in which they were made."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._made = 0

    def at(self, time_s: float, call: Callable[[], None]) -> None:
        """Has `call` called at a time, which must not be past."""
        assert time_s >= self.now_s, f"{time_s} is before {self.now_s}"
        self._made += 1
        heapq.heappush(self._queue, (time_s, self._made, call))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Has `call` called after some seconds."""
        self.at(self.now_s + seconds, call)

    def run(self, is_over: Callable[[], bool]) -> None:
        """Makes the calls until it is over, or nothing is left to happen."""
        while self._queue and not is_over():
            self.now_s, _, call = heapq.heappop(self._queue)
            call()
