"""Orders to die: a controller says where, a process that comes there obeys, once.

An order is a file in a directory of a query. Processes pass *points* in the life of a batch and
look; the one that can rename the file has it and dies of it, whoever else comes there lives. So a
kill is at an exact point of the program, in a real process, by a real signal.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

_GIVEN = "order"
_CLAIM_TIMEOUT_S = 10.0

WAYS = ("kill", "kill with daemon", "pause", "zombie", "raise")
"""kill: SIGKILL. With daemon: also of the process that forked it. Pause: SIGSTOP, until the
controller lets it go on. Zombie: the same, but Spark has no way left to end it. Raise: an error."""


class OrderedFailure(Exception):
    """What a process raises when it is told to fail."""


@dataclass(frozen=True, slots=True)
class Order:
    """Where and how to die.

    Args:
        skip: passes of the point that are let go by.
        provoked_by: a point that raises until the order is taken, to have Spark come to `point`.
        number: of the order; whoever gives it sets it.
    """

    point: str
    way: str
    skip: int = 0
    provoked_by: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class Taken:
    """An order that a process obeyed."""

    order: Order
    pid: int


class Orders:
    """The orders of one query, in a directory that controller and processes see."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / _GIVEN
        self._given = 0

    # The controller's side.

    def give(self, order: Order) -> None:
        """There must be no other order."""
        self._given += 1
        self._directory.mkdir(parents=True, exist_ok=True)
        self._place(replace(order, number=self._given))

    def _place(self, order: Order) -> None:
        draft = self._directory / f"draft-{os.getpid()}"
        draft.write_text(json.dumps(asdict(order)))
        draft.rename(self._path)

    def withdraw(self) -> Taken | None:
        """Nobody obeys it any more: None; or who was quicker."""
        deadline_s = time.monotonic() + _CLAIM_TIMEOUT_S
        while time.monotonic() < deadline_s:
            try:
                self._path.unlink()
            except FileNotFoundError:
                # A process has it in its hands: it obeys, or passes it on to the next one.
                if (taken := self.taken()) is not None:
                    return taken
                time.sleep(0.01)
            else:
                return None
        return None  # it died of something else

    def taken(self) -> Taken | None:
        """Who has the order that was given last."""
        return self._look(f"taken-{self._given}-*")

    def _look(self, names: str) -> Taken | None:
        for found in self._directory.glob(names):
            facts = json.loads(found.read_text())
            found.rename(found.with_name(f"seen-{found.name}"))
            return Taken(Order(**facts["order"]), facts["pid"])
        return None

    # The side of those who die.

    def passes(self, point: str) -> None:
        """A process is at this point; may not return."""
        try:
            order = Order(**json.loads(self._path.read_text()))
        except (FileNotFoundError, ValueError):
            return
        if order.provoked_by == point:
            raise OrderedFailure(f"ordered to fail at {point}, on the way to {order.point}")
        if order.point != point:
            return
        mine = self._directory / f"mine-{order.number}-{os.getpid()}-{time.monotonic_ns()}"
        try:
            self._path.rename(mine)
        except FileNotFoundError:
            return  # another process was first
        order = Order(**json.loads(mine.read_text()))
        if order.point != point or order.skip > 0:
            # Nobody else has it now, so that no pass is lost and no other order overwritten.
            left = order.skip - 1 if order.point == point else order.skip
            mine.unlink()
            self._place(replace(order, skip=left))
            return
        # Into a file of its own: whoever opened the order before it was ours still reads that.
        receipt = self._directory / f"receipt-{order.number}-{os.getpid()}"
        receipt.write_text(json.dumps({"order": asdict(order), "pid": os.getpid()}))
        receipt.rename(self._directory / f"taken-{order.number}-{os.getpid()}")
        mine.unlink()
        _obey(order)

    @contextmanager
    def around(self, step: str) -> Iterator[None]:
        self.passes(f"{step}, before")
        yield
        self.passes(f"{step}, after")


def _obey(order: Order) -> None:
    if order.way == "raise":
        raise OrderedFailure(f"ordered to fail at {order.point}")
    if order.way in ("kill with daemon", "zombie"):
        _kill_daemon()
    if order.way == "zombie":
        signal_if_main(signal.SIGHUP)
    stops = order.way in ("pause", "zombie")
    os.kill(os.getpid(), signal.SIGSTOP if stops else signal.SIGKILL)


def signal_if_main(number: signal.Signals) -> None:
    """Ignores a signal, where Python lets us: in the main thread."""
    try:
        signal.signal(number, signal.SIG_IGN)
    except ValueError:
        signal.pthread_sigmask(signal.SIG_BLOCK, [number])


def _kill_daemon() -> None:
    """The process that forks Python workers and kills those that Spark wants gone."""
    parent = os.getppid()
    if "pyspark.daemon" in Path(f"/proc/{parent}/cmdline").read_text():
        os.kill(parent, signal.SIGKILL)
