"""When checkpoints are made, who waits for room meanwhile, and what a failure means.

Its twin `checkpoint` says how one is made. After a failed checkpoint what is on disk is
unknown: nothing may change entry logs or index any more, and the process must exit.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from bookie.core.capacity import DirectoryCapacity
from bookie.core.disk_space import WriteGate
from bookie.storage.checkpoint import Checkpointer
from bookie.storage.options import StorageFailed
from ledger.errors import BookieIoError, FinalError

ASK_DISK_S = 0.5
"""How often a disk without room for a checkpoint is asked: nobody tells when there is some."""


class CheckpointScheduler:
    """Makes a checkpoint when one is due, and at an interval."""

    def __init__(
        self, checkpointer: Checkpointer, capacity: DirectoryCapacity, interval_s: float
    ) -> None:
        """`capacity`: of the directory; says when a checkpoint is due, and is notified when none
        can begin."""
        self._checkpointer = checkpointer
        self._capacity = capacity
        self.has_space: Callable[[int], Awaitable[bool]] | None = None
        """Whether the disk has room for so many bytes, which are then kept for this directory
        until it asks for none; None: always. Set it before `run`."""
        self.is_waiting_for_disk = False
        """What is in memory stays there: the disk has no room for it."""
        self.metrics = checkpointer.metrics
        self._interval_s = interval_s
        self._is_running = False
        capacity.on_due = self._ask_if_running
        self._write_lock = trio.Lock()
        self._is_checkpointing = False
        self._wanted = trio.Event()
        self._swapped = trio.Event()
        self._begun = self._ended = 0
        """Of the checkpoints of `run`."""
        self._one_ended = trio.Event()
        self.failure: FinalError | None = None
        self.checkpoints = 0
        self.seconds_last = 0.0

    @property
    def is_full(self) -> bool:
        """Requests must wait: the active half is full, or too many ledgers are new or changed,
        and a checkpoint holds the other half."""
        return self._capacity.is_full

    @property
    def is_due(self) -> bool:
        """As much is in memory as may be there before a checkpoint."""
        return self._capacity.is_due

    def _report(self) -> None:
        has_failed = self.failure is not None
        is_blocked = self._is_checkpointing or self.is_waiting_for_disk or has_failed
        self._capacity.report_checkpoint(is_blocked=is_blocked, is_failed=has_failed)

    async def wait_capacity(self, gate: WriteGate | None = None) -> None:
        """Returns when adds may go on, or none is taken any more (`gate`). Raises the failure if
        they never may."""
        await trio.lowlevel.checkpoint()
        if not self.is_full:
            return
        with self.metrics.throttled():
            while self.is_full:
                if self.failure is not None:
                    raise self.failure
                if gate is not None and gate.is_shut:
                    return
                await self._swapped.wait()

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Only one task at a time changes entry logs and index, and none after a failure."""
        async with self._write_lock:
            if self.failure is not None:
                raise self.failure
            yield

    def ask(self) -> None:
        """A checkpoint is wanted soon. Cheap; may be said often."""
        self._wanted.set()

    def _ask_if_running(self) -> None:
        # A replay makes its checkpoints itself.
        if self._is_running:
            self._wanted.set()

    async def made(self) -> None:
        """Returns when `run` has made a checkpoint of all that is in memory now, which it does when
        the disk has room: that may take as long as the disk is full. Raises the failure."""
        number = self._begun + 1  # one that is under way may have left something behind
        self.ask()
        while self._ended < number:
            if self.failure is not None:
                raise self.failure
            await self._one_ended.wait()

    def poison(self, failure: FinalError) -> None:
        """Nothing works any more; whoever waits is told. The first failure counts."""
        if self.failure is None:
            self.failure = failure
            self._report()
        self._swapped.set()
        self._one_ended.set()

    async def run(self) -> None:
        """Until cancelled. Raises StorageFailed."""
        self._is_running = True
        if self._capacity.is_due:
            self._capacity.on_due()  # it was not heard before
        while True:
            with trio.move_on_after(self._interval_s):
                await self._wanted.wait()
            self._wanted = trio.Event()
            await self._wait_disk()
            self._begun += 1
            await self.make(leisure_s=self._interval_s)
            self._ended = self._begun
            ended, self._one_ended = self._one_ended, trio.Event()
            ended.set()
            if self.has_space is not None:
                await self.has_space(0)

    async def _wait_disk(self) -> None:
        """Returns when the disk has room for a checkpoint: nothing is begun that could end in the
        middle. Holds no lock meanwhile, for garbage collection may be what makes the room."""
        has_space = self.has_space
        try:
            while has_space is not None and self._checkpointer.has_work and self.failure is None:
                if await has_space(self._checkpointer.bytes_to_write):
                    return
                self.is_waiting_for_disk = True
                self._report()
                self._swapped.set()  # whoever waits looks whether adds are taken at all
                self._swapped = trio.Event()
                await trio.sleep(ASK_DISK_S)
        finally:
            self.is_waiting_for_disk = False
            self._report()

    async def make(self, *, moves_mark: bool = True, leisure_s: float = 0) -> None:
        """A checkpoint now, if there is anything to write; see `Checkpointer.make`. Raises
        StorageFailed.

        Cancelling it is a failure, too: caches and logs are then in the middle of something.
        """
        async with self.writing():
            if not self._checkpointer.has_work:
                return
            self._is_checkpointing = True
            self._report()
            started = trio.current_time()
            swapped, self._swapped = self._swapped, trio.Event()
            try:
                await self._checkpointer.make(
                    moves_mark=moves_mark, on_swapped=swapped, leisure_s=leisure_s
                )
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
                self._report()
            self.checkpoints += 1
            self.seconds_last = trio.current_time() - started
            self.metrics.checkpoint_made(self.seconds_last)
