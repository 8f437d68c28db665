"""Decides when checkpoints are made, lets adds wait meanwhile, and handles a failure.

`bookie.storage.checkpoint` makes them. After a failed checkpoint what is on disk is unknown:
nothing may change entry logs or index any more, and the process must exit.
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
"""How often a disk without space for a checkpoint is checked: no event announces free space."""


class CheckpointScheduler:
    """Makes a checkpoint when one is due, and at an interval."""

    def __init__(
        self, checkpointer: Checkpointer, capacity: DirectoryCapacity, interval_s: float
    ) -> None:
        """`capacity`: of the directory; it shows when a checkpoint is due, and is notified when
        none can begin."""
        self._checkpointer = checkpointer
        self._capacity = capacity
        self.has_space: Callable[[int], Awaitable[bool]] | None = None
        """Returns whether the disk has this many bytes free, and reserves them for this directory
        until it asks for 0; None: always. Set it before `run`."""
        self.is_waiting_for_disk = False
        """A checkpoint waits until the disk has space for it; memory is not freed meanwhile."""
        self.metrics = checkpointer.metrics
        self._interval_s = interval_s
        self._is_running = False
        capacity.on_due = self._ask_if_running
        self._write_lock = trio.Lock()
        self._is_checkpointing = False
        self._wanted = trio.Event()
        self._swapped = trio.Event()
        self._begun = self._ended = 0
        """How many checkpoints `run` has begun and ended."""
        self._one_ended = trio.Event()
        self.failure: FinalError | None = None
        self.checkpoints = 0
        self.seconds_last = 0.0

    @property
    def is_full(self) -> bool:
        """Whether requests must wait: the active half is full, or too many ledgers are new or
        changed, and a checkpoint uses the other half."""
        return self._capacity.is_full

    @property
    def is_due(self) -> bool:
        """Whether memory holds as much as it may before a checkpoint."""
        return self._capacity.is_due

    def _report(self) -> None:
        has_failed = self.failure is not None
        is_blocked = self._is_checkpointing or self.is_waiting_for_disk or has_failed
        self._capacity.report_checkpoint(is_blocked=is_blocked, is_failed=has_failed)

    async def wait_capacity(self, gate: WriteGate | None = None) -> None:
        """Returns when adds may continue, or when `gate` accepts none. Raises the failure if they
        never may."""
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
        """Lets only one task at a time change entry logs and index, and none after a failure."""
        async with self._write_lock:
            if self.failure is not None:
                raise self.failure
            yield

    def ask(self) -> None:
        """Requests a checkpoint soon. Cheap; may be called often."""
        self._wanted.set()

    def _ask_if_running(self) -> None:
        # A replay makes its checkpoints itself.
        if self._is_running:
            self._wanted.set()

    async def made(self) -> None:
        """Returns when `run` has made a checkpoint of everything that is in memory now. It makes
        one when the disk has space, which may take as long as the disk is full. Raises the
        failure."""
        number = self._begun + 1  # one in progress may have begun before the latest changes
        self.ask()
        while self._ended < number:
            if self.failure is not None:
                raise self.failure
            await self._one_ended.wait()

    def poison(self, failure: FinalError) -> None:
        """Ends all work with a failure, and wakes all waiting callers. The first failure counts."""
        if self.failure is None:
            self.failure = failure
            self._report()
        self._swapped.set()
        self._one_ended.set()

    async def run(self) -> None:
        """Makes checkpoints until cancelled. Raises StorageFailed."""
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
        """Returns when the disk has space for a checkpoint, so that none ends in the middle. Holds
        no lock meanwhile, because garbage collection may be what frees the space."""
        has_space = self.has_space
        try:
            while has_space is not None and self._checkpointer.has_work and self.failure is None:
                if await has_space(self._checkpointer.bytes_to_write):
                    return
                self.is_waiting_for_disk = True
                self._report()
                self._swapped.set()  # waiting callers check whether adds are accepted at all
                self._swapped = trio.Event()
                await trio.sleep(ASK_DISK_S)
        finally:
            self.is_waiting_for_disk = False
            self._report()

    async def make(self, *, moves_mark: bool = True, leisure_s: float = 0) -> None:
        """Makes a checkpoint now, if there is anything to write; see `Checkpointer.make`. Raises
        StorageFailed.

        Cancelling it is a failure, too: caches and logs are then in an intermediate state.
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
                    f"checkpoint failed: {error}. Nothing more is accepted. Cure: check the disk, "
                    "then start again; the journal is replayed"
                )
                self.poison(failure)
                raise failure from error
            except BaseException as error:
                self.poison(StorageFailed(f"checkpoint was interrupted by {type(error).__name__}"))
                raise
            finally:
                self._is_checkpointing = False
                self._report()
            self.checkpoints += 1
            self.seconds_last = trio.current_time() - started
            self.metrics.checkpoint_made(self.seconds_last)
