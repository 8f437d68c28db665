"""Lock files: each holds the id of the process that has locked it, for messages."""

from __future__ import annotations

import fcntl
import os


def lock_file(fd: int, operation: int, path: str) -> None:
    """Locks a file that is open, or closes it. The BlockingIOError names the process that holds the
    lock."""
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = _holder_of(fd)
        os.close(fd)
        raise BlockingIOError(error.errno, holder, path) from None
    except BaseException:
        os.close(fd)
        raise


def _holder_of(fd: int) -> str:
    """Returns text that names the process that holds a lock file, which wrote its id into it."""
    try:
        pid = os.pread(fd, 20, 0).strip()
    except OSError:
        pid = b""
    return f"pid {pid.decode()}" if pid.isdigit() else "its process id is unknown"
