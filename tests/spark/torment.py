"""The hand that kills: draws from a seed where and how each process of a pipeline dies.

One thread per query gives orders to its processes, kills others of them at random times, and wakes
zombies later; the deaths of whole drivers come in between. Counts what was done, and sorts errors
that a kill explains from those that nothing explains.
"""

from __future__ import annotations

import collections
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.spark.driver import Driver
from tests.spark.mortal import (
    ABORT_POINTS,
    COMMIT_POINTS,
    PLAN_POINTS,
    SOURCE_POINTS,
    START_POINTS,
    TASK_POINTS,
)
from tests.spark.orders import Order, Orders, Taken
from tests.spark.victims import send, victims

_ORDER_TIMEOUT_S = 60.0
_PAUSE_S = (0.2, 2.0)
_ZOMBIE_S = (1.0, 8.0)
_RANDOM_SHARE = 0.25
_RANDOM_KINDS = ("task worker", "task worker", "source", "sink", "planner", "task daemon")
_FAR_POINTS = ("write.begin", "transaction, after", "commit, before", "commit, after")
"""Where an error leads to an abort."""

EXPECTED = (
    "ordered to fail",
    "Python worker exited unexpectedly",
    "EOFException",
    "Broken pipe",
    "Connection reset",
    "Connection refused",
    "Stream closed",
    "Python worker failed to connect back",
)
"""What Spark says when a process of its own has gone; the last one also when a busy machine took
more than ten seconds to start it."""


class Unexplained(Exception):
    """An error that no kill can be the reason of."""


class Tally:
    """What was done, by name; for many threads."""

    def __init__(self, kills: int) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self._left = kills
        self._lock = threading.Lock()

    def count(self, what: str, kills: int = 1) -> None:
        with self._lock:
            self.counts[what] += 1
            self._left -= kills

    @property
    def kills_left(self) -> int:
        return max(0, self._left)


def draw(chance: random.Random, *, tasks_only: bool) -> Order:
    """One death, at a named point."""
    groups: tuple[Sequence[str], ...] = (TASK_POINTS,)
    if not tasks_only:
        # Commits count twice: what happens around them is what must be exact.
        groups += (COMMIT_POINTS, COMMIT_POINTS, SOURCE_POINTS)
        groups += (ABORT_POINTS, PLAN_POINTS, START_POINTS)
    group = chance.choice(groups)
    point = chance.choice(group)
    way = chance.choice(("kill", "kill", "kill", "pause", "raise"))
    if group is COMMIT_POINTS or group is TASK_POINTS:
        way = chance.choice(("kill", "kill", "kill with daemon", "pause", "zombie", "raise"))
    if group is ABORT_POINTS:
        return Order(point, way, provoked_by=chance.choice(_FAR_POINTS))
    skip = 0 if group is START_POINTS else chance.choice((0, 0, 1, 2, 5))
    return Order(point, way, skip=skip)


@dataclass(slots=True)
class Stage:
    """What tormentors share. `driver` is the one that has the queries now."""

    driver: Driver
    tally: Tally
    tasks_only: bool = False


class Tormentor(threading.Thread):
    """Of one query, until the stage's kills are used up."""

    def __init__(self, stage: Stage, query: str, orders: Orders, chance: random.Random) -> None:
        super().__init__(name=f"tormentor of {query}", daemon=True)
        self._stage = stage
        self._query = query
        self._orders = orders
        self._chance = chance
        self._wakers: list[threading.Thread] = []
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            while self._stage.tally.kills_left:
                if self._chance.random() < _RANDOM_SHARE and not self._stage.tasks_only:
                    self._kill_at_random()
                else:
                    self._kill_at_a_point()
            for waker in self._wakers:
                waker.join()
        except Exception as error:  # noqa: BLE001 - raised by the stage
            self.error = error

    def _kill_at_random(self) -> None:
        kind = self._chance.choice(_RANDOM_KINDS)
        time.sleep(self._chance.uniform(0.0, 1.0))
        found = victims(self._stage.driver.jvm, kind)
        if found and send(self._chance.choice(found), signal.SIGKILL):
            self._stage.tally.count(f"at any time: {kind}, kill")

    def _kill_at_a_point(self) -> None:
        order = draw(self._chance, tasks_only=self._stage.tasks_only)
        self._orders.give(order)
        if order.point in START_POINTS:
            self._stage.driver.restart(self._query)
        deadline_s = time.monotonic() + _ORDER_TIMEOUT_S
        while (taken := self._orders.taken()) is None:
            if time.monotonic() > deadline_s:
                self._orders.withdraw()
                self._stage.tally.count(f"not reached: {order.point}", kills=0)
                return
            time.sleep(0.02)  # another process's file is the only sign
        self._stage.tally.count(f"{order.point}: {order.way}")
        if order.way == "pause":
            self._wake(taken, self._chance.uniform(*_PAUSE_S))
        if order.way == "zombie":
            # Spark waits for it, until the query is begun again.
            self._stage.driver.restart(self._query)
            self._wake(taken, self._chance.uniform(*_ZOMBIE_S))

    def _wake(self, taken: Taken, after_s: float) -> None:
        def wake() -> None:
            time.sleep(after_s)
            if send(taken.pid, signal.SIGCONT):
                self._stage.tally.count(f"woken: {taken.order.way}", kills=0)

        waker = threading.Thread(target=wake, daemon=True)
        waker.start()
        self._wakers.append(waker)


def explain(events: Callable[[], dict[str, object]], tally: Tally) -> bool:
    """Reads what a driver reports until it is gone, or has finished: then True. Raises
    Unexplained."""
    while (event := events())["event"] != "gone":
        if event["event"] == "done":
            return True
        if event["event"] == "unfinished":
            raise Unexplained(f"{event['query']} could not finish")
        if event["event"] != "ended":
            continue
        error = str(event["error"])
        tally.count("queries ended", kills=0)
        if not any(known in error for known in EXPECTED):
            raise Unexplained(f"{event['query']} ended: {error}")
    return False
