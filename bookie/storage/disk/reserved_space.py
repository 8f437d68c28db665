"""A file that reserves space on a file system, and a disk that gives it up when a write needs it.

Only what failed before it had any effect is retried: the same bytes written to the same place, a
new file, a new name. A failed sync is never retried, whatever the reason, and neither is an
operation that writes and syncs at once, as the journal's do.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import trio

from bookie.storage.disk.disk import Buffer, Disk, File

_log = logging.getLogger(__name__)

T = TypeVar("T")

RESERVE_FILE = "RESERVE"


def is_no_space(error: OSError) -> bool:
    """Returns whether the disk is full, or the quota of this user is used up."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class Reserve:
    """The reserve of one file system. The content of the file means nothing."""

    def __init__(self, disk: Disk, directory: str, nbytes: int) -> None:
        self.directory = directory
        self.nbytes = nbytes
        self.held_bytes = 0
        """The size of the file, 0 if there is none."""
        self.times_given_up = 0
        self.promised: dict[str, int] = {}
        """Directory -> space promised to a checkpoint in progress there, and not used up yet.
        Others on the file system must not use it."""
        self.promising = trio.Lock()
        self._disk = disk
        self._path = f"{directory}/{RESERVE_FILE}"
        self._lock = trio.Lock()

    async def find(self) -> None:
        """Finds the file of an earlier process. Raises OSError."""
        try:
            file = await self._disk.open(self._path)
        except FileNotFoundError:
            return
        self.held_bytes = file.size
        file.close()
        if self.held_bytes > self.nbytes:  # the settings changed
            await self.give_up()

    async def take(self) -> bool:
        """Creates the file if it does not exist in full; returns False if there is no space. It
        need not survive a loss of power: the next process creates it again."""
        async with self._lock:
            if self.held_bytes >= self.nbytes:
                return True
            try:
                await self._remove()
                file = await self._disk.open(self._path, is_new=True)
                try:
                    await file.allocate(self.nbytes)
                finally:
                    file.close()
            except OSError as error:
                if not is_no_space(error):
                    raise
                await self._remove()
                return False
            self.held_bytes = self.nbytes
            return True

    async def give_up(self) -> bool:
        """Returns whether there was something to give up. Raises OSError."""
        async with self._lock:
            held, self.held_bytes = self.held_bytes, 0
            await self._remove()
        if held:
            self.times_given_up += 1
            _log.warning("reserve given up directory=%s bytes=%d", self.directory, held)
        return held > 0

    async def _remove(self) -> None:
        self.held_bytes = 0
        try:
            await self._disk.remove(self._path)
        except FileNotFoundError:
            pass


