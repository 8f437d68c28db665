"""Generated files are marked for the tools that show differences, and no others."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.tidy.checkout import ROOT, files, name_of

_GENERATED = re.compile(r"\bGenerated (?:from .* )?by |\bGenerated protocol buffer code")


def is_generated(name: str, head: str) -> bool:
    """Returns whether a file says in its first lines that a program writes it."""
    if name.endswith((".py", ".md")):
        # The writers of these files hold the sentence, too, below their own docstring.
        return bool(_GENERATED.search(head)) and not name.startswith(("tools/", "tests/"))
    return name.endswith("_pb2.pyi")


def marked() -> set[str]:
    """Returns the files that .gitattributes marks."""
    done = subprocess.run(
        ["git", "check-attr", "-z", "--stdin", "linguist-generated"],
        input="\0".join(name_of(path) for path in files()),
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip("needs a checkout of git")
    fields = done.stdout.split("\0")
    return {name for name, value in zip(fields[::3], fields[2::3], strict=False) if value == "set"}


def test_generated_files_are_marked() -> None:
    generated = {
        name_of(path)
        for path in files()
        if path.suffix in {".py", ".pyi", ".md"}
        and is_generated(name_of(path), path.read_text(encoding="utf-8")[:500])
    }
    assert generated == marked(), "mend .gitattributes"
    assert {"docs/api.md", "stream/blocking/namespace.py"} <= generated
