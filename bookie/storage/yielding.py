"""Yields the event loop to other threads and other tasks.

A loop that always has something to do releases the interpreter for some microseconds per system
call. A thread that waits for it, such as one with a finished read, is woken each time, arrives too
late each time, and because it was woken never requests that the interpreter be handed over.

Background work of many small steps must never keep the loop from its other tasks.
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
"""Together with what the system adds, some 60 us, this is enough for a thread to wake up."""
_PATIENCE_S: Final = 0.02
"""After this time without the end of a call, or a new one, the loop no longer yields: a disk that
hangs would cost all other tasks a fifth of the loop."""


class _WaitingForThread:
    def __enter__(self) -> None:
        _waited_for.set(_waited_for.get() + 1)
        _changed_at.set(trio.current_time())

    def __exit__(self, *_: object) -> None:
        _waited_for.set(_waited_for.get() - 1)
        _changed_at.set(trio.current_time())


waiting_for_thread: Final = _WaitingForThread()
"""A context in which a task urgently waits for the result of a thread."""


def is_thread_awaited() -> bool:
    """Returns whether a task urgently waits for the result of a thread."""
    return _waited_for.get() > 0


def yield_to_threads() -> None:
    """Releases the interpreter now and then, while a task waits for a thread, for long enough that
    the thread can take it. Call it in each turn of anything that may keep the loop busy."""
    if not _waited_for.get():
        return
    now = trio.current_time()
    if now - _let_in_at.get() >= _AFTER_S and now - _changed_at.get() < _PATIENCE_S:
        time.sleep(_FOR_S)
        _let_in_at.set(trio.current_time())


_rested_at: Final = trio.lowlevel.RunVar("rested_at", 0.0)


async def yield_to_tasks(pace: DutyCycle = FOREGROUND) -> None:
    """Lets other tasks run between two steps, each well under a millisecond; now and then the loop
    really waits, so that other threads run, too.

    A loop that always has something to do releases the interpreter for a microsecond per turn. A
    thread that waits for it, such as one with a finished sync, is woken each time, arrives too late
    each time, and because it was woken never requests a handover: no add was acknowledged during
    such work, for up to a third of a second. All such work in a process shares its pauses.
    """
    if trio.current_time() - _rested_at.get() < pace.work_s:
        await trio.lowlevel.checkpoint()
    else:
        await trio.sleep(pace.rest_s)
        _rested_at.set(trio.current_time())
