"""Threads that make blocking calls for tasks, at half the cost of `trio.to_thread.run_sync`.

A read that misses the page cache passes through here, and so does each write of a journal. Must
never lose what a call returned or raised, or leave it unknown whether it ended: cancellation waits.

Each directory has its own threads, since it is or should be a disk of its own: one that hangs uses
up no other's.
"""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

import outcome
import trio

T = TypeVar("T")
Call = Callable[[], None]

IDLE_S: Final = 10.0
"""A thread that was idle for this long ends."""
FOREVER: Final = -1.0


class _Worker:
    """A thread, which sleeps until `wakes` is released: to make `call`, or to end."""

    __slots__ = ("call", "wakes")

    def __init__(self, call: Call) -> None:
        self.call: Call | None = call
        self.wakes = threading.Lock()
        self.wakes.acquire()


class BlockingCallPool:
    """Up to `threads_max` daemon threads, started on demand. Calls begin in the order in which they
    arrive. The thread that was idle for the shortest time goes next, so that the others may end."""

    def __init__(self, name: str, threads_max: int, *, idle_s: float = IDLE_S) -> None:
        """`idle_s`: how long a thread may be idle before it ends, or FOREVER."""
        assert threads_max > 0
        self._name = name
        self._threads_max = threads_max
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._threads = 0
        self._idle: list[_Worker] = []
        self._waiting: deque[Call] = deque()
        """Calls that wait for a thread; empty while one is idle. No more than tasks that wait."""
        self._is_ended = False

    async def run(self, do: Callable[[], T]) -> T:
        """Runs `do` in a thread, and returns or raises what it does. Not cancellable: the outcome
        must be known. Raises OSError (EAGAIN) if the system provides no thread at all."""
        task = trio.lowlevel.current_task()
        token = trio.lowlevel.current_trio_token()

        def call() -> None:
            result = outcome.capture(do)
            try:
                token.run_sync_soon(trio.lowlevel.reschedule, task, result)
            except trio.RunFinishedError:
                pass  # the run has ended; no task waits

        self._put(call)
        # Any: trio does not type what a task is rescheduled with.
        done: T = await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        return done

    def _put(self, call: Call) -> None:
        with self._lock:
            if self._idle:
                worker = self._idle.pop()
                worker.call = call
                worker.wakes.release()
            elif self._threads == self._threads_max or not self._start(_Worker(call)):
                self._waiting.append(call)

    def _start(self, worker: _Worker) -> bool:
        """Returns False if the system provides no further thread, but there are others to wait
        for."""
        thread = threading.Thread(target=self._work, args=(worker,), name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            if self._threads:
                return False
            raise OSError(errno.EAGAIN, f"the system gives no thread: {error}") from error
        self._threads += 1
        return True

    def _work(self, worker: _Worker) -> None:
        call = worker.call
        while call is not None:
            call()
            call = self._next_call(worker)

    def _next_call(self, worker: _Worker) -> Call | None:
        """Returns None if the thread must end; it is not counted any more."""
        worker.call = None
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            if self._is_ended:
                self._threads -= 1
                return None
            self._idle.append(worker)
        if not worker.wakes.acquire(timeout=self._idle_s):
            with self._lock:
                if worker in self._idle:
                    self._idle.remove(worker)
                    self._threads -= 1
                    return None
            worker.wakes.acquire()  # it has just been given a call
        return worker.call

    def end(self) -> None:
        """Ends the threads when the calls so far have ended. Later calls still run, in threads that
        then end."""
        with self._lock:
            self._is_ended = True
            self._threads -= len(self._idle)
            while self._idle:
                self._idle.pop().wakes.release()


WRITE_THREADS_MAX: Final = 4
READ_THREADS_MAX: Final = 16
"""More than the slots of `bookie.server.read_scheduler`, including those for priority, so that none
of its reads waits for a thread behind compaction, scrubbing and the like."""


class Threads(NamedTuple):
    """The threads of one directory."""

    reads: BlockingCallPool
    writes: trio.CapacityLimiter


class DiskThreads:
    """The threads of all directories of a process."""

    def __init__(self) -> None:
        self._by_directory: dict[str, Threads] = {}

    def of(self, directory: str) -> Threads:
        """Returns the threads of a directory. The paths are those of the configuration."""
        threads = self._by_directory.get(directory)
        if threads is None:
            threads = self._by_directory[directory] = Threads(
                BlockingCallPool(f"reads {directory}", READ_THREADS_MAX),
                trio.CapacityLimiter(WRITE_THREADS_MAX),
            )
        return threads

    def end(self) -> None:
        """Ends the threads that read when their calls have ended."""
        for threads in self._by_directory.values():
            threads.reads.end()
