"""A disk in memory that says what a crash leaves, and whose syncs can fail.

What a failed sync should have made durable, the system takes for written from then on: no later
sync writes it, reads see it until its page goes from memory, and power loss takes it.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence

from bookie.core.loop_writes import LoopWrites
from bookie.storage.disk.disk import Buffer
from tests.bookie.storage.memory_disk import SECTOR_BYTES, MemoryDisk, MemoryFile, _Inode
from tests.crash_counts import Aftermath, kind_of, settled


class EveryOtherInLoop(LoopWrites):
    """Has a journal write every other group in the event loop, whatever the disk is like."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.is_fast = True
        self._is_next = False

    def is_in_loop(
        self, now_s: float, nbytes: int, *, is_thread_awaited: bool, has_gathered: bool
    ) -> bool:
        self._is_next = not self._is_next
        return self._is_next


class CrashDisk(MemoryDisk):
    def __init__(self, *, rng: random.Random | None = None, crash_at: int | None = None) -> None:
        super().__init__(rng=rng, crash_at=crash_at)
        self.crash_kind: str | None = None
        """What was being written when it stopped."""
        self.sync_fails_at: int | None = None
        """Which sync fails, of all of files, directories and index; None: none."""
        self.syncs_tried = 0
        self.doubtful: dict[_Inode, dict[int, None]] = {}
        """Sectors whose sync failed, by file: clean to the system, and not on the disk."""

    def step(self, operation: str, path: str) -> bool:
        is_last = self.crash_at is not None and self.steps + 1 >= self.crash_at
        if is_last and not self.is_off:
            self.crash_kind = kind_of(path)
        is_half = super().step(operation, path)
        if operation in ("flush", "sync_directory") and self.is_sync_failing():
            raise OSError(errno.EIO, "Input/output error")
        return is_half

    def is_sync_failing(self) -> bool:
        self.syncs_tried += 1
        return self.syncs_tried == self.sync_fails_at

    async def open(
        self, path: str, *, is_new: bool = False, has_own_thread: bool = False
    ) -> MemoryFile:
        file = await super().open(path, is_new=is_new, has_own_thread=has_own_thread)
        return _CrashFile(self, file.inode, path)

    def after_crash(self, aftermath: Aftermath | None = None) -> CrashDisk:
        """A new disk with what is found then; without `aftermath`, any of them."""
        if aftermath is None:
            aftermath = self.rng.choice(list(Aftermath))
        if self.crash_kind is not None:
            settled(self.crash_kind, aftermath)
        found = CrashDisk(rng=self.rng)
        if aftermath is Aftermath.KEPT:
            inodes: dict[_Inode, _Inode] = {}
            for inode in [*self.names.values(), *self.synced_names.values()]:
                if inode not in inodes:
                    inodes[inode] = self._kept(inode, found)
            found.names = {name: inodes[one] for name, one in self.names.items()}
            found.synced_names = {name: inodes[one] for name, one in self.synced_names.items()}
        elif aftermath is Aftermath.DROPPED:
            dropped = {one: _Inode(one.synced) for one in self.synced_names.values()}
            found.names = {name: dropped[one] for name, one in self.synced_names.items()}
            found.synced_names = dict(found.names)
        else:
            torn = super().after_crash()
            found.names, found.synced_names = torn.names, torn.synced_names
        return found

    def _kept(self, inode: _Inode, found: CrashDisk) -> _Inode:
        kept = _Inode(bytes(inode.data))
        kept.synced = inode.synced
        for offset in self.doubtful.get(inode, ()):
            if self.rng.random() < 0.5:  # clean pages may go from memory at any time
                copy_sector(inode.synced, kept.data, offset)
            found.doubtful.setdefault(kept, {})[offset] = None
        return kept


class _CrashFile(MemoryFile):
    disk: CrashDisk

    async def write_at(
        self,
        offset: int,
        views: Sequence[Buffer],
        *,
        drops_cache: bool = False,
        then: Callable[[], None] | None = None,
    ) -> None:
        self._touch(offset, views)
        await super().write_at(offset, views, drops_cache=drops_cache, then=then)

    def write_synced_now(
        self, offset: int, views: Sequence[Buffer], *, then: Callable[[], None] | None = None
    ) -> float:
        self._touch(offset, views)
        before = self.inode.synced
        super().write_synced_now(offset, views)
        self._end_sync(before)
        if then is not None:
            then()
        return 0.0

    def write_now(self, offset: int, data: Buffer) -> None:
        self._touch(offset, [data])
        super().write_now(offset, data)

    async def sync(self, *, drops_cache: bool = False) -> None:
        before = self.inode.synced
        await super().sync(drops_cache=drops_cache)
        self._end_sync(before)

    def _touch(self, offset: int, views: Sequence[Buffer]) -> None:
        """The next sync writes what was written after the failed one."""
        doubtful, end = self.disk.doubtful.get(self.inode, {}), offset + sum(map(len, views))
        for sector in [one for one in doubtful if offset - SECTOR_BYTES < one < end]:
            del doubtful[sector]

    def _end_sync(self, before: bytes) -> None:
        """Takes back what this sync, or one before it, did not write."""
        is_failing, found = self.disk.is_sync_failing(), bytearray(self.inode.synced)
        doubtful = self.disk.doubtful.setdefault(self.inode, {})
        if is_failing:
            for offset in range(0, len(found), SECTOR_BYTES):
                end = offset + SECTOR_BYTES
                old = before[offset:end].ljust(len(found[offset:end]), b"\0")
                if old != found[offset:end] and self.disk.rng.random() < 0.5:
                    doubtful[offset] = None
        for offset in doubtful:
            copy_sector(before, found, offset)
        self.inode.synced = bytes(found)
        if is_failing:
            raise OSError(errno.EIO, "Input/output error")


def copy_sector(source: Buffer, target: bytearray, offset: int) -> None:
    """As far as `target` goes; zeros where `source` ends."""
    end = min(offset + SECTOR_BYTES, len(target))
    if end > offset:
        target[offset:end] = bytes(source[offset:end]).ljust(end - offset, b"\0")
