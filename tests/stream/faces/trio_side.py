"""What the behaviour suite needs beside streams, in trio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio


async def together(*acts: Callable[[], Awaitable[None]]) -> None:
    """Runs all at the same time; returns when all have ended."""
    async with trio.open_nursery() as nursery:
        for act in acts:
            nursery.start_soon(act)


@asynccontextmanager
async def give_up_after(seconds: float) -> AsyncIterator[None]:
    """What is still waited for in the block then is cancelled, and the block ends."""
    with trio.move_on_after(seconds):
        yield


async def pause(seconds: float) -> None:
    """Lets others run."""
    await trio.sleep(seconds)
