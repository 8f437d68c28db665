"""The disk interface on a real file system: threads around system calls.

Ordinary calls go to threads of their directory, reads apart from writes; a journal file has one of
its own, which costs less per hop and never waits for other work. Must never lose an OSError, report
a short write as done, or leave the outcome of a write unknown: cancellation waits.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import TypeVar

import trio

from bookie.storage.disk.disk import Buffer, cut
from bookie.storage.disk.lock_file import lock_file
from bookie.storage.disk.reads import (
    AROUND_BYTES,
    DIRECT_BYTES_MIN,
    open_direct,
    read_direct,
    read_through_cache,
)
from bookie.storage.disk.threads import FOREVER, BlockingCallPool, DiskThreads, Threads
from bookie.storage.disk.writes import (
    ALIGNMENT,
    DirectWrites,
    open_direct_write,
    write_all,
    write_all_synced,
)
from bookie.storage.yielding import waiting_for_thread
from ledger.runtime.private_files import DIRECTORY_MODE, FILE_MODE


def sync_directory(path: str) -> None:
    """Makes the names in a directory durable. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(path: str) -> None:
    """Creates a directory and all its parents durably. Raises OSError."""
    missing: list[str] = []
    while path and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    if path:  # it may have been created by a process that was killed before it synced the name
        with contextlib.suppress(PermissionError):  # its creator could write to its parent
            sync_directory(os.path.dirname(path.rstrip("/")) or ("/" if path[0] == "/" else "."))
    for name in reversed(missing):
        try:
            os.mkdir(name, DIRECTORY_MODE)
        except FileExistsError:
            if not os.path.isdir(name):
                raise
        sync_directory(os.path.dirname(name) or ".")


T = TypeVar("T")