class ReservedDisk:
    """A `Disk` that retries an operation with the space of the reserve if there was none."""

    def __init__(
        self, disk: Disk, reserves: Mapping[str, Reserve], on_no_room: Callable[[str], None]
    ) -> None:
        """`reserves`: by directory of the bookie. `on_no_room` gets the directory each time a write
        found no space there."""
        self._disk = disk
        self._reserves = reserves
        self._on_no_room = on_no_room

    async def with_space(self, path: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Runs `attempt`, and once more if there was no space. Raises what it raises."""
        directory = self._directory_of(path)
        given_up = 0 if directory is None else self._reserves[directory].times_given_up
        try:
            return await attempt()
        except OSError as error:
            if directory is None or not is_no_space(error):
                raise
            self._on_no_room(directory)
            reserve = self._reserves[directory]
            # Another task may have given it up meanwhile: then there is space, too.
            if not await reserve.give_up() and reserve.times_given_up == given_up:
                raise
        return await attempt()

    def _directory_of(self, path: str) -> str | None:
        found = [one for one in self._reserves if path == one or path.startswith(f"{one}/")]
        return max(found, key=len, default=None)

    async def has_space(self, directory: str, nbytes: int) -> bool:
        """Returns whether this much is free there besides what was promised, after giving up the
        reserve if necessary. Also True if the file system does not report it: the write itself must
        find out."""
        reserve = self._reserves.get(directory)
        promised = 0 if reserve is None else sum(reserve.promised.values())
        try:
            _, free = await self._disk.space(directory)
            if free >= nbytes + promised:
                return True
            self._on_no_room(directory)
            if reserve is None:
                return False
            await reserve.give_up()
            _, free = await self._disk.space(directory)
        except OSError as error:
            _log.warning("space unknown directory=%s cause=%s", directory, error)
            return True
        return free >= nbytes + promised

    async def promise_space(self, directory: str, nbytes: int) -> bool:
        """Returns `has_space`; if true, the space is reserved for this directory until it asks for
        0 bytes, so that several directories on one file system are not promised the same space."""
        reserve = self._reserves.get(directory)
        if reserve is None:
            return await self.has_space(directory, nbytes)
        reserve.promised.pop(directory, None)
        if nbytes == 0:
            return True
        async with reserve.promising:
            is_there = await self.has_space(directory, nbytes)
            if is_there:
                reserve.promised[directory] = nbytes
        return is_there

    async def check_promises(self, path: str, nbytes: int) -> None:
        """Raises OSError if this much cannot be used there without breaking a promise."""
        directory = self._directory_of(path)
        if directory is None or not (promised := sum(self._reserves[directory].promised.values())):
            return
        try:
            _, free = await self._disk.space(directory)
        except OSError:
            return  # the write itself must find out
        if free < nbytes + promised:
            raise OSError(
                errno.ENOSPC,
                f"{free} bytes are free, {promised} of them for a checkpoint in progress, and "
                f"{nbytes} are needed",
                path,
            )

    # --- the door

    async def open(self, path: str, *, is_new: bool = False, has_own_thread: bool = False) -> File:
        file = await self.with_space(
            path,
            lambda: self._disk.open(path, is_new=is_new, has_own_thread=has_own_thread),
        )
        # A journal's file: it writes and syncs in one, in space that it has ensured before.
        return file if has_own_thread else _ReservedFile(file, path, self)

    async def read_file(self, path: str) -> bytes:
        return await self._disk.read_file(path)

    async def replace_file(self, path: str, data: bytes) -> None:
        # In its steps, because some of them may be retried and others may not.
        temporary = f"{path}.tmp"
        try:
            file = await self.open(temporary, is_new=True)
        except FileExistsError:  # left by a crash
            file = await self.open(temporary)
        try:
            await file.truncate(0)
            await file.write_at(0, [data])
            await file.sync()
        finally:
            file.close()
        await self.rename(temporary, path)
        await self.sync_directory(path.rpartition("/")[0] or ".")

    async def list_directory(self, path: str) -> list[str]:
        return await self._disk.list_directory(path)

    async def make_directory(self, path: str) -> None:
        await self._disk.make_directory(path)

    async def rename(self, old: str, new: str) -> None:
        await self.with_space(old, lambda: self._disk.rename(old, new))

    async def remove(self, path: str) -> None:
        await self._disk.remove(path)

    async def sync_directory(self, path: str) -> None:
        await self._disk.sync_directory(path)

    async def space(self, path: str) -> tuple[int, int]:
        """Counts what was promised as used: compaction must not use it either."""
        directory = self._directory_of(path)
        total, free = await self._disk.space(path)
        if directory is not None:
            free -= sum(self._reserves[directory].promised.values())
        return total, max(0, free)

    async def device(self, path: str) -> int:
        return await self._disk.device(path)

    async def lock(self, path: str) -> None:
        await self._disk.lock(path)

    def close(self) -> None:
        self._disk.close()


class _ReservedFile:
    def __init__(self, file: File, path: str, disk: ReservedDisk) -> None:
        self._file = file
        self._path = path
        self._disk = disk

    @property
    def size(self) -> int:
        return self._file.size

    async def write_at(
        self,
        offset: int,
        views: Sequence[Buffer],
        *,
        drops_cache: bool = False,
        then: Callable[[], None] | None = None,
    ) -> None:
        file = self._file
        await self._disk.with_space(
            self._path, lambda: file.write_at(offset, views, drops_cache=drops_cache, then=then)
        )

    async def write_at_synced(
        self, offset: int, views: Sequence[Buffer], *, then: Callable[[], None] | None = None
    ) -> float:
        return await self._file.write_at_synced(offset, views, then=then)

    def write_synced_now(
        self, offset: int, views: Sequence[Buffer], *, then: Callable[[], None] | None = None
    ) -> float:
        return self._file.write_synced_now(offset, views, then=then)

    def write_now(self, offset: int, data: Buffer) -> None:
        self._file.write_now(offset, data)

    async def sync(self, *, drops_cache: bool = False) -> None:
        await self._file.sync(drops_cache=drops_cache)

    def read_nowait(
        self, offset: int, size: int, *, drops_cache: bool = False
    ) -> bytes | bytearray | None:
        return self._file.read_nowait(offset, size, drops_cache=drops_cache)

    async def read(self, offset: int, size: int, *, drops_cache: bool = False) -> bytes:
        return await self._file.read(offset, size, drops_cache=drops_cache)

    async def read_parts(
        self, offset: int, sizes: Sequence[int], *, drops_cache: bool = False
    ) -> list[bytes]:
        return await self._file.read_parts(offset, sizes, drops_cache=drops_cache)

    async def allocate(self, size: int) -> None:
        async def allocate() -> None:
            await self._disk.check_promises(self._path, size - self._file.size)
            await self._file.allocate(size)

        await self._disk.with_space(self._path, allocate)

    async def truncate(self, size: int) -> None:
        await self._file.truncate(size)

    def close(self) -> None:
        self._file.close()
