"""Bugs to plant, so that the simulator itself is tested: each must be found within 200 seeds.

They are put in by patching product classes; the product knows nothing of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import trio

from bookie.core.journal import Mark
from bookie.core.ledger_state import LedgerState
from bookie.core.marks import MarkTable
from bookie.storage.garbage.compaction_log import CompactionLog
from bookie.storage.journal.journal import CommitGroup, Journal
from bookie.storage.ledger_storage import LedgerStorage
from bookie.testing.disk import MountedDisk
from bookie.testing.file import SimFile
from ledger.core import recovery
from ledger.core.append import AppendCore
from ledger.errors import Status

Plant = Callable[[ExitStack], None]


def _ack_before_fsync(stack: ExitStack) -> None:
    """The journal answers before it has written."""
    write = Journal._write

    async def eager(self: Journal, group: CommitGroup) -> None:
        callbacks = [*group.on_accepted, *group.on_durable]
        group.on_accepted, group.on_durable = [], []
        for on_done in callbacks:
            on_done()
        await write(self, group)

    _replace(stack, Journal, "_write", eager)


def _fence_not_journaled(stack: ExitStack) -> None:
    """A fence lives in memory only, and is answered as if it were durable."""

    def forgetful(self: LedgerStorage, state: LedgerState, on_durable: Callable[[], None]) -> None:
        state.fence()
        on_durable()

    _replace(stack, LedgerStorage, "fence", forgetful)


def _confirm_out_of_order(stack: ExitStack) -> None:
    """With striping, an entry is confirmed though entries before it lack their quorum."""
    advance = AppendCore.advance

    def hasty(self: AppendCore) -> int:
        if self.is_suspended or self.stride == 1:
            return advance(self)
        confirmed = max(
            sorted([marks[i] for i in members])[-self.ack_quorum]
            for marks, members in zip(self._acked, self._members, strict=True)
        )
        self.last_add_confirmed = max(self.last_add_confirmed, confirmed)
        return self.last_add_confirmed

    _replace(stack, AppendCore, "advance", hasty)


def _io_error_is_absence(stack: ExitStack) -> None:
    """Recovery takes an I/O error for "no such entry"."""
    negatives = (*recovery._NEGATIVES, Status.IO_ERROR)
    _replace(stack, recovery, "_NEGATIVES", negatives)


def _entry_log_not_synced(stack: ExitStack) -> None:
    """A checkpoint moves the mark though its entry log is not on the disk yet."""
    sync = SimFile.sync

    async def lazy(self: SimFile, *, drops_cache: bool = False) -> None:
        if not self._path.endswith(".log"):
            await sync(self)

    _replace(stack, SimFile, "sync", lazy)


def _directory_not_synced(stack: ExitStack) -> None:
    """A new journal file is written to before its name is on the disk."""
    sync_directory = MountedDisk.sync_directory

    async def lazy(self: MountedDisk, path: str) -> None:
        is_rolling = any(name.endswith(".journal") for name in self.disk.inodes)
        if path != "/journal" or not is_rolling:
            await sync_directory(self, path)

    _replace(stack, MountedDisk, "sync_directory", lazy)


def _failed_sync_retried(stack: ExitStack) -> None:
    """A sync that failed is done again, and then it succeeds: the pages count as clean."""
    sync = SimFile.sync

    async def stubborn(self: SimFile, *, drops_cache: bool = False) -> None:
        for _ in range(5):
            try:
                await sync(self)
            except OSError:
                if self._mount.is_frozen:
                    raise
            else:
                return
        await sync(self)

    _replace(stack, SimFile, "sync", stubborn)


def _mark_ahead_of_slow_directory(stack: ExitStack) -> None:
    """A journal lets files go that the slowest directory has not made a checkpoint of."""

    def hasty(self: MarkTable, journal: int) -> Mark:
        return max(self.of(journal).values())

    _replace(stack, MarkTable, "needed_from", hasty)


def _compaction_not_synced(stack: ExitStack) -> None:
    """The index points to copies, and the old log goes, before the copies are on the disk."""

    async def lazy(self: CompactionLog) -> None:
        await trio.lowlevel.checkpoint()

    _replace(stack, CompactionLog, "sync", lazy)


BUGS: dict[str, Plant] = {
    "ack-before-fsync": _ack_before_fsync,
    "compaction-not-synced": _compaction_not_synced,
    "confirm-out-of-order": _confirm_out_of_order,
    "directory-not-synced": _directory_not_synced,
    "entry-log-not-synced": _entry_log_not_synced,
    "failed-sync-retried": _failed_sync_retried,
    "fence-not-journaled": _fence_not_journaled,
    "io-error-is-absence": _io_error_is_absence,
    "mark-ahead-of-slow-directory": _mark_ahead_of_slow_directory,
}


@contextmanager
def bug_planted(name: str | None) -> Iterator[None]:
    """The product with the bug `name`, or as it is."""
    with ExitStack() as stack:
        if name is not None:
            BUGS[name](stack)
        yield


def _replace(stack: ExitStack, owner: object, attribute: str, new: object) -> None:
    stack.enter_context(mock.patch.object(owner, attribute, new))
