"""Processes that create a missing metadata file at once must all open the same file."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from ledger.metastore.sqlite import tree
from ledger.metastore.sqlite.connection import APPLICATION_ID, SCHEMA_VERSION, connect
from ledger.metastore.sqlite.liveness import identity_of
from ledger.metastore.sqlite.tree import SqliteTree


class OvertakenConnection:
    """A connection: after its first statement another process creates the file, if it can."""

    def __init__(self, path: str, busy_timeout_s: float, *, may_create: bool = False) -> None:
        self._db = connect(path, busy_timeout_s, may_create=may_create)
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


def test_a_file_that_is_being_created_is_not_taken_for_another_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "connect", OvertakenConnection)
    SqliteTree(
        str(tmp_path / "cluster.db"),
        session_timeout_ms=5000,
        now_ms=lambda: 0,
        shared_clock_ms=lambda: 0,
        identity=identity_of(os.getpid()),
    ).close()
