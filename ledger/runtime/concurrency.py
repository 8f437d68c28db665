"""The same work for many, some at a time: the tasks are bounded, whatever the number of items."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import trio

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE_MAX = 16


async def for_each(
    items: Iterable[T], work: Callable[[T], Awaitable[R]], *, at_once_max: int = AT_ONCE_MAX
) -> list[R]:
    """What `work` gave for each, in their order; at most `at_once_max` at a time.

    Raises the first error, by itself, when those under way are done; none is begun after it.
    """
    chosen = list(items)
    done: dict[int, R] = {}
    failed: list[Exception] = []
    waiting = iter(enumerate(chosen))

    async def take_turns() -> None:
        for index, item in waiting:
            if failed:
                return
            try:
                done[index] = await work(item)
            except Exception as error:  # noqa: BLE001 (raised below, by itself)
                failed.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(min(at_once_max, len(chosen))):
            nursery.start_soon(take_turns)
    if failed:
        raise failed[0]
    return [done[index] for index in range(len(chosen))]
