"""Does the same work for many items, with a bounded number of tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import trio

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE_MAX = 16


async def map_bounded(
    items: Iterable[T], work: Callable[[T], Awaitable[R]], *, at_once_max: int = AT_ONCE_MAX
) -> list[R]:
    """Returns what `work` returned for each item, in their order; up to `at_once_max` at a time.

    Raises the first error, without a group, once the items in progress are done; no further item
    is begun after an error.
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
