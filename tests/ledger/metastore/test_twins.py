"""Random transactions on both drivers lead to the same results, errors and trees."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from ledger.errors import LedgerError
from ledger.metastore.base import ANY_VERSION, Change, Check, Create, Delete, Node, Put
from ledger.metastore.memory import MemoryTree, _Session
from ledger.metastore.sqlite.liveness import identity_of
from ledger.metastore.sqlite.tree import SqliteTree

PATHS = ("/a", "/a/b", "/a/b/c", "/a/d", "/e", "/e/f", "/e/f/g")
NOW_MS = 5
STEPS = 300


def some_change(rng: random.Random, whole: dict[str, Node | None]) -> Change:
    """Returns a change: usually one that can succeed in the tree `whole`, sometimes any."""
    existing = [path for path in whole if path != "/"]
    is_sensible = rng.random() < 0.85
    path = rng.choice(existing if existing and is_sensible else ("/", *PATHS))
    node = whole.get(path)
    version = node.version if node is not None and is_sensible else rng.randrange(-1, 3)
    version = rng.choice((ANY_VERSION, version))
    data = rng.randbytes(rng.randrange(3))
    kind = rng.choice((Create, Create, Put, Delete, Check))
    if kind is Create:
        missing = [other for other in PATHS if other not in whole]
        where = rng.choice(missing) if missing and is_sensible else path
        return Create(where, data, rng.random() < 0.3)
    if kind is Put:
        return Put(path, data, version)
    return Delete(path, version) if kind is Delete else Check(path, version)


@pytest.mark.parametrize("seed", range(6))
def test_both_drivers_return_the_same_results(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    tree, session = MemoryTree(), _Session()
    file = SqliteTree(
        str(tmp_path / "c.db"),
        session_timeout_ms=1000,
        now_ms=lambda: NOW_MS,
        shared_clock_ms=lambda: 0,
        identity=identity_of(os.getpid()),
    )
    done = {"Create": 0, "Put": 0, "Delete": 0, "Check": 0}
    failed = 0
    try:
        row = file.begin_session()
        for _ in range(STEPS):
            if rng.random() < 0.05:
                tree.drop_ephemerals(session)
                session = _Session()
                file.end_session(row)
                row = file.begin_session()
            else:
                whole = _whole(tree)
                changes = [some_change(rng, whole) for _ in range(rng.choice((1, 1, 2, 3)))]
                answer = _try_memory(tree, changes, session)
                assert answer == _try_file(file, changes, row), changes
                failed += answer != "done"
                for change in changes if answer == "done" else ():
                    done[type(change).__name__] += 1
            assert _whole(tree) == _whole(file)
    finally:
        file.close()
    assert failed > 20, "the transactions no longer include failures"
    assert min(done.values()) > 5, f"the transactions no longer vary: {done}"


def _try_memory(tree: MemoryTree, changes: list[Change], session: _Session) -> str:
    try:
        tree.apply(changes, session, NOW_MS)
    except LedgerError as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def _try_file(file: SqliteTree, changes: list[Change], session: int) -> str:
    (outcome,) = file.commit_together([lambda: file.apply(changes, session)])
    return f"{type(outcome).__name__}: {outcome}" if isinstance(outcome, LedgerError) else "done"


def _whole(store: MemoryTree | SqliteTree, path: str = "/") -> dict[str, Node | None]:
    found = {path: store.get(path)}
    for name in store.children(path):
        found |= _whole(store, f"{path.rstrip('/')}/{name}")
    return found
