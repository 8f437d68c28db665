"""Counts the tasks that a piece of code starts."""

from __future__ import annotations

import trio


class TaskCount(trio.abc.Instrument):
    """Install it with trio.lowlevel.add_instrument."""

    def __init__(self) -> None:
        self.count = 0

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.count += 1
