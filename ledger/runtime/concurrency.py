"""Applies one coroutine function to many items, in a bounded number of tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import trio

T = TypeVar("T")
R = TypeVar("R")

CONCURRENT_MAX = 16


async def map_bounded(
    items: Iterable[T], work: Callable[[T], Awaitable[R]], *, concurrent_max: int = CONCURRENT_MAX
) -> list[R]:
    """Calls `work` for each item and returns the results in the order of the items.

    At most `concurrent_max` calls run at the same time. After an error no further call begins; the
    first error is raised by itself, without a group, once the calls in progress have ended.
    """
    chosen = list(items)
    done: dict[int, R] = {}
    failed: list[Exception] = []
    waiting = iter(enumerate(chosen))

    async def work_through() -> None:
        for index, item in waiting:
            if failed:
                return
            try:
                done[index] = await work(item)
            except Exception as error:  # noqa: BLE001 (raised below, without a group)
                failed.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(min(concurrent_max, len(chosen))):
            nursery.start_soon(work_through)
    if failed:
        raise failed[0]
    return [done[index] for index in range(len(chosen))]
