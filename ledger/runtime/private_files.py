"""Files and directories of their owner alone, and which of those that exist are not.

What is made here has the modes 0600 and 0700 whatever the umask is. The mode of what exists is the
operator's decision, and is never changed: a main program warns of it.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700


def private_opener(path: str, flags: int) -> int:
    """The `opener` of `open`: a new file is its owner's alone. Raises OSError."""
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)


def make_private_file(path: str) -> None:
    """Makes an empty file, unless there is one. Raises OSError.

    It is not opened: closing it would end the locks of others of this process on it.
    """
    with suppress(FileExistsError):
        os.mknod(path, FILE_MODE | stat.S_IFREG)


def readable_by_others(path: str) -> str | None:
    """Returns the mode, like "0755", of a file or directory that every user of this machine can
    read; None if there is none, or if not all directories above it let others pass."""
    where = os.path.realpath(path)
    try:
        mode = stat.S_IMODE(os.stat(where).st_mode)
        if not mode & stat.S_IROTH:
            return None
        while (above := os.path.dirname(where)) != where:
            where = above
            if not os.stat(where).st_mode & stat.S_IXOTH:
                return None
    except OSError:
        return None
    return f"{mode:04o}"
