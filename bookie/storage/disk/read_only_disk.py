"""A disk for tools that change nothing: it needs no permission to write, and creates nothing.

So they work on a file system that was mounted read-only because its disk fails, on a snapshot, and
for a user who may only read. Operations that would change something fail as on such a file system.
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import NoReturn

from bookie.storage.disk.disk import Buffer
from bookie.storage.disk.lock_file import lock_file
from bookie.storage.disk.real_disk import RealDisk, RealFile


class ReadOnlyDisk(RealDisk):
    """`bookie.storage.disk.disk.Disk`, for reading."""

    OPEN_FLAGS = os.O_RDONLY

    async def open(
        self, path: str, *, is_new: bool = False, has_own_thread: bool = False
    ) -> RealFile:
        if is_new:
            _refuse(path)
        return await super().open(path, has_own_thread=has_own_thread)

    async def lock(self, path: str) -> None:
        """Takes a shared lock, if the file exists: a running bookie created it, and locks it
        exclusively. Without it no bookie has run in that directory. Raises BlockingIOError if one
        runs; FileNotFoundError without the directory."""

        def do() -> int | None:
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                os.stat(os.path.dirname(path) or ".")
                return None
            lock_file(fd, fcntl.LOCK_SH, path)
            return fd

        fd = await self._call(os.path.dirname(path), do)
        if fd is not None:
            self._locks.append(fd)

    async def make_directory(self, path: str) -> None:
        """Does nothing: to a reader, a directory that does not exist is empty."""

    async def replace_file(self, path: str, data: Buffer) -> None:
        _refuse(path)

    async def rename(self, old: str, new: str) -> None:
        _refuse(old)

    async def remove(self, path: str) -> None:
        _refuse(path)


def _refuse(path: str) -> NoReturn:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
