"""Injects kills: a seed determines where and how each process of a pipeline dies.

One thread per query gives orders to its processes, kills others at random times, and continues
zombies later; whole drivers are killed in between. Counts the faults, and distinguishes errors that
a kill explains from unexplained ones.
"""

from __future__ import annotations

import collections
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.spark.kills.driver import Driver
from tests.spark.kills.killable_source import (
    ABORT_POINTS,
    COMMIT_POINTS,
    PLAN_POINTS,
    SOURCE_POINTS,
    START_POINTS,
    TASK_POINTS,
)
from tests.spark.kills.orders import KillOrder, KillOrders, TakenOrder
from tests.spark.kills.report import Fault, fault_of, random_kill
from tests.spark.kills.spark_processes import find_processes, send, wait_stopped

_ORDER_TIMEOUT_S = 60.0
_PAUSE_S = (0.2, 2.0)
_ZOMBIE_S = (1.0, 8.0)
_RANDOM_SHARE = 0.35
_RANDOM_AFTER_S = 0.5
_WAYS = ("kill", "kill", "kill", "kill", "kill", "pause", "raise")
_RANDOM_KINDS = ("task worker", "task worker", "source", "sink", "planner", "task daemon")
_FAR_POINTS = ("write.begin", "transaction, after", "commit, before", "commit, after")
"""Points where an error leads to an abort."""

EXPECTED = (
    "ordered to fail",
    "Python worker exited unexpectedly",
    "EOFException",
    "Broken pipe",
    "Connection reset",
    "Connection refused",
    "Stream closed",
    "Command exited with code 137",
    "Python worker failed to connect back",
)
"""Spark's errors when one of its processes has died (137: an executor was killed twice under one
task). The last one also occurs if a busy machine takes more than ten seconds to start a worker."""


OVERTAKEN = (
    "CONCURRENT_STREAM_LOG_UPDATE",
    "Multiple streaming queries are concurrently using",
    "CommitOutOfOrder",
)
"""Errors of a query that another driver has overtaken: Spark finds the batch in its log, before it
writes it or when it renames the file, or the sink finds a later batch in its streams. They are
unexplained unless two drivers had the query at once."""


LOCKED_OUT = "was locked by other processes"
"""The error of the metadata file while a process that was stopped during a change holds its lock.
It is unexplained unless a process was stopped."""


class UnexplainedError(Exception):
    """An error that no kill can have caused."""


class Tally:
    """Counts the injected faults. Safe for use by many threads.

    Args:
        kills: the number of kills to inject; a pause or an error does not count as one.
        journal: a file that gets a line for each fault, with the time of day.
    """

    def __init__(self, kills: int, journal: Path) -> None:
        self.faults: collections.Counter[Fault] = collections.Counter()
        self.counts: collections.Counter[str] = collections.Counter()
        self._left = kills
        self._journal = journal
        self._stopped = 0
        self._woken_s = float("-inf")
        self._lock = threading.Lock()

    def count_fault(self, fault: Fault, to: str) -> None:
        """Counts a fault; `to` describes the process, for the journal."""
        with self._lock:
            self.faults[fault] += 1
            self._left -= fault.is_kill
            self._note(f"{to}: {fault.way}, {fault.moment}")

    def count(self, what: str, note: str = "") -> None:
        """Counts another event."""
        with self._lock:
            self.counts[what] += 1
            self._note(f"{what} {note}".rstrip())

    def _note(self, line: str) -> None:
        now_s = time.time()
        clock = time.strftime("%H:%M:%S", time.localtime(now_s)) + f".{int(now_s * 1000) % 1000:03}"
        with self._journal.open("a") as journal:
            journal.write(f"{clock} {line}\n")

    @property
    def kills_left(self) -> int:
        return max(0, self._left)

    def note_stopped(self) -> None:
        """Notes that a process is stopped; `note_woken` must be called once for it."""
        with self._lock:
            self._stopped += 1

    def note_woken(self) -> None:
        """Notes that a stopped process continues, or has ended."""
        with self._lock:
            self._stopped -= 1
            self._woken_s = time.monotonic()

    def had_stopped(self, after_s: float) -> bool:
        """Returns whether any process was stopped after this time of the monotonic clock."""
        with self._lock:
            return self._stopped > 0 or self._woken_s >= after_s


