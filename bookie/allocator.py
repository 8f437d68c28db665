"""How a bookie has the C library's allocator keep memory, and when it gives some back.

Does nothing where the C library is not glibc: its neighbours have no such controls, or need none.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import trio

# glibc's names for: give memory back late, ask for much at once; map by themselves what is about as
# large as one piece of reading ahead, because such pieces live long, and holes of their size fill
# with smaller ones; and one arena for all threads, as each arena keeps what its largest user ever
# took, and work goes to another thread each time.
_OPTIONS = ((-1, 1 << 30), (-2, 64 << 20), (-3, 200 << 10), (-8, 1))
_INTERVAL_S = 60.0


def tune_allocator() -> None:
    """For buffers that come and go at a high rate: they are reused rather than given back."""
    mallopt = _of_glibc("mallopt")
    if mallopt is not None:
        for option, value in _OPTIONS:
            mallopt(option, value)


def give_memory_back() -> None:
    """Gives the system what is free in the middle of the heap too, in whole pages.

    A busy bookie takes it again at its next checkpoint; one that has become idle does not keep
    what its busiest minute took. About a millisecond, in which other threads that allocate wait.
    """
    malloc_trim = _of_glibc("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


async def give_memory_back_regularly() -> None:
    """Never returns. Seldom enough that fetching the pages again costs next to nothing."""
    while True:
        await trio.sleep(_INTERVAL_S)
        await trio.to_thread.run_sync(give_memory_back)


def _of_glibc(name: str) -> Callable[..., int] | None:
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
    return function
