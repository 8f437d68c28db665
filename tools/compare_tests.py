"""Compares the test functions of two commits: which are lost, renamed or new.

    python -m tools.compare_tests 058f555 [HEAD]

A function whose name exists in both commits is the same test, whatever its file. The others are
matched by the words in their source: a pair that shares more than a fifth of them is a rename.
Prints a line per renamed test (old, new), then those without a partner, then the counts. The exit
code is 1 if a test is lost.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_PREFIXES = ("test_", "check_")
_ALIKE_MIN = 0.2

Words = Counter[str]


def functions_of(source: str) -> dict[str, Words]:
    """Returns the test functions of a module, with the words in their source."""
    return {
        node.name: Counter(re.findall(r"\w+", ast.get_source_segment(source, node) or ""))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith(_PREFIXES)
    }


def matched(old: Mapping[str, Words], new: Mapping[str, Words]) -> dict[str, str]:
    """Returns the new id of each renamed test; ids are "file::function"."""
    pairs = []
    for one, words in old.items():
        for other, others in new.items():
            alike = sum((words & others).values()) / max(1, sum((words | others).values()))
            if alike > _ALIKE_MIN:
                pairs.append((alike, one, other))
    found: dict[str, str] = {}
    taken: set[str] = set()
    for _, one, other in sorted(pairs, reverse=True):
        if one not in found and other not in taken:
            found[one] = other
            taken.add(other)
    return found


def _tests_at(commit: str) -> dict[str, Words]:
    found: dict[str, Words] = {}
    for name in _git("ls-tree", "-r", "--name-only", commit, "tests").splitlines():
        if name.endswith(".py"):
            tests = functions_of(_git("show", f"{commit}:{name}"))
            found |= {f"{name}::{test}": words for test, words in tests.items()}
    return found


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.compare_tests", description="Compares the tests of two commits."
    )
    parser.add_argument("before")
    parser.add_argument("after", nargs="?", default="HEAD")
    given = parser.parse_args()
    old, new = _tests_at(given.before), _tests_at(given.after)
    names = [{test.split("::")[1] for test in tests} for tests in (old, new)]
    gone = {test: words for test, words in old.items() if test.split("::")[1] not in names[1]}
    came = {test: words for test, words in new.items() if test.split("::")[1] not in names[0]}
    renamed = matched(gone, came)
    lost = [test for test in gone if test not in renamed]
    lines = [f"{test} -> {renamed[test]}" for test in sorted(renamed)]
    lines += [f"without a partner: {test}" for test in lost]
    lines.append(
        f"{len(old)} test functions before, {len(new)} after: {len(renamed)} renamed, "
        f"{len(lost)} without a partner, {len(came) - len(renamed)} new"
    )
    sys.stdout.write("\n".join(lines) + "\n")
    return int(bool(lost))


if __name__ == "__main__":
    sys.exit(main())
