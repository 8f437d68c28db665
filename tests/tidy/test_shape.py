"""Files and functions fit in a head, and modules say what they answer for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.checkout import PRODUCT, name_of, python_files, tree_of

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
# The places where everything meets are the ones that rot: a lower wall for them.
LONG_FILES = {
    "bookie/bookie.py": "puts a bookie together: one place to see all of its parts",
    "bookie/storage/journal/journal.py": "the journal and the group it gathers for one write",
    "stream/core/retention.py": "one policy, for streams and for partitioned ones",
    "stream/namespace.py": "the facade: one short method per operation, most of it docstrings",
}
"""Files of more than FILE_LINES_MAX lines, up to FILE_LINES_WALL, each with its reason."""
FILE_LINES_WALL = 700
MEETING_PLACES = {
    "ledger/writing/writer.py": 300,
    "bookie/storage/ledger_storage.py": 300,
    "stream/writing/writer.py": 300,
}
UNWANTED_NAMES = {"util", "utils", "common", "helpers", "helper", "manager", "misc"}


def too_long_functions(tree: ast.Module, lines_max: int) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > lines_max:
                yield f"{node.name} (line {node.lineno}) has {lines} lines, at most {lines_max}"


GENERATED = "by `make faces`. Not to be edited."


@pytest.mark.parametrize("path", python_files(), ids=name_of)
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if GENERATED in text[:500]:
        return  # what it is made from is judged
    normal_max = FILE_LINES_WALL if name_of(path) in LONG_FILES else FILE_LINES_MAX
    lines_max = MEETING_PLACES.get(name_of(path), normal_max)
    lines = len(text.splitlines())
    assert lines <= lines_max, f"{name_of(path)} has {lines} lines, at most {lines_max}"
    assert not list(too_long_functions(tree_of(path), FUNCTION_LINES_MAX))


@pytest.mark.parametrize("path", python_files(*PRODUCT), ids=name_of)
def test_modules_say_what_they_answer_for(path: Path) -> None:
    tree = tree_of(path)
    assert not tree.body or ast.get_docstring(tree), "a module opens with its docstring"


def test_names_say_what_a_file_is_about() -> None:
    vague = [name_of(path) for path in python_files() if path.stem in UNWANTED_NAMES]
    assert not vague


def test_a_long_function_is_noticed() -> None:
    source = "async def long() -> None:\n" + "    pass\n" * 5
    assert list(too_long_functions(ast.parse(source), 5)) == [
        "long (line 1) has 6 lines, at most 5"
    ]
    assert not list(too_long_functions(ast.parse(source), 6))
