"""The background loop of this process: all connections of threads and asyncio share one.

Begun by the first user, ended with the last or with the interpreter; a forked child begins its
own. Must never leave a lock held in a child.
"""

from __future__ import annotations

import atexit
import os
import threading

from ledger.runtime.bridge import BackgroundLoop

EXIT_TIMEOUT_S = 5.0
"""How long the interpreter's exit waits for the loop to end."""


# Held while a loop starts, so fork() waits for that; again in a finalizer that runs meanwhile.
_guard = threading.RLock()
_loops: list[BackgroundLoop] = []


def acquire_loop() -> BackgroundLoop:
    """The loop of this process, begun if there is none; `release_loop` when done with it."""
    with _guard:
        if not _loops or _loops[0].ended.is_set():
            loop = BackgroundLoop()
            try:
                loop.start()
            except BaseException:
                loop.stop()  # Ctrl-C: the next one begins another
                raise
            _loops[:] = [loop]
        loop = _loops[0]
        loop.users += 1
        return loop


def release_loop(loop: BackgroundLoop) -> bool:
    """The last user stops the loop; True then: the caller waits for its end, by `join`."""
    with _guard:
        loop.users -= 1
        if loop.users or loop.is_forked:
            return False
        if loop in _loops:
            _loops.remove(loop)
    loop.stop()
    return True


def _forget_in_child() -> None:
    for loop in _loops:
        loop.is_forked = True
    _loops.clear()
    _guard.release()


@atexit.register
def _end_at_exit() -> None:
    for loop in list(_loops):
        loop.stop()
        loop.join(EXIT_TIMEOUT_S)


os.register_at_fork(
    before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_forget_in_child
)
