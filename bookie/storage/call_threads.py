"""Threads that make blocking calls for tasks, at half the cost of `trio.to_thread.run_sync`.

A read that misses the page cache passes through here, and so does each write of a journal. Must
never lose what a call returned or raised, or leave it open whether it ended: cancelling waits.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final, TypeVar

import outcome
import trio

T = TypeVar("T")

IDLE_S: Final = 10.0
"""A thread that had nothing to do for so long ends."""


class CallThreads:
    """Up to `threads_max` daemon threads, begun when they are needed. Calls begin in the order in
    which they came; with one thread they end in it, too."""

    def __init__(self, name: str, threads_max: int) -> None:
        assert threads_max > 0
        self._name = name
        self._threads_max = threads_max
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._under_way = 0
        """Calls that were put and have not ended: while there are more of them than threads, there
        are as many threads as may be."""

    async def run(self, do: Callable[[], T]) -> T:
        """What `do` returns or raises, in a thread. Not cancellable: the outcome must be known."""
        task = trio.lowlevel.current_task()
        token = trio.lowlevel.current_trio_token()

        def call() -> None:
            result = outcome.capture(do)
            try:
                token.run_sync_soon(trio.lowlevel.reschedule, task, result)
            except trio.RunFinishedError:
                pass  # the run was torn down; nobody waits

        with self._lock:
            if self._under_way >= self._threads and self._threads < self._threads_max:
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
                self._threads += 1
            self._under_way += 1
        self._calls.put(call)
        # Any: trio does not type what a task is rescheduled with.
        done: T = await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        return done

    def _work(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=IDLE_S)
            except queue.Empty:
                call = None
            if call is not None:
                call()
            with self._lock:
                if call is not None:
                    self._under_way -= 1
                elif self._under_way < self._threads:  # else a call has just been put
                    self._threads -= 1
                    return

    def end(self) -> None:
        """Threads end when the calls put so far have; for later ones there are threads again."""
        with self._lock:
            for _ in range(self._threads):
                self._calls.put(None)
