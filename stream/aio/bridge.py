"""Bridge: asyncio tasks call the trio loop in the background through it, and are woken by it.

All jobs that tasks post in one turn of the asyncio loop cross in one hop, and so do the results.
A cancelled task ends only when the trio side has ended. Must never touch the asyncio loop in the
trio thread except by `call_soon_threadsafe`. Its twin for threads is stream/blocking/bridge.py.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Generic, TypeVar

from ledger.errors import LedgerClosed
from ledger.runtime.bridge import BackgroundLoop, Call, Completion, Job, RemoteContext
from ledger.runtime.shared_loop import acquire_loop, release_loop

T = TypeVar("T")


class Bridge:
    """The bridge from one asyncio loop. Made by `open_bridge`."""

    def __init__(self, loop: BackgroundLoop) -> None:
        self._loop = loop
        self._host = asyncio.get_running_loop()
        self._outgoing: list[Job] = []
        self._arrived: deque[Completion] = deque()
        self._is_host_asked = False

    def check_loop(self) -> None:
        """Raises RuntimeError in an asyncio loop that the connection was not opened in."""
        if asyncio.get_running_loop() is not self._host:
            raise RuntimeError(
                "this connection was opened in another asyncio event loop; open one in this loop"
            )

    # To the trio thread

    def post(self, job: Job) -> None:
        """Posts `job` to the trio thread, in order, after this turn of the asyncio loop."""
        outgoing = self._outgoing
        if not outgoing:
            self._host.call_soon(self._send)
        outgoing.append(job)

    def _send(self) -> None:
        jobs, self._outgoing = self._outgoing, []
        if not jobs:
            return

        def run() -> None:
            for job in jobs:
                job.run()

        try:
            self._loop.post(run)
        except LedgerClosed as error:
            for job in jobs:
                job.refuse(error)

    def post_now(self, job: Job) -> None:
        """Posts at once, from any thread, even if the asyncio loop is closed."""
        self._loop.post(job.run)

    # From the trio thread

    def wake(self, completions: Sequence[Completion]) -> None:
        """Sets completions and wakes their waiters in the asyncio loop, many in one hop."""
        arrived = self._arrived
        for completion in completions:
            completion.is_set = True
            # A waiter that is added only now sees that it is set.
            if completion.waiters:
                arrived.append(completion)
        if arrived and not self._is_host_asked:
            self._is_host_asked = True
            try:
                self._host.call_soon_threadsafe(self._receive)
            except RuntimeError:
                arrived.clear()  # the asyncio loop is closed: no task waits any more

    def _receive(self) -> None:
        self._is_host_asked = False
        arrived = self._arrived
        while arrived:
            self._set(arrived.popleft())

    @staticmethod
    def _set(completion: Completion) -> None:
        completion.is_set = True
        waiters, completion.waiters = completion.waiters, None
        for waiter in waiters or ():
            waiter()

    # Waiting

    async def wait(self, completion: Completion) -> None:
        """Waits until the completion is set."""
        if completion.is_set:
            return
        self.check_loop()
        future: asyncio.Future[None] = self._host.create_future()
        waiter = partial(_finish, future)
        if completion.waiters is None:
            completion.waiters = [waiter]
        else:
            completion.waiters.append(waiter)
        if not completion.is_set:
            try:
                await future
            except BaseException:
                if completion.waiters is not None and waiter in completion.waiters:
                    completion.waiters.remove(waiter)
                raise

    async def wait_out(self, completion: Completion) -> None:
        """Waits until the completion of a cancelled call is set; ignores further cancellation."""
        while not completion.is_set:
            try:
                await self.wait(completion)
            except asyncio.CancelledError:
                continue

    async def call(
        self, make: Callable[[], Awaitable[T]], give_back: Callable[[T], object] | None = None
    ) -> T:
        """Awaits `make()` in the trio thread; returns its result or raises its error.

        Cancelling it cancels the trio side, and CancelledError is raised when that has ended. If it
        ended with a value nevertheless, `give_back` is called with the value in the trio thread,
        before any job that is posted later.
        """
        self.check_loop()
        call = Call(self._loop, make, self.wake, give_back)
        self.post(Job(call.start, call.refuse))
        try:
            await self.wait(call)
        except BaseException:
            self.post(Job(call.cancel, call.refuse))
            await self.wait_out(call)
            raise
        return call.result()

    def ask(self, question: Callable[[], T]) -> T:
        """Calls a plain function in the trio thread; returns its result or raises its error.

        The asyncio loop is blocked meanwhile, for about 0.1 ms: only for rare calls.
        """
        self.check_loop()
        if self._outgoing:
            self._send()  # jobs posted before come first
        return self._loop.ask(question)

    def relay(self, notify: Callable[[T], None] | None) -> Callable[[T], None] | None:
        """Returns a function for the trio side that calls `notify` in the asyncio loop."""
        if notify is None:
            return None

        def relayed(value: T) -> None:
            try:
                self._host.call_soon_threadsafe(notify, value)
            except RuntimeError:
                pass  # the asyncio loop is closed: no task listens any more

        return relayed

    def hold(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> BridgedContext[T]:
        """Returns an `async with` block around a context manager in the trio thread."""
        return BridgedContext(self, RemoteContext(self._loop, make, self.wake))


class BridgedContext(Generic[T]):
    """The block of `Bridge.hold`. Raises the errors of entering and leaving in the trio thread; an
    error of the block itself is not replaced."""

    def __init__(self, bridge: Bridge, remote: RemoteContext[T]) -> None:
        self._bridge = bridge
        self._remote = remote

    async def __aenter__(self) -> T:
        bridge, remote = self._bridge, self._remote
        bridge.check_loop()
        bridge.post(Job(remote.start, remote.refuse))
        try:
            await bridge.wait(remote.entered)
        except BaseException:
            bridge.post(Job(remote.cancel, remote.refuse))
            await bridge.wait_out(remote.left)
            raise
        return remote.value

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        bridge, remote = self._bridge, self._remote
        if error is None:
            bridge.post(Job(remote.leave, remote.refuse))
        elif isinstance(error, Exception):
            bridge.post(Job(remote.fail, remote.refuse))
        else:
            bridge.post(Job(remote.cancel, remote.refuse))
        try:
            await bridge.wait(remote.left)
        except BaseException:
            bridge.post(Job(remote.cancel, remote.refuse))
            await bridge.wait_out(remote.left)
            raise
        if remote.error is not None and (error is None or isinstance(error, Exception)):
            raise remote.error

    def drop(self) -> None:
        """Ends a block that will not be left any more; for finalizers, in any thread."""
        if not self._remote.left.is_set:
            try:
                self._bridge.post_now(Job(self._remote.cancel, self._remote.refuse))
            except LedgerClosed:
                pass


class open_bridge:
    """Opens the background loop for the running asyncio loop; it ends with its last user.

    It is not a generator: asyncio closes all generators at once when a program ends with open
    connections, and one that waits for another cannot be closed.
    """

    def __init__(self) -> None:
        self._loop: BackgroundLoop | None = None

    async def __aenter__(self) -> Bridge:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError(
                "stream.aio is for asyncio, and no asyncio event loop runs here; "
                "in trio use `stream`, in plain functions `stream.blocking`"
            ) from None
        self._loop = acquire_loop()
        return Bridge(self._loop)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        loop, self._loop = self._loop, None
        if loop is None or not release_loop(loop):
            return
        host = asyncio.get_running_loop()
        ended: asyncio.Future[None] = host.create_future()

        def notify() -> None:
            try:
                host.call_soon_threadsafe(_finish, ended)
            except RuntimeError:
                pass  # the asyncio loop is closed: no task waits any more

        loop.on_end.append(notify)
        if loop.ended.is_set():
            _finish(ended)
        cancelled: asyncio.CancelledError | None = None
        while not ended.done():
            try:
                await asyncio.shield(ended)
            except asyncio.CancelledError as late:
                cancelled = late
        loop.join()
        if cancelled is not None:
            raise cancelled


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
