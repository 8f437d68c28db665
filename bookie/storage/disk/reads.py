"""Large reads around the page cache, into a buffer that is used again and again.

Pages taken for bytes that are read once cost more than the reading (docs/adr/0013). Blocks
that other readers may want are kept by the bookie's own read cache.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading

DIRECT_BYTES_MIN = 64 * 1024
"""Smaller reads are not worth the alignment."""
_ALIGNMENT = 4096
_BUFFER_BYTES = 5 * 1024 * 1024 + 2 * _ALIGNMENT
"""The largest batch read there is, and what it takes to align it."""
_NOT_SUPPORTED = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)

_of_thread = threading.local()


def open_direct(path: str) -> int:
    """A descriptor for direct reads of `path`, or -1 where the file system has none."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NOT_SUPPORTED:
            return -1
        raise


def read_direct(fd: int, offset: int, size: int) -> bytes | None:
    """Up to `size` bytes, fewer at the end of the file; None if this must be read otherwise.

    To be called in a thread that waits.
    """
    begin = offset - offset % _ALIGNMENT
    end = offset + size + (-(offset + size)) % _ALIGNMENT
    if end - begin > _BUFFER_BYTES:
        return None
    view = _buffer()
    filled = 0
    while filled < end - begin:
        try:
            done = os.preadv(fd, [view[filled : end - begin]], begin + filled)
        except OSError as error:
            if error.errno in _NOT_SUPPORTED:
                return None
            raise
        filled += done
        if done == 0 or done % _ALIGNMENT:
            break  # the end of the file
    return bytes(view[offset - begin : min(filled, offset - begin + size)])


def _buffer() -> memoryview:
    """Of this thread: page-aligned, as direct reads want it."""
    view: memoryview | None = getattr(_of_thread, "view", None)
    if view is None:
        view = memoryview(mmap.mmap(-1, _BUFFER_BYTES))
        _of_thread.view = view
    return view
