"""Opens connections to the metadata file, and translates SQLite's errors.

It must never change a file that is not known to be ours, which `tree.py` checks.
"""

from __future__ import annotations

import os
import sqlite3
import urllib.parse

from ledger.errors import InvalidArgument, MetadataCorrupt, MetadataUnavailable

BUSY_TIMEOUT_S = 5.0


def mapped(path: str, error: sqlite3.Error) -> MetadataUnavailable | MetadataCorrupt:
    """Returns the error to raise for one of SQLite's."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = code & 0xFF if isinstance(code, int) else None
    if primary in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return MetadataCorrupt(f"{path} is not a metadata file, or is damaged: {error}")
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return MetadataUnavailable(
            f"{path} was locked by other processes for {BUSY_TIMEOUT_S} s: {error}"
        )
    return MetadataUnavailable(f"{path}: {error}")


def check_place(path: str) -> None:
    """Raises InvalidArgument if no database can be opened at this path."""
    directory = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(directory):
        raise InvalidArgument(f"cannot open {path}: the directory {directory} does not exist")
    if os.path.isdir(path):
        raise InvalidArgument(f"cannot open {path}: it is a directory, not a file")
    if os.path.exists(path) and not os.access(path, os.R_OK | os.W_OK):
        raise InvalidArgument(
            f"cannot open {path}: this user may not write it, which even readers have to"
        )
    if not os.access(directory, os.W_OK | os.X_OK):
        raise InvalidArgument(
            f"cannot open {path}: this user may not write in {directory}, where the"
            " write-ahead log of the file is stored"
        )


def connect(path: str, busy_timeout_s: float) -> sqlite3.Connection:
    """Opens a connection; creates the file if it is missing."""
    return sqlite3.connect(
        f"file:{urllib.parse.quote(os.fsencode(os.path.abspath(path)))}?mode=rwc",
        uri=True,
        timeout=busy_timeout_s,
        isolation_level=None,
        check_same_thread=False,
    )


def set_wal(db: sqlite3.Connection, path: str) -> None:
    """Turns on write-ahead logging. Raises InvalidArgument if the file system lacks support."""
    (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise InvalidArgument(
            f"{path}: its file system has no shared memory for SQLite's write-ahead log"
            f" (journal mode stays {mode}): use a local disk"
        )
