"""Bridge: threads call the trio loop in the background through it, and wait for results.

Ctrl-C (in the main thread) or `fail_after` end a wait early: the trio side is cancelled, and the
exception is raised when that has ended; a second Ctrl-C does not wait for it. Safe for any number
of threads. Its twin for asyncio is stream/aio/bridge.py.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from types import TracebackType
from typing import Generic, TypeVar

from ledger.errors import LedgerClosed
from ledger.runtime.bridge import BackgroundLoop, Call, Completion, Job, RemoteContext
from ledger.runtime.shared_loop import acquire_loop, release_loop

T = TypeVar("T")


class _Deadlines(threading.local):
    """The deadlines of this thread's calls, innermost last; monotonic seconds."""

    def __init__(self) -> None:
        self.at_s: list[float] = []


_deadlines = _Deadlines()
_joining = threading.RLock()
"""Held while a thread joins the waiters of a completion; reentrant, because a finalizer may run in
it."""


def _renew_lock_in_child() -> None:
    global _joining
    _joining = threading.RLock()  # a thread that was not copied may have held it


os.register_at_fork(after_in_child=_renew_lock_in_child)


@contextmanager
def fail_after(seconds: float) -> Iterator[None]:
    """Calls of this thread inside the block raise TimeoutError once `seconds` have passed.

    Their work is cancelled, as by Ctrl-C: objects stay usable, the outcome of an append is unknown.
    """
    _deadlines.at_s.append(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadlines.at_s.pop()


class Bridge:
    """The bridge from the threads of this process. Made by `open_bridge`."""

    def __init__(self, loop: BackgroundLoop) -> None:
        self._loop = loop

    def check_loop(self) -> None:
        """Raises RuntimeError in the trio thread, which would wait for itself."""
        if self._loop.is_this_thread:
            raise RuntimeError("a blocking call in the thread of the background loop")

    @property
    def is_here(self) -> bool:
        """Whether this is the trio thread."""
        return self._loop.is_this_thread

    # To the trio thread

    def post(self, job: Job) -> None:
        """Posts `job` to the trio thread; jobs of one thread run in order. Raises LedgerClosed."""
        self._loop.post(job.run)

    post_now = post

    # From the trio thread

    @staticmethod
    def wake(completions: Sequence[Completion]) -> None:
        """Sets completions and wakes their waiters."""
        for completion in completions:
            completion.is_set = True
            # Each waiter once: some completions are set twice, by the event and by the loop's end.
            waiters, completion.waiters = completion.waiters, None
            for waiter in tuple(waiters or ()):  # other threads may remove theirs meanwhile
                waiter()

    # Waiting

    def wait(self, completion: Completion) -> None:
        """Waits until it is set. Raises TimeoutError (see `fail_after`), KeyboardInterrupt."""
        if completion.is_set:
            return
        at_s = _deadlines.at_s
        timeout_s = max(min(at_s) - time.monotonic(), 0) if at_s else -1
        if not self._wait(completion, timeout_s):
            raise TimeoutError("the time given by fail_after() is over")

    @staticmethod
    def _wait(completion: Completion, timeout_s: float) -> bool:
        lock = threading.Lock()
        lock.acquire()
        waiter = lock.release
        with _joining:
            waiters = completion.waiters
            if waiters is None:
                waiters = completion.waiters = []
            waiters.append(waiter)
        has_come = False
        try:
            # A waiter that is added too late to be woken sees that it is set.
            has_come = completion.is_set or lock.acquire(
                timeout=min(timeout_s, threading.TIMEOUT_MAX)
            )
        finally:
            if not has_come:
                with _joining:
                    if waiter in waiters:
                        waiters.remove(waiter)
        return has_come

    def abort(self, cancel: Callable[[], object], completion: Completion) -> None:
        """Runs `cancel` in the trio thread and waits for `completion`, ignoring `fail_after`."""
        try:
            self.post(Job(cancel))  # also if it is set: there may be a value to give back
        except LedgerClosed:
            return
        if not completion.is_set:
            self._wait(completion, -1)

    def call(
        self, make: Callable[[], Awaitable[T]], give_back: Callable[[T], object] | None = None
    ) -> T:
        """Awaits `make()` in the trio thread; returns its result or raises its error.

        An interrupt cancels the trio side, and the exception is raised when that has ended. If it
        ended with a value nevertheless, `give_back` is called with the value in the trio thread,
        before any job that is posted later.
        """
        self.check_loop()
        call = Call(self._loop, make, self.wake, give_back)
        try:
            self.post(Job(call.start))
            self.wait(call)
        except BaseException:
            self.abort(call.cancel, call)
            raise
        try:
            return call.result()
        except StopAsyncIteration:
            raise StopIteration from None

    def ask(self, question: Callable[[], T]) -> T:
        """Calls a plain function in the trio thread; returns its result or raises its error."""
        self.check_loop()
        return self._loop.ask(question)

    @staticmethod
    def relay(notify: Callable[[T], None] | None) -> Callable[[T], None] | None:
        """Returns a function for the trio side: `notify` itself, called in the loop's thread."""
        return notify

    def hold(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> BridgedContext[T]:
        """Returns a `with` block around a context manager in the trio thread."""
        return BridgedContext(self, RemoteContext(self._loop, make, self.wake))


class BridgedContext(Generic[T]):
    """The block of `Bridge.hold`. Raises the errors of entering and leaving in the trio thread; an
    error of the block itself is not replaced."""

    def __init__(self, bridge: Bridge, remote: RemoteContext[T]) -> None:
        self._bridge = bridge
        self._remote = remote

    def __enter__(self) -> T:
        bridge, remote = self._bridge, self._remote
        bridge.check_loop()
        try:
            bridge.post(Job(remote.start))
            bridge.wait(remote.entered)
        except BaseException:
            bridge.abort(remote.cancel, remote.left)
            raise
        return remote.value

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        bridge, remote = self._bridge, self._remote
        if bridge.is_here:
            # The garbage collector ends a block that was dropped: the trio thread cannot wait.
            remote.cancel()
            return
        try:
            if remote.left.is_set:
                pass  # it ended by itself, or with the loop
            elif error is None:
                bridge.post(Job(remote.leave))
            elif isinstance(error, Exception):
                bridge.post(Job(remote.fail))
            else:
                bridge.post(Job(remote.cancel))
            bridge.wait(remote.left)
        except BaseException:
            bridge.abort(remote.cancel, remote.left)
            raise
        if remote.error is not None and (error is None or isinstance(error, Exception)):
            raise remote.error

    def drop(self) -> None:
        """Ends a block that will not be left any more; for finalizers, in any thread."""
        if not self._remote.left.is_set:
            try:
                self._bridge.post_now(Job(self._remote.cancel))
            except LedgerClosed:
                pass


@contextmanager
def open_bridge() -> Iterator[Bridge]:
    """Opens the background loop of this process; it ends with its last user."""
    loop = acquire_loop()
    try:
        yield Bridge(loop)
    finally:
        if release_loop(loop):
            loop.join()
