"""Random transactions on both drivers: the same results, the same errors, the same trees."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.errors import LedgerError
from ledger.metastore.base import Change, Check, Create, Delete, Node, Put
from ledger.metastore.memory import MemoryTree, _Session
from ledger.metastore.processes import identity_of
from ledger.metastore.sqlite_file import SqliteFile

PATHS = st.sampled_from(["/", "/a", "/a/b", "/a/b/c", "/a/d", "/e", "/e/f"])
VERSIONS = st.sampled_from([-1, 0, 1, 2])
DATA = st.binary(max_size=3)
CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.builds(Create, PATHS, DATA, st.booleans()),
    st.builds(Put, PATHS, DATA, VERSIONS),
    st.builds(Delete, PATHS, VERSIONS),
    st.builds(Check, PATHS, VERSIONS),
)
STEPS = st.lists(st.lists(CHANGES, min_size=1, max_size=4) | st.none(), max_size=25)
"""Transactions; None ends the session and begins another."""

NOW_MS = 5


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_both_drivers_do_the_same(steps: list[list[Change] | None]) -> None:
    tree, session = MemoryTree(), _Session()
    with tempfile.TemporaryDirectory() as directory:
        file = SqliteFile(
            str(Path(directory, "c.db")),
            session_timeout_ms=1000,
            now_ms=lambda: NOW_MS,
            shared_clock_ms=lambda: 0,
            identity=identity_of(os.getpid()),
        )
        try:
            row = file.begin_session()
            for changes in steps:
                if changes is None:
                    tree.drop_ephemerals(session)
                    session = _Session()
                    file.end_session(row)
                    row = file.begin_session()
                    assert _whole(tree) == _whole(file)
                    continue
                assert _try_memory(tree, changes, session) == _try_file(file, changes, row)
                assert _whole(tree) == _whole(file)
        finally:
            file.close()


def _try_memory(tree: MemoryTree, changes: list[Change], session: _Session) -> str:
    try:
        tree.apply(changes, session, NOW_MS)
    except LedgerError as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def _try_file(file: SqliteFile, changes: list[Change], session: int) -> str:
    try:
        file.apply(changes, session)
    except LedgerError as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def _whole(store: MemoryTree | SqliteFile, path: str = "/") -> dict[str, Node | None]:
    found = {path: store.get(path)}
    for name in store.children(path):
        found |= _whole(store, f"{path.rstrip('/')}/{name}")
    return found
