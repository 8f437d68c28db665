"""Processes that create a missing metadata file at once must all open the same file."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from ledger.metastore.sqlite import tree
from ledger.metastore.sqlite.connection import (
    APPLICATION_ID,
    SCHEMA_VERSION,
    connect,
    connect_untouched,
)
from ledger.metastore.sqlite.liveness import identity_of
from ledger.metastore.sqlite.tree import SqliteTree


class OvertakenConnection:
    """A connection: after its first statement another process creates the file, if it can."""

    def __init__(self, path: str, db: sqlite3.Connection) -> None:
        self._db = db
        self._path = path
        self.is_overtaken = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
        answer = self._db.execute(statement, *parameters)
        if statement == "PRAGMA application_id" and not self.is_overtaken:
            self.is_overtaken = True
            rows = answer.fetchall()
            self._make()
            return self._db.execute(f"SELECT {rows[0][0]}")
        return answer

    def _make(self) -> None:
        other = sqlite3.connect(self._path, timeout=0, isolation_level=None)
        try:
            other.execute("BEGIN IMMEDIATE")
            other.execute("CREATE TABLE nodes(path TEXT PRIMARY KEY)")
            other.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            other.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            other.execute("COMMIT")
        except sqlite3.OperationalError:
            pass  # the file is locked: the process must wait
        finally:
            other.close()


def opened(path: Path) -> None:
    SqliteTree(
        str(path),
        session_timeout_ms=5000,
        now_ms=lambda: 0,
        shared_clock_ms=lambda: 0,
        identity=identity_of(os.getpid()),
    ).close()


def test_a_file_that_is_being_created_is_not_taken_for_another_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        tree,
        "connect",
        lambda path, wait_s, **options: OvertakenConnection(path, connect(path, wait_s, **options)),
    )
    opened(tmp_path / "cluster.db")


def test_a_file_that_gets_its_content_while_it_is_examined_is_not_taken_for_another_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overtaken: list[OvertakenConnection] = []

    def examined(path: str, wait_s: float) -> OvertakenConnection:
        overtaken.append(OvertakenConnection(path, connect_untouched(path, wait_s)))
        return overtaken[-1]

    path = tmp_path / "cluster.db"
    begun = sqlite3.connect(path)
    begun.execute("PRAGMA journal_mode = WAL")  # what its creator does before the tables
    begun.execute("PRAGMA user_version = 0")  # so that there is a log
    assert path.with_name("cluster.db-wal").stat().st_size
    monkeypatch.setattr(tree, "connect_untouched", examined)
    opened(path)
    begun.close()
    assert overtaken[0].is_overtaken
