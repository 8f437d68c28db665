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
from tests.spark.kills.orders import Order, Orders, Taken
from tests.spark.kills.report import Deed, deed_of, random_kill
from tests.spark.kills.spark_processes import send, victims, wait_stopped

_ORDER_TIMEOUT_S = 60.0
_PAUSE_S = (0.2, 2.0)
_ZOMBIE_S = (1.0, 8.0)
_RANDOM_SHARE = 0.35
_RANDOM_AFTER_S = 0.5
_WAYS = ("kill", "kill", "kill", "kill", "kill", "pause", "raise")
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
    "Command exited with code 137",
    "Python worker failed to connect back",
)
"""What Spark says when a process of its own has gone (137: an executor that was killed, twice under
one task); the last one also when a busy machine took more than ten seconds to start it."""


BESIDE_ANOTHER = (
    "CONCURRENT_STREAM_LOG_UPDATE",
    "Multiple streaming queries are concurrently using",
    "CommitOutOfOrder",
)
"""How a query ends that another driver overtook: Spark finds a batch in its log, before it writes
it or when it gives the file its name, our sink a later batch in its streams. An error unless two
drivers had the query at once."""


LOCKED_OUT = "was locked by other processes"
"""What the metadata file says while a process that was stopped in the middle of a change has it.
An error unless one was."""


class Unexplained(Exception):
    """An error that no kill can be the reason of."""


class Tally:
    """What was done; for many threads.

    Args:
        kills: how many there are to be; what only stops a process for a while, or raises, is none.
        journal: a file that gets a line for each thing, with the time of day.
    """

    def __init__(self, kills: int, journal: Path) -> None:
        self.deeds: collections.Counter[Deed] = collections.Counter()
        self.counts: collections.Counter[str] = collections.Counter()
        self._left = kills
        self._journal = journal
        self._stopped = 0
        self._woken_s = float("-inf")
        self._lock = threading.Lock()

    def count_deed(self, deed: Deed, to: str) -> None:
        """To: whom it was done to, for the journal."""
        with self._lock:
            self.deeds[deed] += 1
            self._left -= deed.is_kill
            self._note(f"{to}: {deed.way}, {deed.moment}")

    def count(self, what: str, note: str = "") -> None:
        """Something that is no deed."""
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
        """A process stands still, perhaps in the middle of something; `note_woken` once for it."""
        with self._lock:
            self._stopped += 1

    def note_woken(self) -> None:
        """It goes on, or has ended."""
        with self._lock:
            self._stopped -= 1
            self._woken_s = time.monotonic()

    def had_stopped(self, after_s: float) -> bool:
        """Whether any process stood still after this moment of the monotonic clock."""
        with self._lock:
            return self._stopped > 0 or self._woken_s >= after_s


def draw(chance: random.Random, *, tasks_only: bool) -> Order:
    """One death, at a named point."""
    groups: tuple[Sequence[str], ...] = (TASK_POINTS, TASK_POINTS)
    if not tasks_only:
        # Commits count more: what happens around them is what must be exact.
        groups += (COMMIT_POINTS, COMMIT_POINTS, COMMIT_POINTS, SOURCE_POINTS)
        groups += (ABORT_POINTS, PLAN_POINTS, START_POINTS)
    group = chance.choice(groups)
    point = chance.choice(group)
    way = chance.choice(_WAYS)
    if group is COMMIT_POINTS or group is TASK_POINTS:
        way = chance.choice((*_WAYS, "kill with daemon", "kill with daemon", "zombie", "zombie"))
    if group is ABORT_POINTS:
        return Order(point, way, provoked_by=chance.choice(_FAR_POINTS))
    skip = 0 if group is START_POINTS else chance.choice((0, 0, 0, 1, 3))
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
        time.sleep(self._chance.uniform(0.0, _RANDOM_AFTER_S))
        found = victims(self._stage.driver.jvm, kind)
        if found and send(self._chance.choice(found), signal.SIGKILL):
            self._stage.tally.count_deed(random_kill(kind), kind)

    def _kill_at_a_point(self) -> None:
        order = draw(self._chance, tasks_only=self._stage.tasks_only)
        self._orders.give(order)
        if order.point in START_POINTS:
            self._restart()
        deadline_s = time.monotonic() + _ORDER_TIMEOUT_S
        while (taken := self._orders.taken()) is None:
            if time.monotonic() > deadline_s:
                if (taken := self._orders.withdraw()) is not None:
                    break
                self._stage.tally.count("points not reached", f"{self._query} {order.point}")
                return
            time.sleep(0.02)  # another process's file is the only sign
        whom = f"{self._query}, process {taken.pid} at {order.point}"
        self._stage.tally.count_deed(deed_of(order), whom)
        if order.way in ("pause", "zombie"):
            self._stage.tally.note_stopped()
        if order.way == "pause":
            self._wake(taken, self._chance.uniform(*_PAUSE_S))
        if order.way == "zombie":
            # Spark waits for it, until the query is begun again.
            self._restart()
            self._wake(taken, self._chance.uniform(*_ZOMBIE_S))

    def _restart(self) -> None:
        self._stage.driver.restart(self._query)
        self._stage.tally.count("queries stopped and started again", self._query)

    def _wake(self, taken: Taken, after_s: float) -> None:
        tally = self._stage.tally

        def wake() -> None:
            try:
                # On a busy machine it may still be on its way to stop, and would never be woken.
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
    """Reads what a driver reports until it is gone, or has finished: then True. Raises
    Unexplained.

    Args:
        was_shared: whether another driver worked on the same queries after a moment.
    """
    while (event := events())["event"] != "gone":
        if event["event"] == "done":
            return True
        if event["event"] == "unfinished":
            raise Unexplained(f"{event['query']} could not finish")
        if event["event"] != "ended":
            continue
        error = str(event["error"])
        tally.count("queries ended and started again", event["query"])
        if any(known in error for known in BESIDE_ANOTHER) and was_shared(event["began_s"]):
            tally.count("queries overtaken by another driver", event["query"])
        elif LOCKED_OUT in error and tally.had_stopped(event["began_s"]):
            tally.count("queries locked out by a stopped process", event["query"])
        elif not any(known in error for known in EXPECTED):
            raise Unexplained(f"{event['query']} ended: {error}")
    return False
