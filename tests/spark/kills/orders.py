"""Orders to die: a controller names a point, and one process that reaches it obeys, once.

An order is a file in a directory of a query. Processes check for it at *points* of a batch. The
process that succeeds in renaming the file has taken the order and dies; others continue. So a kill
happens at an exact point of the program, in a real process, by a real signal.
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
"""kill: SIGKILL. With daemon: also the process that forked it. Pause: SIGSTOP, until the controller
continues it. Zombie: the same, but Spark cannot end the process. Raise: an error."""


class OrderedFailure(Exception):
    """The error that a process raises by order."""


@dataclass(frozen=True, slots=True)
class KillOrder:
    """Where and how a process dies.

    Args:
        skip: how many times the point is passed before the order takes effect.
        provoked_by: a point that raises until the order is taken, so that Spark reaches `point`.
        number: of the order; `KillOrders.give` sets it.
    """

    point: str
    way: str
    skip: int = 0
    provoked_by: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class TakenOrder:
    """An order that a process has taken."""

    order: KillOrder
    pid: int


class KillOrders:
    """The orders of one query, in a directory that the controller and the processes share."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / _GIVEN
        self._given = 0

    # The controller

    def give(self, order: KillOrder) -> None:
        """Gives an order. No other order may be pending."""
        self._given += 1
        self._directory.mkdir(parents=True, exist_ok=True)
        self._place(replace(order, number=self._given))

    def _place(self, order: KillOrder) -> None:
        draft = self._directory / f"draft-{os.getpid()}"
        draft.write_text(json.dumps(asdict(order)))
        draft.rename(self._path)

    def withdraw(self) -> TakenOrder | None:
        """Withdraws the order; returns None, or the process that had taken it before."""
        deadline_s = time.monotonic() + _CLAIM_TIMEOUT_S
        while time.monotonic() < deadline_s:
            try:
                self._path.unlink()
            except FileNotFoundError:
                # A process has just taken it: it obeys, or puts it back for the next one.
                if (taken := self.taken()) is not None:
                    return taken
                time.sleep(0.01)
            else:
                return None
        return None  # the process died of another cause

    def taken(self) -> TakenOrder | None:
        """Returns the process that has taken the last order, or None."""
        return self._look(f"taken-{self._given}-*")

    def _look(self, names: str) -> TakenOrder | None:
        for found in self._directory.glob(names):
            facts = json.loads(found.read_text())
            found.rename(found.with_name(f"seen-{found.name}"))
            return TakenOrder(KillOrder(**facts["order"]), facts["pid"])
        return None

    # The processes

    def passes(self, point: str) -> None:
        """Passes a point, and obeys an order for it. May not return."""
        try:
            order = KillOrder(**json.loads(self._path.read_text()))
        except (FileNotFoundError, ValueError):
            return
        if order.provoked_by == point:
            raise OrderedFailure(f"ordered to fail at {point}, to reach {order.point}")
        if order.point != point:
            return
        mine = self._directory / f"mine-{order.number}-{os.getpid()}-{time.monotonic_ns()}"
        try:
            self._path.rename(mine)
        except FileNotFoundError:
            return  # another process was first
        order = KillOrder(**json.loads(mine.read_text()))
        if order.point != point or order.skip > 0:
            # No other process has it now, so that no pass is lost and no order is overwritten.
            left = order.skip - 1 if order.point == point else order.skip
            mine.unlink()
            self._place(replace(order, skip=left))
            return
        # A separate file, because other processes may still read the order that they have opened.
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


def _obey(order: KillOrder) -> None:
    if order.way == "raise":
        raise OrderedFailure(f"ordered to fail at {order.point}")
    if order.way in ("kill with daemon", "zombie"):
        _kill_daemon()
    if order.way == "zombie":
        signal_if_main(signal.SIGHUP)
    stops = order.way in ("pause", "zombie")
    os.kill(os.getpid(), signal.SIGSTOP if stops else signal.SIGKILL)


def signal_if_main(number: signal.Signals) -> None:
    """Ignores a signal in the main thread, or blocks it in another one."""
    try:
        signal.signal(number, signal.SIG_IGN)
    except ValueError:
        signal.pthread_sigmask(signal.SIG_BLOCK, [number])


def _kill_daemon() -> None:
    """Kills the process that forks Python workers, and that ends them for Spark."""
    parent = os.getppid()
    if "pyspark.daemon" in Path(f"/proc/{parent}/cmdline").read_text():
        os.kill(parent, signal.SIGKILL)
