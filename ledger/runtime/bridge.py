"""Bridge: one trio loop in a thread of its own, for callers that are threads or asyncio tasks.

The first user starts it; it ends with the last one, or at the interpreter's exit. It runs calls and
holds context managers for its callers; each ends exactly once, with a value or an error, whatever
ends the loop. It must never run a caller's code, nor leave a caller waiting for a loop that ended.

trio's guest mode would not do: there each turn of the loop that waits for I/O costs a hop to a
thread and back, and a host loop that stops early leaves trio's run unfinished.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

import trio

from ledger.errors import LedgerClosed, LedgerError, TooManyRequests

T = TypeVar("T")
_log = logging.getLogger(__name__)

CALLS_MAX = 10_000
"""Calls in progress, over all callers; a further one is refused."""


class Completion:
    """An event that is set once, in the trio thread, and for which callers wait in their threads.

    `waiters` are called when it is set, in a thread that the caller's `wake` chooses. A caller that
    adds one must check `is_set` again afterwards.
    """

    __slots__ = ("is_set", "waiters")

    def __init__(self) -> None:
        self.is_set = False
        self.waiters: list[Callable[[], object]] | None = None


Wake = Callable[[Sequence[Completion]], None]
"""Sets completions and wakes their waiters. Called in the trio thread only."""


class Job:
    """A step that a caller posts to the trio thread.

    Args:
        run: called in the trio thread. It must not raise.
        refuse: called instead with a LedgerClosed, in the caller's thread, if the loop has ended
            after `post` returned: whatever waits for the job must end, too. By default nothing
            waits for it.
    """

    __slots__ = ("refuse", "run")

    def __init__(
        self,
        run: Callable[[], object],
        refuse: Callable[[LedgerError], object] = lambda _error: None,
    ) -> None:
        self.run = run
        self.refuse = refuse


Post = Callable[[Job], None]
"""Posts a job to the trio thread; jobs of one thread are run in order."""


class BackgroundLoop:
    """A trio loop in a daemon thread; made by `acquire_loop`."""

    def __init__(self) -> None:
        self.users = 0
        self.is_forked = False
        """Whether this is the copy in a forked child, where the thread does not exist."""
        self.ended = threading.Event()
        self.on_end: list[Callable[[], object]] = []
        """Called in the thread just before it ends."""
        self._calls = 0
        self._is_ending = False
        self._started = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._thread = threading.Thread(target=self._run, name="ledgerstream-loop", daemon=True)

    def start(self) -> None:
        """Returns when callers may post."""
        self._thread.start()
        self._started.wait()

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except Exception:  # noqa: BLE001 (a thread has no caller to raise it to)
            _log.exception("the background loop failed; its connections are closed")
        finally:
            self._is_ending = True
            self._started.set()
            self.ended.set()
            for callback in self.on_end:
                callback()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        try:
            async with trio.open_nursery() as self._nursery:
                self._started.set()
                if not self._is_ending:
                    await trio.sleep_forever()
        finally:
            self._is_ending = True

    @property
    def is_this_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def post(self, job: Callable[[], object]) -> None:
        """Runs `job` in the trio thread soon; jobs of one thread run in order. Callable anywhere.

        `job` must not raise. Raises LedgerClosed when the loop has ended.
        """
        if self.is_forked:
            raise LedgerClosed(
                "this connection was opened before fork() and belongs to the parent process; "
                "open another one in this process"
            )
        try:
            assert self._token is not None, "posted before it started"
            self._token.run_sync_soon(job)
        except trio.RunFinishedError:
            raise self.closed() from None

    def start_task(self, run: Callable[[], Awaitable[None]]) -> None:
        """Starts a task; called in the trio thread. Raises LedgerClosed, TooManyRequests."""
        if self._is_ending or self._nursery is None:
            raise self.closed()
        if self._calls >= CALLS_MAX:
            raise TooManyRequests(
                f"{self._calls} calls are in progress in this process; let some end first"
            )
        try:
            self._nursery.start_soon(self._counted, run)
        except RuntimeError:  # it is closed, and `_main` has not run since
            raise self.closed() from None
        self._calls += 1

    async def _counted(self, run: Callable[[], Awaitable[None]]) -> None:
        try:
            await run()
        finally:
            self._calls -= 1

    def ask(self, question: Callable[[], T]) -> T:
        """Calls a plain function in the trio thread and waits for it. Raises what it raised."""
        answered = threading.Event()
        answers: list[T] = []
        errors: list[Exception] = []

        def answer() -> None:
            try:
                answers.append(question())
            except Exception as error:  # noqa: BLE001 (it is raised again below)
                errors.append(error)
            finally:
                answered.set()

        self.post(answer)
        answered.wait()
        if errors:
            raise errors[0]
        return answers[0]

    @staticmethod
    def closed() -> LedgerClosed:
        return LedgerClosed("the connection is closed: its background loop has ended")

    def error_for_caller(self, error: BaseException) -> BaseException:
        """Returns the error to raise in a caller, which must not get the trio.Cancelled of the
        loop's end."""
        if not isinstance(error, BaseExceptionGroup):
            return error
        rest = error.split(trio.Cancelled)[1]
        return self.closed() if rest is None else rest

    def stop(self) -> None:
        """Ends the loop soon and cancels what it runs. Callable anywhere, and twice."""

        def end() -> None:
            self._is_ending = True
            if self._nursery is not None:
                self._nursery.cancel_scope.cancel()

        if not self.is_forked and not self.ended.is_set():
            if self._token is None:
                self._is_ending = True  # interrupted while it starts: it checks this afterwards
            if self._token is None:
                return
            try:
                self.post(end)
            except LedgerClosed:
                pass

    def join(self, timeout_s: float | None = None) -> None:
        """Waits until the thread has ended after `stop`."""
        if not self.is_forked and not self.is_this_thread:
            self._thread.join(timeout_s)


