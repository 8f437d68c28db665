"""Writes, through the page cache or around it, from page-aligned buffers that are reused.

A bookie rarely reads from the disk what it writes: journals at a restart, entry logs after they
have left the caches. So what the page cache does for a write (taking pages, copying, writing back,
freeing) costs more than one copy into warm memory. Must never report a write as done before the
disk has all of it.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Sequence

Buffer = bytes | bytearray | memoryview

ALIGNMENT = 4096
BUFFER_BYTES = 2 * 1024 * 1024
_VIEWS_MAX = 1024  # IOV_MAX of Linux
_JOIN_BELOW_BYTES = 2048  # smaller views are cheaper to join than to list or to go through
_RWF_DSYNC = getattr(os, "RWF_DSYNC", 0)
_NOT_SUPPORTED = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)


def write_all(fd: int, offset: int, views: Sequence[Buffer], flags: int = 0) -> None:
    """Writes everything or raises; continues after a short write until the reason shows."""
    nbytes = sum(map(len, views))
    if len(views) > _VIEWS_MAX or nbytes < len(views) * _JOIN_BELOW_BYTES:
        pending = [memoryview(b"".join(views))]
    else:
        pending = [memoryview(view).cast("B") for view in views if len(view)]
    while nbytes:
        written = os.pwritev(fd, pending, offset, flags)
        if written == 0:
            raise OSError(errno.EIO, f"wrote none of {nbytes} bytes at {offset}")
        nbytes -= written
        offset += written
        while written and written >= len(pending[0]):
            written -= len(pending.pop(0))
        if written:
            pending[0] = pending[0][written:]


def write_all_synced(fd: int, offset: int, views: Sequence[Buffer]) -> None:
    """Writes everything, through the page cache, and makes it durable; or raises."""
    # RWF_DSYNC is write and fdatasync of that range in one call: a third cheaper.
    if _RWF_DSYNC:
        try:
            return write_all(fd, offset, views, _RWF_DSYNC)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
    write_all(fd, offset, views)
    return os.fdatasync(fd)


def open_direct_write(path: str, fd: int) -> int:
    """Returns a descriptor for direct writes to the file that `fd` is open on, by its name; or -1
    if that is not supported."""
    try:
        direct_fd = os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (*_NOT_SUPPORTED, errno.ENOENT):
            return -1
        raise
    if os.path.sameopenfile(direct_fd, fd):
        return direct_fd
    os.close(direct_fd)  # the name was given to another file meanwhile
    return -1


class DirectWrites:
    """The direct writes of one disk; lends a buffer to each write in progress."""

    def __init__(self) -> None:
        self._spares: list[memoryview] = []

    def write(
        self,
        direct_fd: int,
        fd: int,
        offset: int,
        views: Sequence[Buffer],
        *,
        is_synced: bool = False,
    ) -> bool:
        """Writes all of `views` at `offset`: whole blocks to `direct_fd`, what is before the first
        and after the last of them to `fd`. Durable after a sync, as any other write, or when it
        returns if `is_synced`.

        Call it in a thread that may block. Returns False if the file system cannot do it: nothing
        is known about these bytes then, write them otherwise. Raises OSError; never leaves a short
        write unreported.
        """
        if sum(map(len, views)) < len(views) * _JOIN_BELOW_BYTES:
            views = [b"".join(views)]
        buffer = self._take_buffer()
        # The buffer is aligned with the file, block by block.
        begin = filled = offset % ALIGNMENT
        base = offset - begin
        try:
            for view in views:
                rest = memoryview(view).cast("B")
                while size := len(rest):
                    if filled == BUFFER_BYTES:
                        _put(direct_fd, fd, base, buffer, begin, filled)
                        base += BUFFER_BYTES
                        begin = filled = 0
                    size = min(size, BUFFER_BYTES - filled)
                    buffer[filled : filled + size] = rest[:size]
                    filled += size
                    rest = rest[size:]
            if is_synced and _RWF_DSYNC and base == offset and not filled % ALIGNMENT:
                # Whole blocks in one piece, as the journal writes: one call instead of two.
                write_all(direct_fd, base, [buffer[:filled]], _RWF_DSYNC)
                return True
            _put(direct_fd, fd, base, buffer, begin, filled)
        except OSError as error:
            if error.errno in _NOT_SUPPORTED:
                return False
            raise
        finally:
            self._spares.append(buffer)
        if is_synced:
            os.fdatasync(fd)
        return True

    def _take_buffer(self) -> memoryview:
        try:
            return self._spares.pop()
        except IndexError:
            return memoryview(mmap.mmap(-1, BUFFER_BYTES))


def _put(direct_fd: int, fd: int, base: int, buffer: memoryview, begin: int, end: int) -> None:
    """Writes `buffer[begin:end]`; the buffer's first byte belongs at `base` of the file. A direct
    write that stops within a block fails with EINVAL when it is continued: written otherwise."""
    first = begin + -begin % ALIGNMENT
    stop = end - end % ALIGNMENT
    if first >= stop:
        write_all(fd, base + begin, [buffer[begin:end]])
        return
    write_all(fd, base + begin, [buffer[begin:first]])
    write_all(direct_fd, base + first, [buffer[first:stop]])
    write_all(fd, base + stop, [buffer[stop:end]])
