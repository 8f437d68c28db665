"""When checkpoints are made, who waits for room meanwhile, and what a failure means.

Its twin `checkpoint` says how one is made. After a failed checkpoint what is on disk is
unknown: nothing may change entry logs or index any more, and the process must exit.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from bookie.storage.checkpoint import Checkpointer
from bookie.storage.settings import StorageFailed
from ledger.errors import BookieIoError, FinalError


class CheckpointTask:
    """Makes a checkpoint when one is due, and at an interval."""

    def __init__(self, checkpointer: Checkpointer, interval_s: float) -> None:
        self._checkpointer = checkpointer
        self._interval_s = interval_s
        self._write_lock = trio.Lock()
        self._is_checkpointing = False
        self._wanted = trio.Event()
        self._swapped = trio.Event()
        self.failure: FinalError | None = None
        self.checkpoints = 0
        self.seconds_last = 0.0

    @property
    def is_full(self) -> bool:
        """Requests must wait: the active half is full, or too many ledgers are new or changed,
        and a checkpoint holds the other half.

        Asking wakes the task when a checkpoint is due, so ask after each chunk of requests.
        """
        if not self._checkpointer.is_due:
            return False
        self._wanted.set()
        return self._is_checkpointing or self.failure is not None

    async def wait_room(self) -> None:
        """Returns when adds may go on. Raises the failure if they never may."""
        await trio.lowlevel.checkpoint()
        while self.is_full:
            if self.failure is not None:
                raise self.failure
            await self._swapped.wait()

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Only one task at a time changes entry logs and index, and none after a failure."""
        async with self._write_lock:
            if self.failure is not None:
                raise self.failure
            yield

    def poison(self, failure: FinalError) -> None:
        """Nothing works any more; whoever waits for room is told. The first failure counts."""
        if self.failure is None:
            self.failure = failure
        self._swapped.set()

    async def run(self) -> None:
        """Until cancelled. Raises StorageFailed."""
        while True:
            with trio.move_on_after(self._interval_s):
                await self._wanted.wait()
            self._wanted = trio.Event()
            await self.make()

    async def make(self, *, moves_mark: bool = True) -> None:
        """A checkpoint now, if there is anything to write. Raises StorageFailed.

        Cancelling it is a failure, too: caches and logs are then in the middle of something.
        """
        async with self.writing():
            if not self._checkpointer.has_work:
                return
            self._is_checkpointing = True
            started = trio.current_time()
            swapped, self._swapped = self._swapped, trio.Event()
            try:
                await self._checkpointer.make(moves_mark=moves_mark, on_swapped=swapped)
            except (OSError, BookieIoError) as error:
                failure = StorageFailed(
                    f"checkpoint failed: {error}. Nothing more is taken. Cure: see to the disk, "
                    "then start again; the journal is replayed"
                )
                self.poison(failure)
                raise failure from error
            except BaseException as error:
                self.poison(StorageFailed(f"checkpoint was broken off: {error!r}"))
                raise
            finally:
                self._is_checkpointing = False
            self.checkpoints += 1
            self.seconds_last = trio.current_time() - started
