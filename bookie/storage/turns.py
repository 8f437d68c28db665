"""How background work of many small steps leaves the process to others."""

from __future__ import annotations

from typing import Final

import trio

from bookie.core.duty_cycle import BRISK, Pace

_rested_at: Final = trio.lowlevel.RunVar("rested_at", 0.0)


async def give_way(pace: Pace = BRISK) -> None:
    """Between two steps, each well under a millisecond: other tasks run, and now and then the loop
    waits for real, so that other threads run, too.

    A loop that always has something to do lets go of the interpreter for a microsecond per turn. A
    thread that waits for it, such as one with a finished sync, is woken each time, comes too late
    each time, and because it was woken never asks that it be handed over: for as long as such work
    went on, which was up to a third of a second, no add was acknowledged. All such work in a
    process shares its rests.
    """
    if trio.current_time() - _rested_at.get() < pace.work_s:
        await trio.lowlevel.checkpoint()
    else:
        await trio.sleep(pace.rest_s)
        _rested_at.set(trio.current_time())
