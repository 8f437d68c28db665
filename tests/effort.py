"""How much the campaigns of the tests try: a sample with each change, all of it every night.

`make test` proves each property with a few examples, seeds and crash points; `make night` sets
TEST_EFFORT=night and proves it with all of them. A test must never check something else at night:
only how often it tries may differ. `python -m tests.effort --list` prints each place with both
sizes. The sample of a change is a fixed one, so that a failure can be repeated.
"""

from __future__ import annotations

import argparse
import ast
import os
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
from _pytest.mark.structures import ParameterSet  # has no public name

_VARIABLE = "TEST_EFFORT"
_EFFORT = os.environ.get(_VARIABLE, "ci")
if _EFFORT not in ("ci", "night"):
    raise ValueError(f"{_VARIABLE} is {_EFFORT!r}. Cure: set it to 'ci' or 'night', or unset it.")
IS_NIGHT = _EFFORT == "night"

EXAMPLES_CI, EXAMPLES_NIGHT = 40, 1000
"""Examples of a Hypothesis property that does not say how many it takes."""


def scaled(*, ci: int, night: int) -> int:
    """Returns how many examples, seeds or steps to try."""
    return night if IS_NIGHT else ci


def stride(*, ci: int) -> int:
    """Returns the distance between two crash points that are tried: 1 at night, which is all."""
    return 1 if IS_NIGHT else ci


def seeds(*, ci: int | Sequence[int], night: int) -> list[ParameterSet]:
    """Returns the seeds for a parametrized test. All but the first `ci`, or but those that it
    lists, are tests marked slow."""
    chosen = range(ci) if isinstance(ci, int) else ci
    return [
        pytest.param(seed, marks=[] if seed in chosen else [pytest.mark.slow])
        for seed in range(night)
    ]


class Place(NamedTuple):
    """A call of one of the functions above, or a test that only the night runs."""

    where: str
    what: str


def places() -> list[Place]:
    """Returns every place in the tests where the night does more, by file and line."""
    from tests.tidy.checkout import name_of, python_files, tree_of

    return [
        Place(f"{name_of(path)}{inside}", what)
        for path in python_files("tests")
        for inside, what in _places_in(tree_of(path), "")
    ]


def _places_in(node: ast.AST, inside: str) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _places_in(child, f"{inside}::{child.name}")
        elif isinstance(child, ast.Call) and _name_of(child) in ("scaled", "stride", "seeds"):
            yield inside, ast.unparse(child)
        elif isinstance(child, ast.Attribute) and ast.unparse(child) == "pytest.mark.slow":
            yield inside, "at night only, or some of its parameters"
        else:
            yield from _places_in(child, inside)


def _name_of(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.effort", description="Prints what the night tries more of."
    )
    parser.add_argument("--list", action="store_true", required=True)
    parser.parse_args()
    lines = [
        f"{where}: {what}" for where, what in places() if not where.startswith("tests/effort.py")
    ]
    lines.append(f"every other Hypothesis property: ci={EXAMPLES_CI}, night={EXAMPLES_NIGHT}")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
