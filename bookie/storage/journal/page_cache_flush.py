"""Syncs what a journal wrote and acknowledged without a sync.

Used by `Journal` alone, and only with `journal_sync_data = false`; `FlushPolicy` decides when. Must
never report a group as durable that was written after the sync began.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

from bookie.core.journal import FLUSH_NOW, FlushPolicy, Mark
from bookie.storage.disk.disk import Disk, File

OnDurable = Callable[[], None]


class PageCacheFlush:
    """The unsynced part of the current journal file; `run` syncs it."""

    def __init__(
        self,
        disk: Disk,
        policy: FlushPolicy,
        *,
        drops_cache: bool,
        on_synced: Callable[[Mark, float], None],
    ) -> None:
        """`on_synced` gets the end of what is durable now, and the seconds it took, before the
        callbacks of these groups run."""
        self._disk = disk
        self._policy = policy
        self._drops_cache = drops_cache
        self._on_synced = on_synced
        self._file: File | None = None
        self.unsynced_bytes = 0
        """Bytes of groups, including those that are being synced."""
        self.synced_sequence = 0
        """The sequence of the last group that is durable."""
        self._written = (Mark(0, 0), 0)
        self._oldest_at = 0.0
        self._unflushed_bytes = 0  # not taken by a sync yet
        self._waiting: list[OnDurable] = []  # for the next sync
        self._syncing: list[OnDurable] = []  # for the one in progress
        self._is_asked = False
        self._wake = trio.Event()
        self._synced = trio.Event()

    @property
    def is_idle(self) -> bool:
        """Whether everything that was written is durable."""
        return not self.unsynced_bytes

    async def begin_file(self, path: str, synced_sequence: int) -> None:
        """Switches to the journal's next file. Everything in the file before is durable."""
        assert self.is_idle, f"{self.unsynced_bytes} bytes of the file before are not durable"
        self.close()
        # A second descriptor, so that it does not wait for writes. It is opened before the first of
        # them, so that it reports each write error that occurs later.
        self._file = await self._disk.open(path)
        self.synced_sequence = synced_sequence

    def written(self, mark: Mark, sequence: int, nbytes: int) -> None:
        """Records that a group was written, up to `mark`, and not synced."""
        if not self._unflushed_bytes:
            self._oldest_at = trio.current_time()
            self._wake.set()  # from now on there is a time to wait for
        self._written = (mark, sequence)
        self.unsynced_bytes += nbytes
        self._unflushed_bytes += nbytes
        if self._unflushed_bytes >= self._policy.flush_bytes:
            self._wake.set()

    def when_synced(self, callbacks: list[OnDurable]) -> None:
        """Calls them when everything that is written now is durable; at once if it is."""
        if self.is_idle:
            for callback in callbacks:
                callback()
        elif not self._unflushed_bytes:
            self._syncing += callbacks
        elif callbacks:
            self._waiting += callbacks
            self._is_asked = True
            self._wake.set()

    @property
    def waiting_callbacks(self) -> int:
        """The number of callbacks of `when_synced` that have not run yet."""
        return len(self._waiting) + len(self._syncing)

    async def wait_capacity(self) -> None:
        """Returns when another group may be written."""
        while self._policy.must_wait(self.unsynced_bytes):
            await self._synced.wait()

    async def wait_synced(self) -> None:
        """Returns when everything that is written now is durable."""
        done = trio.Event()
        self.when_synced([done.set])
        await done.wait()

    async def run(self) -> None:
        """Syncs until cancelled. Raises OSError, and then what is on disk is unknown."""
        while True:
            await self._wait_due()
            assert self._file is not None
            # No await between these: this sync does not cover what is written later.
            (mark, sequence), nbytes = self._written, self._unflushed_bytes
            self._syncing, self._waiting = self._waiting, []
            self._unflushed_bytes, self._is_asked = 0, False
            began = trio.current_time()
            await self._file.sync(drops_cache=self._drops_cache)
            self.synced_sequence = sequence
            self.unsynced_bytes -= nbytes
            done, self._syncing = self._syncing, []
            self._on_synced(mark, trio.current_time() - began)
            self._synced.set()
            self._synced = trio.Event()
            for callback in done:
                callback()

    async def _wait_due(self) -> None:
        while True:
            until = self._due_at()
            if until == FLUSH_NOW:
                return
            with trio.move_on_at(until):
                await self._wake.wait()
            self._wake = trio.Event()

    def _due_at(self) -> float:
        if not self._unflushed_bytes:
            return math.inf  # until `written` wakes it
        return self._policy.decide(
            trio.current_time(), self._oldest_at, self._unflushed_bytes, self._is_asked
        )

    def close(self) -> None:
        """Closes the descriptor; nothing is synced."""
        if self._file is not None:
            self._file.close()
            self._file = None
