"""Reads around the page cache (large ones), or through it with what is nearby (small ones).

Pages taken for bytes that are read once cost more than the reading (docs/adr/0013), so a large read
goes into a buffer that is reused. Blocks that other readers may want are kept by the bookie's own
read cache.

If ledgers are many and small, an entry is not followed by entries of the same ledger, and nothing
can be read ahead for that cache. What is stored nearby was written at the same moment, and is the
most likely to be wanted next: fetching it costs the disk no second operation (docs/adr/0013).
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Sequence
from itertools import accumulate, pairwise

DIRECT_BYTES_MIN = 64 * 1024
"""Smaller reads are not worth the alignment."""
_ALIGNMENT = 4096
_BUFFER_BYTES = 5 * 1024 * 1024 + 2 * _ALIGNMENT
"""The largest batch read, and what it takes to align it."""
_NOT_SUPPORTED = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)

_of_thread = threading.local()


def open_direct(path: str) -> int:
    """Returns a descriptor for direct reads of `path`, or -1 if the file system has none."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NOT_SUPPORTED:
            return -1
        raise


def read_direct(fd: int, offset: int, sizes: Sequence[int]) -> list[bytes] | None:
    """Returns consecutive parts of these sizes, of which those at the end of the file are shorter
    or empty; None if a direct read is impossible.

    Call it in a thread that may block.
    """
    size = sum(sizes)
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
    ends = accumulate(sizes, initial=offset - begin)
    return [bytes(view[min(at, filled) : min(end, filled)]) for at, end in pairwise(ends)]


def _buffer() -> memoryview:
    """Returns this thread's buffer, page-aligned as direct reads require."""
    view: memoryview | None = getattr(_of_thread, "view", None)
    if view is None:
        view = memoryview(mmap.mmap(-1, _BUFFER_BYTES))
        _of_thread.view = view
    return view


AROUND_BYTES = 32 * 1024
"""The aligned amount that is read into the page cache at once, besides what the system reads ahead.
Larger reads fetch only themselves."""

_buffers = threading.local()


def read_through_cache(fd: int, offset: int, size: int) -> bytes:
    """Returns up to `size` bytes, fewer only at the end of the file. Call it in a thread that may
    block.

    If the bytes around them cannot be read, readers that do not want those are not affected.
    """
    if size < AROUND_BYTES:
        data = _read_around(fd, offset, size)
        if len(data) == size:
            return data
    pieces: list[bytes] = []
    while size:
        piece = os.pread(fd, size, offset)
        if not piece:
            break
        pieces.append(piece)
        offset += len(piece)
        size -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _read_around(fd: int, offset: int, size: int) -> bytes:
    """Returns fewer than `size` bytes if anything fails. It makes one call, not a hint and then a
    read: each releases the interpreter, for which a thread may wait longer than for the disk."""
    begin, end = offset - offset % AROUND_BYTES, offset + size
    end += -end % AROUND_BYTES  # twice as much for a read that crosses a border
    buffer = memoryview(_around_buffer())[: end - begin]
    try:
        count = os.preadv(fd, [buffer], begin)
    except OSError:
        return b""
    return bytes(buffer[offset - begin : min(offset - begin + size, count)])


def _around_buffer() -> bytearray:
    """Returns this thread's buffer: pages that were never used before cost more than the copy."""
    buffer: bytearray | None = getattr(_buffers, "around", None)
    if buffer is None:
        buffer = _buffers.around = bytearray(2 * AROUND_BYTES)
    return buffer
