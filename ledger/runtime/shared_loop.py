"""The background loop of this process, shared by all connections of threads and of asyncio.

The first user starts it; it ends with the last one or with the interpreter. A forked child starts
its own. It must never leave a lock held in a child.
"""

from __future__ import annotations

import atexit
import os
import threading

from ledger.runtime.bridge import BackgroundLoop

EXIT_TIMEOUT_S = 5.0
"""How long the exit of the interpreter waits for the loop to end."""


# Held while a loop starts, so that fork() waits for it. Reentrant: a finalizer may run meanwhile.
_guard = threading.RLock()
_loops: list[BackgroundLoop] = []


def acquire_loop() -> BackgroundLoop:
    """Returns the loop of this process, started if there is none. Pair it with `release_loop`."""
    with _guard:
        if not _loops or _loops[0].ended.is_set():
            loop = BackgroundLoop()
            try:
                loop.start()
            except BaseException:
                loop.stop()  # Ctrl-C: the next call starts another one
                raise
            _loops[:] = [loop]
        loop = _loops[0]
        loop.users += 1
        return loop


def release_loop(loop: BackgroundLoop) -> bool:
    """Stops the loop for its last user. Returns True then: the caller waits for it by `join`."""
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
