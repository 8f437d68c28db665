"""How the loop lets in the threads that somebody waits for; nothing where there are none.

A loop that always has something to do lets go of the interpreter for some microseconds per call of
the system. A thread that waits for it, such as one with a finished read, is woken each time, comes
too late each time, and because it was woken never asks that it be handed over (see also `turns`).

How background work of many small steps leaves the process to others.
"""

from __future__ import annotations

import time
from typing import Final

import trio

from bookie.core.duty_cycle import FOREGROUND, DutyCycle

_waited_for: Final = trio.lowlevel.RunVar("threads_waited_for", 0)
_changed_at: Final = trio.lowlevel.RunVar("threads_changed_at", 0.0)
_let_in_at: Final = trio.lowlevel.RunVar("threads_let_in_at", 0.0)

_AFTER_S: Final = 0.0003
_FOR_S: Final = 0.00003
"""With what the system adds to it, some 60 us, a thread has time to wake up."""
_PATIENCE_S: Final = 0.02
"""After so long without an end of any call, or a new one, none is let in: a disk that hangs would
cost everybody else a fifth of the loop."""


class _WaitingForThread:
    def __enter__(self) -> None:
        _waited_for.set(_waited_for.get() + 1)
        _changed_at.set(trio.current_time())

    def __exit__(self, *_: object) -> None:
        _waited_for.set(_waited_for.get() - 1)
        _changed_at.set(trio.current_time())


waiting_for_thread: Final = _WaitingForThread()
"""Within, a task waits for what a thread does, and is in a hurry."""


def yield_to_threads() -> None:
    """To be called in each turn of whatever may keep the loop busy. Now and then, while somebody
    waits for a thread, the interpreter is free for long enough that one can take it."""
    if not _waited_for.get():
        return
    now = trio.current_time()
    if now - _let_in_at.get() >= _AFTER_S and now - _changed_at.get() < _PATIENCE_S:
        time.sleep(_FOR_S)
        _let_in_at.set(trio.current_time())


_rested_at: Final = trio.lowlevel.RunVar("rested_at", 0.0)


async def yield_to_tasks(pace: DutyCycle = FOREGROUND) -> None:
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
