"""Directories of a real file system, and names in them that outlive a loss of power."""

from __future__ import annotations

import contextlib
import os


def sync_directory(path: str) -> None:
    """Makes the names in it durable. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(path: str) -> None:
    """With all above it. Raises OSError."""
    missing: list[str] = []
    while path and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    if path:  # maybe made by a process that was killed before it synced the name
        with contextlib.suppress(PermissionError):  # who made it could write to its parent
            sync_directory(os.path.dirname(path.rstrip("/")) or ("/" if path[0] == "/" else "."))
    for name in reversed(missing):
        try:
            os.mkdir(name, 0o750)
        except FileExistsError:
            if not os.path.isdir(name):
                raise
        sync_directory(os.path.dirname(name) or ".")
