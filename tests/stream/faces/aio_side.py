"""Helpers of the behaviour suite for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType


async def together(*acts: Callable[[], Awaitable[None]]) -> None:
    """Runs all functions concurrently and returns when all have ended."""
    async with asyncio.TaskGroup() as group:
        for act in acts:
            group.create_task(_run(act))


async def _run(act: Callable[[], Awaitable[None]]) -> None:
    await act()


class give_up_after:
    """Cancels the wait inside its block after this time, and ends the block without an error."""

    def __init__(self, seconds: float) -> None:
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError:
            return True
        return False


async def pause(seconds: float) -> None:
    """Sleeps while other tasks run."""
    await asyncio.sleep(seconds)
