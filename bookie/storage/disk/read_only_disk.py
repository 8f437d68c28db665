"""The disk door for tools that change nothing: it needs no right to write, and makes nothing.

So they work on a file system that was mounted read-only because its disk fails, on a snapshot, and
for a user who may only read. What would change something is refused as such a file system does.
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import NoReturn

from bookie.storage.disk.real_disk import Buffer, RealDisk, RealFile


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
        """Shared, and only if the file is there: whoever runs made it, and locks it for itself.
        Without it nobody has run in that directory. Raises BlockingIOError if somebody does;
        FileNotFoundError without the directory."""

        def do() -> int | None:
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                os.stat(os.path.dirname(path) or ".")
                return None
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BaseException:
                os.close(fd)
                raise
            return fd

        fd = await self._call(os.path.dirname(path), do)
        if fd is not None:
            self._locks.append(fd)

    async def make_directory(self, path: str) -> None:
        """What is not there is empty to who only reads."""

    async def replace_file(self, path: str, data: Buffer) -> None:
        _refuse(path)

    async def rename(self, old: str, new: str) -> None:
        _refuse(old)

    async def remove(self, path: str) -> None:
        _refuse(path)


def _refuse(path: str) -> NoReturn:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
