"""Bridge: how threads reach the trio loop in the background, and wait for it.

A wait ends early by Ctrl-C (in the main thread) or by `fail_after`: then the trio side is
cancelled, and the exception leaves when that has ended; a second Ctrl-C does not wait. Safe for any
number of threads. Its twin for asyncio is stream/aio/bridge.py.
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
from ledger.runtime.bridge import BackgroundLoop, Call, Completion, RemoteContext
from ledger.runtime.shared_loop import acquire_loop, release_loop

T = TypeVar("T")


class _Deadlines(threading.local):
    """When the calls of this thread give up, innermost last; monotonic seconds."""

    def __init__(self) -> None:
        self.at_s: list[float] = []


_deadlines = _Deadlines()
_joining = threading.RLock()
"""Held while a thread joins those that wait for a completion; by a finalizer in it, too."""


def _join_anew_in_child() -> None:
    global _joining
    _joining = threading.RLock()  # a thread that was not copied may have remote it


os.register_at_fork(after_in_child=_join_anew_in_child)


@contextmanager
def fail_after(seconds: float) -> Iterator[None]:
    """Calls of this thread inside the block raise TimeoutError once `seconds` have passed.

    What they were doing is cancelled, as by Ctrl-C: objects stay usable, an append is unknown.
    """
    _deadlines.at_s.append(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadlines.at_s.pop()


class Bridge:
    """Made by `open_bridge`."""

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

    def post(self, job: Callable[[], object]) -> None:
        """Has `job` run in the trio thread; jobs of one thread in order."""
        self._loop.post(job)

    post_now = post

    # From the trio thread

    @staticmethod
    def wake(completions: Sequence[Completion]) -> None:
        """Sets completions and wakes who waits."""
        for completion in completions:
            completion.is_set = True
            # Each waiter once: some completions are set twice, by the event and by the end of all.
            waiters, completion.waiters = completion.waiters, None
            for waiter in tuple(waiters or ()):  # others may take theirs back meanwhile
                waiter()

    # Waiting

    def wait(self, completion: Completion) -> None:
        """Until it is set. Raises TimeoutError (see `fail_after`), KeyboardInterrupt."""
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
            # Who adds itself too late to be woken sees that it is set.
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
        """Has `cancel` run in the trio thread and waits for `completion`, ignoring `fail_after`."""
        try:
            self.post(cancel)  # also if it is set: there may be a value to give back
        except LedgerClosed:
            return
        if not completion.is_set:
            self._wait(completion, -1)

    def call(
        self, make: Callable[[], Awaitable[T]], give_back: Callable[[T], object] | None = None
    ) -> T:
        """Awaits `make()` in the trio thread; returns or raises what it did.

        If interrupted, the trio side is cancelled, and the exception leaves when that has ended.
        If it ended with a value all the same, `give_back` is called with it in the trio thread,
        before what is posted later.
        """
        self.check_loop()
        call = Call(self._loop, make, self.wake, give_back)
        try:
            self.post(call.start)
            self.wait(call)
        except BaseException:
            self.abort(call.cancel, call)
            raise
        try:
            return call.result()
        except StopAsyncIteration:
            raise StopIteration from None

    def ask(self, question: Callable[[], T]) -> T:
        """What a plain function of the trio side returns or raises."""
        self.check_loop()
        return self._loop.ask(question)

    @staticmethod
    def relay(tell: Callable[[T], None] | None) -> Callable[[T], None] | None:
        """A function that trio calls: `tell` itself, in the thread of the loop."""
        return tell

    def hold(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> BridgedContext[T]:
        """A `with` block here around a context manager there."""
        return BridgedContext(self, RemoteContext(self._loop, make, self.wake))


class BridgedContext(Generic[T]):
    """The block of `Bridge.hold`. Raises what entering and leaving raise there; what the block
    raised stays what it was."""

    def __init__(self, bridge: Bridge, remote: RemoteContext[T]) -> None:
        self._bridge = bridge
        self._remote = remote

    def __enter__(self) -> T:
        bridge, remote = self._bridge, self._remote
        bridge.check_loop()
        try:
            bridge.post(remote.start)
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
                bridge.post(remote.leave)
            elif isinstance(error, Exception):
                bridge.post(remote.fail)
            else:
                bridge.post(remote.cancel)
            bridge.wait(remote.left)
        except BaseException:
            bridge.abort(remote.cancel, remote.left)
            raise
        if remote.error is not None and (error is None or isinstance(error, Exception)):
            raise remote.error

    def drop(self) -> None:
        """Ends what nobody will leave any more: for finalizers, in any thread."""
        if not self._remote.left.is_set:
            try:
                self._bridge.post_now(self._remote.cancel)
            except LedgerClosed:
                pass


@contextmanager
def open_bridge() -> Iterator[Bridge]:
    """The background loop for this process; it ends with its last user."""
    loop = acquire_loop()
    try:
        yield Bridge(loop)
    finally:
        if release_loop(loop):
            loop.join()
