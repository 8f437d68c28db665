"""Cancels an operation at each of its awaits in turn: the n-th run is cut at the n-th.

Either in one world, which must bear all the cuts (`cut_everywhere`), or each in a world of its own
(`cut_each`).

Counted are all suspensions of the task that runs the operation and of every task it starts, so
background tasks of a writer are cut as well as its caller. An operation that ends before its turn
comes has been cut everywhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from tests.effort import stride

Operation = Callable[[], Awaitable[object]]

CUTS_MAX = 5_000
"""An operation with more awaits than this is no operation, but a loop."""


class _Cut(trio.abc.Instrument):
    """Cancels `scope` once `root` and its descendants have been suspended `at` times more."""

    def __init__(self, root: trio.lowlevel.Task, scope: trio.CancelScope, at: int) -> None:
        self._root = root
        self._scope = scope
        self._left = at
        self._is_ours: dict[trio.lowlevel.Task, bool] = {}

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._left < 0 or not self._descends(task):
            return
        self._left -= 1
        if self._left < 0:
            self._scope.cancel()

    def _descends(self, task: trio.lowlevel.Task) -> bool:
        known = self._is_ours.get(task)
        if known is None:
            above: trio.lowlevel.Task | None = task
            while above is not None and above is not self._root:
                nursery = above.parent_nursery
                above = None if nursery is None else nursery.parent_task
            known = self._is_ours[task] = above is self._root
        return known


async def cut_once(operation: Operation, at: int) -> bool:
    """Runs the operation, cancelled at its await number `at` (from 0); False if it ended before
    that. What it raises besides leaves here."""
    is_reached = False
    errors: list[Exception] = []

    async def run() -> None:
        nonlocal is_reached
        with trio.CancelScope() as scope:
            instrument = _Cut(trio.lowlevel.current_task(), scope, at)
            trio.lowlevel.add_instrument(instrument)
            try:
                await operation()
            except Exception as error:  # noqa: BLE001 - raised again outside of the nursery
                errors.append(error)
            finally:
                trio.lowlevel.remove_instrument(instrument)
        is_reached = scope.cancel_called

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
    if errors:
        raise errors[0]
    return is_reached


async def cut_everywhere(
    make: Callable[[int], Awaitable[tuple[Operation, Callable[[], Awaitable[None]]]]],
) -> int:
    """Makes operation n, cuts it at its await n, and checks; until one ends uncut.

    `make(n)` gives the operation and what must hold afterwards. Returns at which await the one
    that ended was to be cut. With each change it is only one await in seven.
    """
    for number in range(0, CUTS_MAX, stride(ci=7)):
        operation, check = await make(number)
        is_cut = await cut_once(operation, number)
        await check()
        if not is_cut:
            return number
    raise _endless()


def cut_each(run: Callable[[int], bool]) -> int:
    """Calls `run(n)`, which says whether it was cut at its await n, until one ends uncut.

    Returns at which await the one that ended was to be cut. With each change it is, of those after
    the first ten, only every other await.
    """
    numbers: list[int] = [*range(10), *range(10, CUTS_MAX, stride(ci=2))]
    for number in numbers:
        if not run(number):
            return number
    raise _endless()


def _endless() -> AssertionError:
    return AssertionError(f"still not at its end after {CUTS_MAX} awaits")