class Call(Completion, Generic[T]):
    """An async function that runs in the loop. Set when it has ended.

    Args:
        make: called in the trio thread; the awaitable it returns is awaited there.
        wake: notifies the caller of the end.
        give_back: called in the trio thread with the value if `cancel` came too late to prevent
            one, and no caller takes it. It must not raise.
    """

    __slots__ = (
        "_give_back", "_has_started", "_is_cancelled", "_loop", "_make", "_scope", "_value",
        "_wake", "error",
    )  # fmt: skip

    def __init__(
        self,
        loop: BackgroundLoop,
        make: Callable[[], Awaitable[T]],
        wake: Wake,
        give_back: Callable[[T], object] | None = None,
    ) -> None:
        super().__init__()
        self.error: BaseException | None = None
        self._loop = loop
        self._make = make
        self._wake = wake
        self._give_back = give_back
        self._value: list[T] = []
        self._scope: trio.CancelScope | None = None
        self._is_cancelled = False
        self._has_started = False

    def start(self) -> None:
        """Starts it. A job for `post`."""
        if self.is_set:
            return
        try:
            self._loop.start_task(self._run)
            self._has_started = True
        except LedgerError as error:
            self.refuse(error)

    def cancel(self) -> None:
        """Ends the call soon, or prevents it; a value is given back. A job for `post`."""
        self._is_cancelled = True
        if self.is_set:
            self._return_value()
        elif self._scope is not None:
            self._scope.cancel()
        elif not self._has_started:
            self.refuse(LedgerClosed("cancelled before it began"))

    def _return_value(self) -> None:
        give_back, self._give_back = self._give_back, None
        if give_back is not None and self._value:
            give_back(self._value[0])

    def refuse(self, error: LedgerError) -> None:
        """Ends the call with this error, unless it has ended. The loop does not run it."""
        if not self.is_set:
            self.error = error
            self._wake([self])

    async def _run(self) -> None:
        try:
            with trio.CancelScope() as self._scope:
                if self._is_cancelled:
                    self._scope.cancel()
                self._value.append(await self._make())
            if self._scope.cancelled_caught:
                self.error = LedgerClosed("cancelled")
        except trio.Cancelled:
            self.error = self._loop.closed()
            raise
        except BaseException as error:  # noqa: BLE001 (it is raised again where it was called)
            self.error = self._loop.error_for_caller(error)
        finally:
            if self._is_cancelled:
                self._return_value()
            self._wake([self])

    def result(self) -> T:
        """Returns what the function returned, or raises what it raised. It must have ended."""
        assert self.is_set, "it has not ended"
        if self._value:
            return self._value[0]
        assert self.error is not None, "neither value nor error"
        raise self.error


class BlockFailed(Exception):
    """Raised inside a context manager in the trio thread when its caller's block raised."""


class RemoteContext(Generic[T]):
    """A trio context manager, entered and left in one trio task for a block in another thread.

    `entered` is set when `value` is available or entering failed; `left` is set at the end, with
    `error` if it ended by an error other than the block's own.
    """

    def __init__(
        self,
        loop: BackgroundLoop,
        make: Callable[[], AbstractAsyncContextManager[T]],
        wake: Wake,
    ) -> None:
        self.entered = Completion()
        self.left = Completion()
        self.error: BaseException | None = None
        self._loop = loop
        self._make = make
        self._wake = wake
        self._value: list[T] = []
        self._scope = trio.CancelScope()
        self._leaving = trio.Event()
        self._has_failed = False
        self._has_started = False

    @property
    def value(self) -> T:
        """The value of entering; raises what entering raised."""
        if self._value:
            return self._value[0]
        raise self.error or self._loop.closed()

    def start(self) -> None:
        """Starts it. A job for `post`."""
        if self.left.is_set:
            return
        try:
            self._loop.start_task(self._run)
            self._has_started = True
        except LedgerError as error:
            self.refuse(error)

    def leave(self) -> None:
        """Reports that the block ended without an error. A job for `post`."""
        self._leaving.set()

    def fail(self) -> None:
        """Reports that the block raised. A job for `post`."""
        self._has_failed = True
        self._leaving.set()

    def cancel(self) -> None:
        """Cancels it: with the block, or if entering or leaving takes too long. For `post`."""
        self._scope.cancel()
        if not self._has_started:
            self.refuse(LedgerClosed("cancelled before it began"))

    def refuse(self, error: LedgerError) -> None:
        """Ends the block with this error, unless it has ended. The loop does not run it."""
        if not self.left.is_set:
            self.error = error
            self._wake([self.entered, self.left])

    async def _run(self) -> None:
        try:
            with self._scope:
                async with self._make() as value:
                    self._value.append(value)
                    self._wake([self.entered])
                    await self._leaving.wait()
                    if self._has_failed:
                        raise BlockFailed
        except trio.Cancelled:
            self.error = self._loop.closed()
            raise
        except BlockFailed:
            pass
        except BaseExceptionGroup as group:
            if (rest := group.split(BlockFailed)[1]) is not None:
                self.error = self._loop.error_for_caller(rest)
        except BaseException as error:  # noqa: BLE001 (it is raised again where the block is)
            self.error = error
        finally:
            self._wake([self.entered, self.left])
