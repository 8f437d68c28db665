"""The whole public API has types on every face, and none of them is Any."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stream.faces.suite import FACES, text_for
from tests.tidy.checkout import ROOT

PROGRAM = Path(__file__).with_name("whole_api.py")
PACKAGES = {"trio": "stream", "aio": "stream.aio", "blocking": "stream.blocking"}
ANY = {"RecordBatch.to_arrow", "RecordBatch.arrow_column"}
"""pyarrow has no types of its own."""
OF_TRIO = {"Canary", "CanaryOptions", "CanaryRound", "ReceiptTicket"}
"""For operators and programs in trio only."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    directory = tmp_path_factory.mktemp("programs")
    paths = [directory / f"whole_api_{face}.py" for face in FACES]
    for face, path in zip(FACES, paths, strict=True):
        path.write_text(text_for(PROGRAM, face), encoding="utf-8")
    return [str(path) for path in paths]


def checked(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


MYPY = [sys.executable, "-m", "mypy", "--strict", "--disallow-any-expr", "--follow-imports=silent"]


def test_mypy_finds_no_any(programs: list[str]) -> None:
    checked([*MYPY, *programs])


def test_an_any_would_be_found(tmp_path: Path) -> None:
    program = tmp_path / "leaking.py"
    program.write_text(
        "from stream.aio import RecordBatch\n\n\n"
        "def f(batch: RecordBatch) -> None:\n    print(batch.to_arrow())\n",
        encoding="utf-8",
    )
    with pytest.raises(AssertionError, match="Expression has type"):
        checked([*MYPY, str(program)])


def test_pyright_finds_nothing(programs: list[str], tmp_path: Path) -> None:
    config = tmp_path / "pyrightconfig.json"
    config.write_text(
        '{"include": [], "typeCheckingMode": "strict", "reportMissingModuleSource": false, '
        f'"extraPaths": ["{ROOT}"], "pythonVersion": "3.11"}}',
        encoding="utf-8",
    )
    checked(
        [sys.executable, "-m", "pyright", "--project", str(config),
         "--pythonpath", sys.executable, *programs]
    )  # fmt: skip


def public_members(face: str) -> Iterator[tuple[str, str, object]]:
    """Name, class and member of everything public of a face that can be called or read."""
    package = importlib.import_module(PACKAGES[face])
    for name in package.__all__:
        value = getattr(package, name)
        if inspect.isclass(value) and value.__module__.startswith("stream."):
            for key, member in vars(value).items():
                if not key.startswith("_"):
                    yield f"{name}.{key}", name, member
        elif inspect.isfunction(value):
            yield name, "", value


@pytest.mark.parametrize("face", FACES)
def test_no_signature_mentions_any(face: str) -> None:
    found = []
    for name, _, member in public_members(face):
        function = getattr(member, "fget", None) or getattr(member, "__func__", member)
        annotations = getattr(function, "__annotations__", {})
        if any(re.search(r"\bAny\b", str(each)) for each in annotations.values()):
            found.append(name)
    assert set(found) <= ANY


def test_the_program_uses_every_name_and_every_call() -> None:
    tree = ast.parse(PROGRAM.read_text(encoding="utf-8"))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
             for alias in node.names}  # fmt: skip
    package = importlib.import_module("stream.aio")
    assert set(package.__all__) - OF_TRIO <= names
    crossing = {
        name
        for name, owner, member in public_members("aio")
        if owner and getattr(package, owner).__module__.startswith("stream.aio")
    }
    assert "Namespace.writer" in crossing
    assert {name for name in crossing if member_name(name) not in used} == set()


def member_name(name: str) -> str:
    return name.split(".")[1]


@pytest.mark.parametrize("face", ["aio", "blocking"])
def test_faces_have_the_names_of_trio(face: str) -> None:
    native = set(importlib.import_module("stream").__all__)
    package = importlib.import_module(PACKAGES[face])
    more = {"LedgerClient"} | ({"fail_after"} if face == "blocking" else set())
    assert set(package.__all__) - more == native - OF_TRIO | (OF_TRIO & set(package.__all__))
