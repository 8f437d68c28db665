"""Bridge: how asyncio tasks reach the trio loop in the background, and are woken from there.

What the tasks of one turn of the asyncio loop post goes over in one hop; so does what comes back.
A task that is cancelled ends only when the trio side has ended. Must never touch the asyncio loop
from the trio thread but by `call_soon_threadsafe`. Its twin for threads is
stream/blocking/bridge.py.
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
from ledger.runtime.bridge import BackgroundLoop, Call, Completion, RemoteContext
from ledger.runtime.shared_loop import acquire_loop, release_loop
from stream.bridge.appends import Appends

T = TypeVar("T")


class Bridge:
    """Of one asyncio loop. Made by `open_bridge`."""

    def __init__(self, loop: BackgroundLoop) -> None:
        self._loop = loop
        self._host = asyncio.get_running_loop()
        self._outgoing: list[Callable[[], object]] = []
        self._arrived: deque[Completion] = deque()
        self._is_host_asked = False

    def check_loop(self) -> None:
        """Raises RuntimeError in another asyncio loop than this connection's."""
        if asyncio.get_running_loop() is not self._host:
            raise RuntimeError(
                "this connection was opened in another asyncio event loop; open one in this loop"
            )

    # To the trio thread

    def post(self, job: Callable[[], object]) -> None:
        """Has `job` run in the trio thread, in order, after this turn of the asyncio loop."""
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
                job()

        try:
            self._loop.post(run)
        except LedgerClosed as error:
            # Calls and blocks end with an error even so.
            for job in jobs:
                owner = getattr(job, "__self__", None)
                if isinstance(owner, Call):
                    owner.error = owner.error or error
                    self._set(owner)
                elif isinstance(owner, RemoteContext):
                    owner.error = owner.error or error
                    self._set(owner.entered)
                    self._set(owner.left)
                elif isinstance(owner, Appends):
                    job()  # closed by now: refuses what it finds

    def post_now(self, job: Callable[[], object]) -> None:
        """The same from any thread, also when the asyncio loop is closed already."""
        self._loop.post(job)

    # From the trio thread

    def wake(self, completions: Sequence[Completion]) -> None:
        """Sets completions; who waits is woken in the asyncio loop, many in one hop."""
        arrived = self._arrived
        for completion in completions:
            completion.is_set = True
            # Who adds itself only now sees that it is set.
            if completion.waiters:
                arrived.append(completion)
        if arrived and not self._is_host_asked:
            self._is_host_asked = True
            try:
                self._host.call_soon_threadsafe(self._receive)
            except RuntimeError:
                arrived.clear()  # the asyncio loop is closed: nobody waits any more

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
        """Until it is set."""
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
        """Until it is set, cancelled or not: for the end of what was cancelled already."""
        while not completion.is_set:
            try:
                await self.wait(completion)
            except asyncio.CancelledError:
                continue

    async def call(
        self, make: Callable[[], Awaitable[T]], give_back: Callable[[T], object] | None = None
    ) -> T:
        """Awaits `make()` in the trio thread; returns or raises what it did.

        If cancelled, so is the trio side, and CancelledError is raised when that has ended. If it
        ended with a value all the same, `give_back` is called with it in the trio thread, before
        what is posted later.
        """
        self.check_loop()
        call = Call(self._loop, make, self.wake, give_back)
        self.post(call.start)
        try:
            await self.wait(call)
        except BaseException:
            self.post(call.cancel)
            await self.wait_out(call)
            raise
        return call.result()

    def ask(self, question: Callable[[], T]) -> T:
        """What a plain function of the trio side returns or raises.

        The asyncio loop stands still meanwhile, for about 0.1 ms: for what is done rarely.
        """
        self.check_loop()
        if self._outgoing:
            self._send()  # what was posted before comes first
        return self._loop.ask(question)

    def relay(self, tell: Callable[[T], None] | None) -> Callable[[T], None] | None:
        """A function that trio calls, which has `tell` called in the asyncio loop."""
        if tell is None:
            return None

        def relayed(what: T) -> None:
            try:
                self._host.call_soon_threadsafe(tell, what)
            except RuntimeError:
                pass  # the asyncio loop is closed: nobody wants to know any more

        return relayed

    def hold(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> BridgedContext[T]:
        """An `async with` block here around a context manager there."""
        return BridgedContext(self, RemoteContext(self._loop, make, self.wake))


class BridgedContext(Generic[T]):
    """The block of `Bridge.hold`. Raises what entering and leaving raise there; what the block
    raised stays what it was."""

    def __init__(self, bridge: Bridge, remote: RemoteContext[T]) -> None:
        self._bridge = bridge
        self._remote = remote

    async def __aenter__(self) -> T:
        bridge, remote = self._bridge, self._remote
        bridge.check_loop()
        bridge.post(remote.start)
        try:
            await bridge.wait(remote.entered)
        except BaseException:
            bridge.post(remote.cancel)
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
            bridge.post(remote.leave)
        elif isinstance(error, Exception):
            bridge.post(remote.fail)
        else:
            bridge.post(remote.cancel)
        try:
            await bridge.wait(remote.left)
        except BaseException:
            bridge.post(remote.cancel)
            await bridge.wait_out(remote.left)
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


class open_bridge:
    """The background loop for the asyncio loop that runs; it ends with its last user.

    No generator: asyncio closes those all at once when a program ends with connections open, and
    one that waits for another cannot be closed.
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

        def tell() -> None:
            try:
                host.call_soon_threadsafe(_finish, ended)
            except RuntimeError:
                pass  # the asyncio loop is closed: nobody waits any more

        loop.on_end.append(tell)
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
