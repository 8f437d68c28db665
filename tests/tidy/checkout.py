"""The files of this repository, for tests that judge the source rather than run it.

Lists what git tracks or would track, so that a new file is judged before it is committed.
Outside a git checkout it walks the tree and skips what no commit would hold.
"""

from __future__ import annotations

import ast
import gc
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("ledger", "bookie", "stream", "connectors", "ledgerstream")
_SKIPPED = {".git", ".venv", ".venv-spark42", "build", "dist", "__pycache__"}


@cache
def files() -> tuple[Path, ...]:
    """All files of the checkout, sorted."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode == 0:
        found = [ROOT / name for name in listing.stdout.decode().split("\0") if name]
    else:
        found = [p for p in ROOT.rglob("*") if not _SKIPPED & set(p.relative_to(ROOT).parts)]
    return tuple(sorted(path for path in found if path.is_file()))


def name_of(path: Path) -> str:
    """The path as the repository knows it: "ledger/core/entry.py"."""
    return path.relative_to(ROOT).as_posix()


@cache
def python_files(*folders: str) -> tuple[Path, ...]:
    """Python files we wrote (not generated ones), all or those under `folders`."""
    return tuple(
        path
        for path in files()
        if path.suffix == ".py"
        and not path.stem.endswith("_pb2")
        and (not folders or name_of(path).split("/")[0] in folders)
    )


@cache
def tree_of(path: Path) -> ast.Module:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=name_of(path))
    gc.freeze()  # it stays: no search for garbage needs to pass through millions of nodes
    return tree
