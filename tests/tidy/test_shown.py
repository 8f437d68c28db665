"""What is shown passes `ledger.shown_text`: no module writes to a terminal past it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.checkout import ROOT

PAST_IT = {
    "ledger/cli/output.py": "the one place that writes, with `write_output` for bytes",
    "ledger/cli/standard_streams.py": "`announce`, which escapes",
    "ledger/cli/metadata.py": "the export: JSON in ASCII",
    "ledgerstream_entry.py": "texts about the installation, when nothing else can be imported",
    "connectors/spark/monitoring/progress.py": "numbers, and codes that redraw a line",
    "connectors/spark/monitoring/plan_summary.py": "`print_plan`, which escapes",
}
"""Modules that write to a standard stream themselves, and why they may."""


def modules() -> Iterator[tuple[str, ast.Module]]:
    for package in ("ledger", "bookie", "stream", "connectors", "ledgerstream"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))
    entry = ROOT / "ledgerstream_entry.py"
    yield entry.name, ast.parse(entry.read_text(encoding="utf-8"))


def writes(tree: ast.Module) -> list[int]:
    """The lines that write text or bytes to a standard stream."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            first = ast.unparse(node.args[0]) if node.args else ""
            if (
                called in ("print", "pprint", "traceback.print_exc")
                or (called.startswith(("sys.stdout.", "sys.stderr.")) and ".write" in called)
                or (called == "os.write" and first in ("1", "2", "_STDERR", "STDOUT", "STDERR"))
                or (called == "sys.exit" and first.startswith(("f'", "'", "str(")))
            ):  # fmt: skip
                found.append(node.lineno)
    return found


def unescaped_json(tree: ast.Module) -> list[int]:
    """The lines that make JSON with characters that are not ASCII outside `escaped_json`, or an
    HTTP answer of Starlette's own class."""
    escaped = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "escaped_json"
        for inner in ast.walk(node)
    }
    text_of = {
        target.id: node
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    names = {node.id for node in escaped if isinstance(node, ast.Name)}
    escaped |= {inner for name in names if name in text_of for inner in ast.walk(text_of[name])}
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node not in escaped
        if ast.unparse(node.func) == "JSONResponse"
        or any(keyword.arg == "ensure_ascii" for keyword in node.keywords)
    ]


def markup(tree: ast.Module) -> list[int]:
    """The lines with a column of a progress bar in which text could be taken for markup."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "TextColumn"
        if "task.fields[stream]" in ast.unparse(node) or "task.fields[why]" in ast.unparse(node)
        if not any(keyword.arg == "markup" for keyword in node.keywords)
    ]


def test_no_module_writes_past_the_escaping() -> None:
    found = {name: writes(tree) for name, tree in modules()}
    assert {name for name, lines in found.items() if lines} == set(PAST_IT), found


def test_json_that_is_shown_is_escaped() -> None:
    assert {name: found for name, tree in modules() if (found := unescaped_json(tree))} == {}


def test_no_text_is_taken_for_markup() -> None:
    assert {name: found for name, tree in modules() if (found := markup(tree))} == {}


@pytest.mark.parametrize(
    "code",
    [
        "print(x)",
        "sys.stdout.write(x)",
        "sys.stderr.buffer.write(x)",
        "os.write(1, x)",
        "sys.exit(f'{x}')",
    ],
)
def test_the_rule_finds_what_it_forbids(code: str) -> None:
    assert writes(ast.parse(code)) == [1]
    assert writes(ast.parse("file.write(x)")) == []
    assert unescaped_json(ast.parse("json.dumps(x, ensure_ascii=False)")) == [1]
    assert unescaped_json(ast.parse("escaped_json(json.dumps(x, ensure_ascii=False))")) == []
    assert markup(ast.parse('TextColumn("{task.fields[why]}")')) == [1]


def test_the_exceptions_are_files() -> None:
    assert all((ROOT / Path(name)).exists() for name in PAST_IT)
