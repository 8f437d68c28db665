"""What was done to a pipeline, as a table: who died, when in the life of a batch, and how."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from dataclasses import dataclass

from tests.spark.kills.orders import Order

MOMENTS = ("before commit", "during commit", "after commit", "any time")
"""Of a batch. Commit is from Spark's call of the sink's commit until the transaction is done; an
abort belongs to the commit it undoes. Any time: nobody looked where the victim was."""

DEADLY = ("kill", "kill with daemon", "zombie")
"""Ways after which a process does nothing more for the one it worked for."""

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
class Deed:
    """One thing that was done to one process."""

    victim: str
    moment: str
    way: str

    @property
    def is_kill(self) -> bool:
        return self.way in DEADLY


def deed_of(order: Order) -> Deed:
    """What a process did to itself, at the point it was told."""
    victim = _OF_POINTS[order.point.split(",")[0].split(".")[0]]
    return Deed(victim, _moment(order.point), order.way)


def random_kill(kind: str) -> Deed:
    """Of a process of this kind (spark_processes.py)."""
    return Deed(_OF_KINDS[kind], "any time", "kill")


def _moment(point: str) -> str:
    if point in _AFTER:
        return "after commit"
    if point in _DURING or point.startswith("abort"):
        return "during commit"
    return "before commit"


def table(deeds: collections.Counter[Deed]) -> list[str]:
    """Lines: kills by victim and moment, then everything by way."""
    kills = collections.Counter({deed: n for deed, n in deeds.items() if deed.is_kill})
    width = max([len("killed"), *(len(deed.victim) for deed in kills)])
    lines = [_row("killed", [*MOMENTS, "all"], width)]
    for victim in sorted({deed.victim for deed in kills}):
        lines.append(_counted(victim, kills, (victim,), width))
    lines.append(_counted("all", kills, {deed.victim for deed in kills}, width))
    ways = collections.Counter[str]()
    for deed, number in deeds.items():
        ways[deed.way] += number
    return [*lines, "ways: " + ", ".join(f"{way} {number}" for way, number in sorted(ways.items()))]


def _counted(
    name: str, deeds: collections.Counter[Deed], victims: Iterable[str], width: int
) -> str:
    chosen = set(victims)
    numbers = [
        sum(n for deed, n in deeds.items() if deed.victim in chosen and deed.moment == moment)
        for moment in MOMENTS
    ]
    return _row(name, [*numbers, sum(numbers)], width)


def _row(name: str, cells: Iterable[object], width: int) -> str:
    return name.ljust(width) + "".join(f"{cell!s:>15}" for cell in cells)
