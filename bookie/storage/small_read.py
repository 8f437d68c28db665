"""Reads through the page cache; a small one brings what lies around it.

Where ledgers are many and small, nothing of the same ledger follows an entry, and nothing can be
read ahead for the bookie's own cache. What lies around it was written in the same moment, and is
wanted next more often than anything else: it costs the disk no second turn (docs/adr/0013).
"""

from __future__ import annotations

import os

AROUND_BYTES = 32 * 1024
"""So much is brought into the page cache at once, aligned. Larger reads bring themselves only."""


def read_through_cache(fd: int, offset: int, size: int) -> bytes:
    """Up to `size` bytes, fewer only at the end of the file. To be called in a thread that waits.

    What lies around them is a hint: if it cannot be read, that harms nobody who does not want it.
    """
    if size < AROUND_BYTES:
        begin, end = offset - offset % AROUND_BYTES, offset + size
        end += -end % AROUND_BYTES  # two times as much for one that lies across
        os.posix_fadvise(fd, begin, end - begin, os.POSIX_FADV_WILLNEED)
    pieces: list[bytes] = []
    while size:
        piece = os.pread(fd, size, offset)
        if not piece:
            break
        pieces.append(piece)
        offset += len(piece)
        size -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
