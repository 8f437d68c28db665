"""Reads the values of all watched nodes at one moment from the metadata file.

After every change of any process a thousand watches are checked: first their versions only, then
the nodes that changed. Called by `SqliteTree`, from its reading thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ledger.metastore.base import Node, cluster_gone
from ledger.metastore.paths import name_of

_MARKS_AT_ONCE = 500

WatchKey = tuple[str, bool]
"""A watched path, and whether its children are watched rather than the node."""

WatchValue = Node | list[str] | None


@dataclass(frozen=True, slots=True)
class Watched:
    """A value, and when its nodes were created: a node that was deleted and created again between
    two reads has changed, though it may look the same."""

    value: WatchValue
    born: tuple[int, ...]

    @property
    def mark(self) -> tuple[int, int] | None:
        """Distinguishes this value of a node from a later one; None if there was no node."""
        return (self.value.version, self.born[0]) if isinstance(self.value, Node) else None


def snapshot(
    db: sqlite3.Connection, known: Mapping[WatchKey, Watched | None], known_sequence: int
) -> tuple[int, dict[WatchKey, Watched] | None]:
    """Implements `SqliteTree.snapshot`, within a transaction."""
    (sequence,) = db.execute("SELECT sequence FROM changes").fetchone()
    if sequence == known_sequence:
        return sequence, None
    marks = _marks(db, [path for path, is_children in known if not is_children])
    values: dict[WatchKey, Watched] = {}
    for key, last in known.items():
        path, is_children = key
        if last is not None and not is_children and last.mark == marks.get(path):
            values[key] = last
        else:
            values[key] = _children(db, path) if is_children else _watched_node(db, path)
    return sequence, values


def _marks(db: sqlite3.Connection, paths: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Returns version and creation of those nodes that exist."""
    marks: dict[str, tuple[int, int]] = {}
    for begin in range(0, len(paths), _MARKS_AT_ONCE):
        some = paths[begin : begin + _MARKS_AT_ONCE]
        places = ",".join("?" * len(some))
        rows = db.execute(f"SELECT path, version, born FROM nodes WHERE path IN ({places})", some)
        for path, version, born in rows:
            marks[path] = (version, born)
    return marks


def _watched_node(db: sqlite3.Connection, path: str) -> Watched:
    row = db.execute(
        "SELECT data, version, created_ms, born FROM nodes WHERE path = ?", (path,)
    ).fetchone()
    return Watched(None, ()) if row is None else Watched(Node(*row[:3]), row[3:])


def _children(db: sqlite3.Connection, path: str) -> Watched:
    rows = db.execute(
        "SELECT path, born FROM nodes WHERE parent = ? ORDER BY path", (path,)
    ).fetchall()
    return Watched(sorted(name_of(child) for child, _ in rows), tuple(born for _, born in rows))


def check_bound(db: sqlite3.Connection, bound: tuple[str, bytes] | None) -> None:
    """Raises MetadataUnavailable if the node by which the cluster is known is not there."""
    if bound is None:
        return
    path, data = bound
    node = read_node(db, path)
    if node is None or node.data != data:
        raise cluster_gone(path, None if node is None else node.data)


def read_node(db: sqlite3.Connection, path: str) -> Node | None:
    """Returns a node, None if it does not exist."""
    row = db.execute(
        "SELECT data, version, created_ms FROM nodes WHERE path = ?", (path,)
    ).fetchone()
    return Node(*row) if row is not None else None


@contextmanager
def transaction(db: sqlite3.Connection, begin: str) -> Iterator[None]:
    """Commits at the end of the block, rolls back after an exception in it."""
    db.execute(begin)
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
