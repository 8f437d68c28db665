"""Reads through the page cache; a small one brings what lies around it.

Where ledgers are many and small, nothing of the same ledger follows an entry, and nothing can be
read ahead for the bookie's own cache. What lies around it was written in the same moment, and is
wanted next more often than anything else: it costs the disk no second turn (docs/adr/0013).
"""

from __future__ import annotations

import os
import threading

AROUND_BYTES = 32 * 1024
"""So much is brought into the page cache at once, aligned, and what the system reads ahead behind
it. Larger reads bring themselves only."""

_buffers = threading.local()


def read_through_cache(fd: int, offset: int, size: int) -> bytes:
    """Up to `size` bytes, fewer only at the end of the file. To be called in a thread that waits.

    If what lies around them cannot be read, that harms nobody who does not want it.
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
    """Fewer than `size` bytes if anything is amiss. One call, and not a hint first and then a read:
    each lets go of the interpreter, for which a thread may wait longer than for the disk."""
    begin, end = offset - offset % AROUND_BYTES, offset + size
    end += -end % AROUND_BYTES  # two times as much for one that lies across
    buffer = memoryview(_buffer())[: end - begin]
    try:
        count = os.preadv(fd, [buffer], begin)
    except OSError:
        return b""
    return bytes(buffer[offset - begin : min(offset - begin + size, count)])


def _buffer() -> bytearray:
    """This thread's own: pages that were never used before cost more than the copy."""
    buffer: bytearray | None = getattr(_buffers, "around", None)
    if buffer is None:
        buffer = _buffers.around = bytearray(2 * AROUND_BYTES)
    return buffer
