"""Checks, creates and opens the metadata file, and translates SQLite's errors.

It must never change a file that is not known to be ours, nor create one for a client: `check_place`
looks at the file before SQLite does, `check_content` at what is in it before anything is written.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import urllib.parse
from contextlib import closing, suppress
from typing import Final

from ledger.errors import InvalidArgument, MetadataCorrupt, MetadataUnavailable, NoSuchCluster
from ledger.metastore.sqlite.snapshot import transaction
from ledger.runtime.private_files import make_private_file

BUSY_TIMEOUT_S = 5.0
APPLICATION_ID: Final = 0x4C535452
"""Marks the file as ours ("LSTR"); never changes."""

SCHEMA_VERSION = 1

_SCHEMA = """
CREATE TABLE nodes(
    path TEXT PRIMARY KEY, parent TEXT NOT NULL, data BLOB NOT NULL, version INTEGER NOT NULL,
    created_ms INTEGER NOT NULL, owner INTEGER, born INTEGER NOT NULL);
CREATE INDEX nodes_by_parent ON nodes(parent);
CREATE INDEX nodes_by_owner ON nodes(owner) WHERE owner IS NOT NULL;
CREATE TABLE sessions(
    id INTEGER PRIMARY KEY AUTOINCREMENT, boot_id TEXT NOT NULL, pid_space TEXT NOT NULL,
    pid INTEGER NOT NULL, start_ticks INTEGER NOT NULL, heartbeat_ms INTEGER NOT NULL,
    timeout_ms INTEGER NOT NULL);
