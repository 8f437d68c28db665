"""Reports the faults injected into a pipeline: which process, when in a batch, and how."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from dataclasses import dataclass

from tests.spark.kills.orders import KillOrder

MOMENTS = ("before commit", "during commit", "after commit", "any time")
"""Moments of a batch. The commit lasts from Spark's call of the sink's commit until the transaction
is done; an abort belongs to the commit that it undoes. Any time: the moment is not known."""

DEADLY = ("kill", "kill with daemon", "zombie")
"""Ways after which Spark has lost the process for good."""

_TASK, _SOURCE, _SINK = "task's Python worker", "source's Python process", "sink's Python worker"
_OF_POINTS = {
    "read": _TASK, "write": _TASK, "plan": "planner", "source": _SOURCE,
    "commit": _SINK, "transaction": _SINK, "abort": _SINK,
}  # fmt: skip
_OF_KINDS = {
    "task worker": _TASK, "source": _SOURCE, "sink": _SINK, "planner": "planner",
    "task daemon": "tasks' daemon", "executor": "executor's JVM",
}  # fmt: skip
_DURING = ("commit, before", "transaction, before", "transaction, after")
_AFTER = ("commit, after", "source.commit, before", "source.commit, after")


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One fault that was injected into one process."""

    target: str
    moment: str
    way: str

    @property
    def is_kill(self) -> bool:
        return self.way in DEADLY


def fault_of(order: KillOrder) -> Fault:
    """Returns the fault that a process executed by this order."""
    target = _OF_POINTS[order.point.split(",")[0].split(".")[0]]
    return Fault(target, _moment(order.point), order.way)


def random_kill(kind: str) -> Fault:
    """Returns the fault of a process of this kind (spark_processes.py) killed at a random time."""
    return Fault(_OF_KINDS[kind], "any time", "kill")


def _moment(point: str) -> str:
    if point in _AFTER:
        return "after commit"
    if point in _DURING or point.startswith("abort"):
        return "during commit"
    return "before commit"


def table(faults: collections.Counter[Fault]) -> list[str]:
    """Returns lines: kills by target and moment, then all faults by way."""
    kills = collections.Counter({fault: n for fault, n in faults.items() if fault.is_kill})
    width = max([len("killed"), *(len(fault.target) for fault in kills)])
    lines = [_row("killed", [*MOMENTS, "all"], width)]
    for target in sorted({fault.target for fault in kills}):
        lines.append(_counted(target, kills, (target,), width))
    lines.append(_counted("all", kills, {fault.target for fault in kills}, width))
    ways = collections.Counter[str]()
    for fault, number in faults.items():
        ways[fault.way] += number
    return [*lines, "ways: " + ", ".join(f"{way} {number}" for way, number in sorted(ways.items()))]


def _counted(
    name: str, faults: collections.Counter[Fault], targets: Iterable[str], width: int
) -> str:
    chosen = set(targets)
    numbers = [
        sum(n for fault, n in faults.items() if fault.target in chosen and fault.moment == moment)
        for moment in MOMENTS
    ]
    return _row(name, [*numbers, sum(numbers)], width)


def _row(name: str, cells: Iterable[object], width: int) -> str:
    return name.ljust(width) + "".join(f"{cell!s:>15}" for cell in cells)