def draw_order(chance: random.Random, *, tasks_only: bool) -> KillOrder:
    """Draws an order to die at a named point."""
    groups: tuple[Sequence[str], ...] = (TASK_POINTS, TASK_POINTS)
    if not tasks_only:
        # Commits are drawn more often, because exactly-once depends on them.
        groups += (COMMIT_POINTS, COMMIT_POINTS, COMMIT_POINTS, SOURCE_POINTS)
        groups += (ABORT_POINTS, PLAN_POINTS, START_POINTS)
    group = chance.choice(groups)
    point = chance.choice(group)
    way = chance.choice(_WAYS)
    if group is COMMIT_POINTS or group is TASK_POINTS:
        way = chance.choice((*_WAYS, "kill with daemon", "kill with daemon", "zombie", "zombie"))
    if group is ABORT_POINTS:
        return KillOrder(point, way, provoked_by=chance.choice(_FAR_POINTS))
    skip = 0 if group is START_POINTS else chance.choice((0, 0, 0, 1, 3))
    return KillOrder(point, way, skip=skip)


@dataclass(slots=True)
class KillPhase:
    """The state that the injectors share. `driver` is the driver that has the queries now."""

    driver: Driver
    tally: Tally
    tasks_only: bool = False


class KillInjector(threading.Thread):
    """Injects kills into one query until the number of the phase is reached."""

    def __init__(
        self, phase: KillPhase, query: str, orders: KillOrders, chance: random.Random
    ) -> None:
        super().__init__(name=f"kills of {query}", daemon=True)
        self._phase = phase
        self._query = query
        self._orders = orders
        self._chance = chance
        self._wakers: list[threading.Thread] = []
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            while self._phase.tally.kills_left:
                if self._chance.random() < _RANDOM_SHARE and not self._phase.tasks_only:
                    self._kill_at_random()
                else:
                    self._kill_at_a_point()
            for waker in self._wakers:
                waker.join()
        except Exception as error:  # noqa: BLE001 - raised by the phase
            self.error = error

    def _kill_at_random(self) -> None:
        kind = self._chance.choice(_RANDOM_KINDS)
        time.sleep(self._chance.uniform(0.0, _RANDOM_AFTER_S))
        found = find_processes(self._phase.driver.jvm, kind)
        if found and send(self._chance.choice(found), signal.SIGKILL):
            self._phase.tally.count_fault(random_kill(kind), kind)

    def _kill_at_a_point(self) -> None:
        order = draw_order(self._chance, tasks_only=self._phase.tasks_only)
        self._orders.give(order)
        if order.point in START_POINTS:
            self._restart()
        deadline_s = time.monotonic() + _ORDER_TIMEOUT_S
        while (taken := self._orders.taken()) is None:
            if time.monotonic() > deadline_s:
                if (taken := self._orders.withdraw()) is not None:
                    break
                self._phase.tally.count("points not reached", f"{self._query} {order.point}")
                return
            time.sleep(0.02)  # only the file of another process shows it
        whom = f"{self._query}, process {taken.pid} at {order.point}"
        self._phase.tally.count_fault(fault_of(order), whom)
        if order.way in ("pause", "zombie"):
            self._phase.tally.note_stopped()
        if order.way == "pause":
            self._wake(taken, self._chance.uniform(*_PAUSE_S))
        if order.way == "zombie":
            # Spark waits for the zombie until the query is started again.
            self._restart()
            self._wake(taken, self._chance.uniform(*_ZOMBIE_S))

    def _restart(self) -> None:
        self._phase.driver.restart(self._query)
        self._phase.tally.count("queries stopped and started again", self._query)

    def _wake(self, taken: TakenOrder, after_s: float) -> None:
        tally = self._phase.tally

        def wake() -> None:
            try:
                # On a busy machine it may not have stopped yet, and would never be continued.
                wait_stopped(taken.pid, _ORDER_TIMEOUT_S)
                time.sleep(after_s)
                if send(taken.pid, signal.SIGCONT):
                    tally.count(f"woken after {taken.order.way}", f"process {taken.pid}")
            finally:
                tally.note_woken()

        waker = threading.Thread(target=wake, daemon=True)
        waker.start()
        self._wakers.append(waker)


def explain(
    events: Callable[[], dict[str, Any]], tally: Tally, was_shared: Callable[[float], bool]
) -> bool:
    """Reads the events of a driver until it ends; returns whether it has finished.

    Raises UnexplainedError.

    Args:
        was_shared: whether another driver worked on the same queries after a moment.
    """
    while (event := events())["event"] != "gone":
        if event["event"] == "done":
            return True
        if event["event"] == "unfinished":
            raise UnexplainedError(f"{event['query']} could not finish")
        if event["event"] != "ended":
            continue
        error = str(event["error"])
        tally.count("queries ended and started again", event["query"])
        if any(known in error for known in OVERTAKEN) and was_shared(event["began_s"]):
            tally.count("queries overtaken by another driver", event["query"])
        elif LOCKED_OUT in error and tally.had_stopped(event["began_s"]):
            tally.count("queries locked out by a stopped process", event["query"])
        elif not any(known in error for known in EXPECTED):
            raise UnexplainedError(f"{event['query']} ended: {error}")
    return False
