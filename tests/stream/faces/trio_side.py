"""Helpers of the behaviour suite for trio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio


async def together(*acts: Callable[[], Awaitable[None]]) -> None:
    """Runs all functions concurrently and returns when all have ended."""
    async with trio.open_nursery() as nursery:
        for act in acts:
            nursery.start_soon(act)


@asynccontextmanager
async def give_up_after(seconds: float) -> AsyncIterator[None]:
    """Cancels the wait inside its block after this time, and ends the block without an error."""
    with trio.move_on_after(seconds):
        yield


async def pause(seconds: float) -> None:
    """Sleeps while other tasks run."""
    await trio.sleep(seconds)