_RWF_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
_NOT_SUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class RealFile:
    """`bookie.storage.disk.disk.File` on a file descriptor."""

    def __init__(
        self,
        fd: int,
        path: str,
        *,
        threads: Threads,
        direct_writes: DirectWrites,
        has_own_thread: bool,
    ) -> None:
        self._fd = fd
        self._path = path
        self._size = os.fstat(fd).st_size
        self._reads = threads.reads
        self._write_limiter = threads.writes
        name = f"journal {os.path.basename(path)}"
        self._thread = BlockingCallPool(name, 1, idle_s=FOREVER) if has_own_thread else None
        self._drop_from = 0
        """Where a sync begins to drop pages: what lies before it is there because it was read."""
        self._calls = 0  # in progress
        self._is_closed = False
        self._reads_nowait = bool(_RWF_NOWAIT)
        self._direct_fd: int | None = None
        """A descriptor for reads around the page cache; -1 if the file system does not support
        them."""
        self._direct_writes = direct_writes
        self._direct_write_fd: int | None = None
        """The same for writes. Opened and used by one write at a time."""

    @property
    def size(self) -> int:
        return self._size

    async def _write(self, do: Callable[[], T]) -> T:
        return await self._call(do, self._thread)

    async def _call(self, do: Callable[[], T], threads: BlockingCallPool | None) -> T:
        if self._is_closed:
            raise OSError(errno.EBADF, "the file is closed", self._path)
        self._calls += 1
        try:
            if threads is not None:
                return await threads.run(do)
            return await trio.to_thread.run_sync(do, limiter=self._write_limiter)
        except OSError as error:
            if error.filename is None:
                error.filename = self._path  # the last line of a traceback must name the disk
            raise
        finally:
            self._calls -= 1
            self._close_if_idle()

    def _write_direct(
        self, offset: int, views: Sequence[Buffer], *, is_synced: bool = False
    ) -> bool:
        """Runs in a thread. Returns False if this is not possible here."""
        if self._direct_write_fd is None:
            self._direct_write_fd = open_direct_write(self._path, self._fd)
        direct_fd = self._direct_write_fd
        if direct_fd < 0:
            return False
        writes = self._direct_writes
        if writes.write(direct_fd, self._fd, offset, views, is_synced=is_synced):
            return True
        self._direct_write_fd = -1  # do not try again
        os.close(direct_fd)
        return False

    async def write_at(
        self,
        offset: int,
        views: Sequence[Buffer],
        *,
        drops_cache: bool = False,
        then: Callable[[], None] | None = None,
    ) -> None:
        fd, nbytes = self._fd, sum(map(len, views))
        self._drop_from = min(self._drop_from, offset)

        def do() -> None:
            is_large = drops_cache and nbytes >= DIRECT_BYTES_MIN
            if not is_large or not self._write_direct(offset, views):
                write_all(fd, offset, views)
            if then is not None:
                then()

        await self._write(do)
        self._size = max(self._size, offset + nbytes)

    async def write_at_synced(
        self, offset: int, views: Sequence[Buffer], *, then: Callable[[], None] | None = None
    ) -> float:
        return await self._write(partial(self._write_synced, offset, views, then))

    def write_synced_now(
        self, offset: int, views: Sequence[Buffer], *, then: Callable[[], None] | None = None
    ) -> float:
        assert not self._calls, f"{self._path}: a thread writes, too"
        try:
            return self._write_synced(offset, views, then)
        except OSError as error:
            if error.filename is None:
                error.filename = self._path
            raise

    def _write_synced(
        self, offset: int, views: Sequence[Buffer], then: Callable[[], None] | None
    ) -> float:
        began = time.perf_counter()
        self._drop_from = min(self._drop_from, offset)
        size = sum(map(len, views))
        if size < DIRECT_BYTES_MIN or not self._write_direct(offset, views, is_synced=True):
            write_all_synced(self._fd, offset, views)
        self._size = max(self._size, offset + size)
        if then is not None:
            then()
        return time.perf_counter() - began

    def write_now(self, offset: int, data: Buffer) -> None:
        self._drop_from = min(self._drop_from, offset)
        write_all(self._fd, offset, [data])

    async def sync(self, *, drops_cache: bool = False) -> None:
        fd = self._fd
        begin = self._drop_from - self._drop_from % ALIGNMENT
        if drops_cache:
            self._drop_from = self._size

        def do() -> None:
            os.fdatasync(fd)
            if drops_cache:
                os.posix_fadvise(fd, begin, 0, os.POSIX_FADV_DONTNEED)

        await self._write(do)

    def read_nowait(
        self, offset: int, size: int, *, drops_cache: bool = False
    ) -> bytes | bytearray | None:
        if self._is_closed:
            raise OSError(errno.EBADF, "the file is closed", self._path)
        size = min(size, max(self._size - offset, 0))
        if size == 0:
            return b""
        if not self._reads_nowait or (drops_cache and size >= DIRECT_BYTES_MIN):
            return None
        data = bytearray(size)
        try:
            done = os.preadv(self._fd, [data], offset, _RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
            self._reads_nowait = False  # not on this kernel and file system
            return None
        if done != size:
            return None
        if drops_cache:
            os.posix_fadvise(self._fd, offset, size, os.POSIX_FADV_DONTNEED)
        return data

    async def read(self, offset: int, size: int, *, drops_cache: bool = False) -> bytes:
        return (await self.read_parts(offset, [size], drops_cache=drops_cache))[0]

    async def read_parts(
        self, offset: int, sizes: Sequence[int], *, drops_cache: bool = False
    ) -> list[bytes]:
        fd, size = self._fd, sum(sizes)

        if drops_cache and size >= DIRECT_BYTES_MIN and self._direct_fd is None:
            self._direct_fd = open_direct(self._path)
        direct = -1 if self._direct_fd is None else self._direct_fd

        def do() -> list[bytes]:
            if drops_cache and direct >= 0 and size >= DIRECT_BYTES_MIN:
                parts = read_direct(direct, offset, sizes)
                if parts is not None:
                    return parts
            if size < DIRECT_BYTES_MIN * len(sizes):
                parts = cut(read_through_cache(fd, offset, size), sizes)
            else:  # a call for each is cheaper than copying large parts
                places = zip(accumulate(sizes, initial=offset), sizes, strict=False)
                parts = [read_through_cache(fd, *place) for place in places]
            if drops_cache:
                os.posix_fadvise(fd, offset, size, os.POSIX_FADV_DONTNEED)
            return parts

        await trio.lowlevel.checkpoint_if_cancelled()  # no caller needs the outcome of a read
        if size >= AROUND_BYTES:  # a read of this size is not urgent
            return await self._call(do, self._reads)
        with waiting_for_thread:
            return await self._call(do, self._reads)

    async def allocate(self, size: int) -> None:
        fd = self._fd
        if size > self._size:
            await self._write(lambda: os.posix_fallocate(fd, 0, size))
            self._size = max(self._size, size)

    async def truncate(self, size: int) -> None:
        fd = self._fd
        await self._write(lambda: os.ftruncate(fd, size))
        self._size = size

    def close(self) -> None:
        self._is_closed = True
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if not self._is_closed or self._calls or self._fd < 0:
            return
        fds = [self._fd, self._direct_fd, self._direct_write_fd]
        self._fd = self._direct_fd = self._direct_write_fd = -1
        if self._thread is not None:
            self._thread.end()
        for fd in fds:
            if fd is not None and fd >= 0:
                os.close(fd)


class RealDisk:
    """`bookie.storage.disk.disk.Disk` on the file system. Make one per process."""

    OPEN_FLAGS = os.O_RDWR

    def __init__(self) -> None:
        self._threads = DiskThreads()
        self._direct_writes = DirectWrites()
        self._locks: list[int] = []

    async def _call(self, directory: str, do: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(do, limiter=self._threads.of(directory).writes)

    async def open(
        self, path: str, *, is_new: bool = False, has_own_thread: bool = False
    ) -> RealFile:
        flags = self.OPEN_FLAGS | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if is_new else 0)
        directory = os.path.dirname(path)
        fd = await self._call(directory, lambda: os.open(path, flags, FILE_MODE))
        try:
            return RealFile(
                fd,
                path,
                threads=self._threads.of(directory),
                direct_writes=self._direct_writes,
                has_own_thread=has_own_thread,
            )
        except BaseException:
            os.close(fd)
            raise

    async def read_file(self, path: str) -> bytes:
        def do() -> bytes:
            with open(path, "rb") as file:
                return file.read()

        await trio.lowlevel.checkpoint_if_cancelled()
        return await self._threads.of(os.path.dirname(path)).reads.run(do)

    async def replace_file(self, path: str, data: bytes) -> None:
        def do() -> None:
            temporary = path + ".tmp"
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
            try:
                write_all(fd, 0, [data])
                os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(temporary, path)
            sync_directory(os.path.dirname(path) or ".")

        await self._call(os.path.dirname(path), do)

    async def list_directory(self, path: str) -> list[str]:
        def do() -> list[str]:
            try:
                return sorted(os.listdir(path))
            except FileNotFoundError:
                return []

        return await self._call(path, do)

    async def make_directory(self, path: str) -> None:
        await self._call(path, lambda: make_directory(path))

    async def rename(self, old: str, new: str) -> None:
        await self._call(os.path.dirname(new), lambda: os.rename(old, new))

    async def remove(self, path: str) -> None:
        await self._call(os.path.dirname(path), lambda: os.remove(path))

    async def sync_directory(self, path: str) -> None:
        await self._call(path, lambda: sync_directory(path))

    async def space(self, path: str) -> tuple[int, int]:
        found = await self._call(path, lambda: os.statvfs(path))
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    async def device(self, path: str) -> int:
        return (await self._call(path, lambda: os.stat(path))).st_dev

    async def lock(self, path: str) -> None:
        def do() -> int:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            lock_file(fd, fcntl.LOCK_EX, path)
            with contextlib.suppress(OSError):  # for messages only; the disk may be full
                os.ftruncate(fd, 0)
                os.pwrite(fd, b"%d\n" % os.getpid(), 0)
            return fd

        self._locks.append(await self._call(os.path.dirname(path), do))

    def close(self) -> None:
        """Releases the locks. Threads end by themselves, those of journals with their files."""
        self._threads.end()
        while self._locks:
            os.close(self._locks.pop())
