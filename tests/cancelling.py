"""Cancels a call at its n-th step: with every n, it is cancelled wherever it can be.

A step is what a task does between two awaits. Those of tasks the call has started count, too; those
of others do not: what they do in between makes no difference to who is cancelled.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import trio


class _StepCount(trio.abc.Instrument):
    def __init__(self, steps: int, scope: trio.CancelScope, since_s: float) -> None:
        self.root: trio.lowlevel.Task | None = None
        self._steps_left = steps
        self._scope = scope
        self._since_s = since_s

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._is_ours(task) and trio.current_time() >= self._since_s:
            self._steps_left -= 1
            if self._steps_left == 0:
                self._scope.cancel()

    def _is_ours(self, task: trio.lowlevel.Task | None) -> bool:
        while task is not None and task is not self.root:
            nursery = task.parent_nursery
            task = None if nursery is None else nursery.parent_task
        return task is not None


async def is_cancelled_at(
    step: int, call: Callable[[], Awaitable[object]], *, since_s: float = -math.inf
) -> bool:
    """Runs the call, cancelled after its step of this number (from 1); False if it has fewer.

    Steps before `since_s` (trio's clock) are not counted. Raises what the call raises.
    """
    failure: list[Exception] = []
    with trio.CancelScope() as scope:
        count = _StepCount(step, scope, since_s)

        async def run() -> None:
            count.root = trio.lowlevel.current_task()
            trio.lowlevel.add_instrument(count)
            try:
                await call()
            except Exception as error:  # noqa: BLE001 - raised below, without a group around it
                failure.append(error)
            finally:
                trio.lowlevel.remove_instrument(count)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
    if failure:
        raise failure[0]
    return scope.cancel_called


def at_every_step(run: Callable[[int], bool], *, most: int, stride: int = 1) -> int:
    """Runs with 1, 1 + `stride`, ... until one was not cancelled; returns which was the last.

    Fails if there are more than `most`: then the test does not end where it should.
    """
    for step in range(1, most + 1, stride):
        if not run(step):
            return step - stride
    raise AssertionError(f"still going after {most} steps")