CREATE TABLE counters(path TEXT PRIMARY KEY, next INTEGER NOT NULL);
CREATE TABLE changes(sequence INTEGER NOT NULL);
INSERT INTO changes VALUES(0);
INSERT INTO nodes VALUES('/', '', x'', 0, 0, NULL, 0);
"""

_DATABASE_BYTES_MIN = 512
_UNTOUCHED = "mode=ro&immutable=1"
"""Reads the file alone, without locks and without its write-ahead log."""


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


def check_place(path: str, uri: str, *, may_create: bool) -> bool:
    """Checks, before SQLite touches anything, what is at this path. Returns whether it is known to
    be a metadata file; if not, it must be opened read-only first (`connect_untouched`).

    `uri` names the file in errors. Without `may_create` the file must exist. Raises NoSuchCluster;
    MetadataCorrupt for the file of another program; InvalidArgument if no file can be opened or
    created there; MetadataUnavailable if that cannot be found out.
    """
    where = os.path.abspath(path)
    directory = os.path.dirname(where)
    found, above = _stat(where), _stat(directory)
    problem = None
    if above is None or not stat.S_ISDIR(above.st_mode):
        problem = f"the directory {directory} does not exist"
    elif found is None:
        problem = None if may_create else f"{_shown(where)} does not exist"
    elif stat.S_ISDIR(found.st_mode):
        problem = f"{_shown(where)} is a directory, not a file"
    elif not stat.S_ISREG(found.st_mode):
        problem = f"{_shown(where)} is not a regular file"
    elif not found.st_size and not may_create:
        problem = f"{_shown(where)} is empty (0 bytes)"
    if problem is not None and may_create:
        raise InvalidArgument(f"cannot open {path}: {problem}")
    if problem is not None:
        raise _no_such_cluster(uri, problem, _similar(path))
    _check_permissions(path, directory, is_there=found is not None)
    if found is not None and 0 < found.st_size < _DATABASE_BYTES_MIN:
        raise _no_database(where)
    return found is None or not found.st_size or _is_ours(where)


def _no_such_cluster(uri: str, problem: str, similar: str = "") -> NoSuchCluster:
    """Returns the error for an address at which `problem` says that there is no cluster."""
    hint = f"did you mean {similar}? Otherwise " if similar else ""
    return NoSuchCluster(
        f"there is no cluster at {uri if uri.isprintable() else repr(uri)}: {problem}. Cure: {hint}"
        "give the metadata_uri of its bookies, or the URI `ledgerstream standalone` printed"
    )


def _stat(path: str) -> os.stat_result | None:
    """Returns None only if there certainly is nothing at this path."""
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise InvalidArgument(f"cannot open {path}: {error.strerror}") from None
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise InvalidArgument(f"cannot open {path}: {error.strerror}") from None
        raise MetadataUnavailable(f"{path}: {error.strerror}") from error


def place_of(path: str) -> tuple[int, int] | None:
    """Returns device and inode of the file at this path; None if there is none.

    Raises MetadataUnavailable if that cannot be found out.
    """
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise MetadataUnavailable(f"{path}: {error.strerror}") from error
    return found.st_dev, found.st_ino


def _shown(where: str) -> str:
    """Returns a path for an error text; one that would be misread there in quotes."""
    return where if where.isprintable() and where.strip() == where else repr(where)


def _similar(path: str) -> str:
    """Returns the address of a metadata file that the caller may have meant; "" for none."""
    import difflib  # takes time to import, and is needed only here

    where = os.path.abspath(path)
    meant = [] if os.path.isabs(path) else [f"/{path}"]
    directory, name = os.path.split(where)
    try:
        names = sorted(os.listdir(directory))
        meant += [os.path.join(where, "cluster.db")]
        meant += [os.path.join(directory, n) for n in difflib.get_close_matches(name, names, n=3)]
    except OSError:
        pass
    for one in meant:
        try:
            if os.path.isfile(one) and _is_ours(one):
                return f"sqlite://{one}"
        except (OSError, MetadataCorrupt, InvalidArgument, MetadataUnavailable):
            continue
    return ""


def _check_permissions(path: str, directory: str, *, is_there: bool) -> None:
    if is_there and not os.access(path, os.R_OK | os.W_OK):
        raise InvalidArgument(
            f"cannot open {path}: this user may not write it, which even readers have to"
        )
    if not os.access(directory, os.W_OK | os.X_OK):
        raise InvalidArgument(
            f"cannot open {path}: this user may not write in {directory}, where the"
            " write-ahead log of the file is stored"
        )


def _is_ours(where: str) -> bool:
    """Whether the beginning of a file says that it is a metadata file; False if only SQLite can
    find out: its first page is still in a write-ahead log, or is newer than the rest, because a
    process is moving the log into the file at this moment. Raises MetadataCorrupt.

    The file is never opened past SQLite: closing it would end the locks of all connections that
    this process has to it.
    """
    try:
        with closing(_open(where, _UNTOUCHED, 0)) as db:
            (application,) = db.execute("PRAGMA application_id").fetchone()
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code == sqlite3.SQLITE_NOTADB:
            raise _no_database(where) from error
        if code == sqlite3.SQLITE_CORRUPT:
            return False
        raise mapped(where, error) from error
    if application not in (0, APPLICATION_ID):
        raise _another_program(where, application)
    return bool(application == APPLICATION_ID)


def _no_database(where: str) -> MetadataCorrupt:
    return MetadataCorrupt(
        f"{where} is not a metadata file, or its beginning is damaged: it is no SQLite database. "
        "It was not changed. Cure: name another file, or restore it from a backup"
    )


def _another_program(path: str, application: int) -> MetadataCorrupt:
    """Returns the error for an SQLite file of another program."""
    return MetadataCorrupt(
        f"{path} is an SQLite file of another program (application id {application:#x}, ours is "
        f"{APPLICATION_ID:#x}): name another file"
    )


def connect(path: str, busy_timeout_s: float, *, may_create: bool = False) -> sqlite3.Connection:
    """Opens a connection. With `may_create` the file is created if it is missing: for its owner
    alone, because passwords of ledgers are in it. SQLite gives its mode to the files beside it."""
    if may_create:
        with suppress(OSError):  # SQLite finds what is wrong, and says it
            make_private_file(os.path.abspath(path))
    return _open(path, f"mode={'rwc' if may_create else 'rw'}", busy_timeout_s)


def connect_untouched(path: str, busy_timeout_s: float) -> sqlite3.Connection:
    """Opens a connection that changes neither the file nor its write-ahead log."""
    try:
        has_log = os.path.getsize(f"{path}-wal") > 0
    except OSError:
        has_log = False
    # Without a log nothing but the file counts; otherwise SQLite would create a log for reading it.
    return _open(path, "mode=ro" if has_log else _UNTOUCHED, busy_timeout_s)


def _open(path: str, parameters: str, busy_timeout_s: float) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{urllib.parse.quote(os.fsencode(os.path.abspath(path)))}?{parameters}",
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


def prepare(db: sqlite3.Connection, path: str, uri: str, *, may_create: bool) -> None:
    """Checks what is in the file, and creates the tables if there is nothing and `may_create`.

    Raises what `check_content` raises; then the file was not changed.
    """
    # In one transaction, because another process may be creating the file at this moment.
    with transaction(db, "BEGIN"):
        check_content(db, path, uri, may_create=may_create)
    set_wal(db, path)
    db.execute("PRAGMA synchronous = FULL")
    with transaction(db, "BEGIN IMMEDIATE"):
        if not _has_content(db, path):
            for statement in _SCHEMA.split(";\n"):
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def check_content(db: sqlite3.Connection, path: str, uri: str, *, may_create: bool) -> None:
    """Raises MetadataCorrupt for a file of another program or another schema, NoSuchCluster for an
    empty database unless `may_create`."""
    if not _has_content(db, path) and not may_create:
        raise _no_such_cluster(uri, f"{_shown(path)} is an SQLite database without content")


def _has_content(db: sqlite3.Connection, path: str) -> bool:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application == 0 and version == 0 and tables == 0:
        return False
    if application != APPLICATION_ID:
        raise _another_program(path, application)
    if version != SCHEMA_VERSION:
        raise MetadataCorrupt(
            f"{path} has metadata schema version {version}, this program knows"
            f" {SCHEMA_VERSION}: use the program that wrote it, or a newer one"
        )
    return True
