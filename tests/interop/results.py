"""Writes the results of the interop suite as a table: `python -m tests.interop.results --write`.

A pytest plugin (the suite's conftest imports its hooks and calls `expect_results`) collects the
outcome of each test marked `interop_result(area=..., feature=..., wire=...)`. The program writes
them to docs/interoperability.md, or checks that the document has them. A "yes" must only come from
a test that ran and passed.

Results of several runs, and of the processes of one run, are merged: a test that did not run keeps
its earlier result.
"""

from __future__ import annotations

import argparse
import fcntl
import itertools
import json
import re
import sys
from collections.abc import Collection, Generator, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.interop.table import BEGIN, END, Cell, Row, Table, format_table, parse_table
from tests.interop.versions import VERSIONS

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / ".interop" / "results.json"
DOCUMENT = ROOT / "docs" / "interoperability.md"
MARKER = (
    "interop_result(area, feature, wire='-', program=None, note=None): a row of the table in "
    "docs/interoperability.md; the column is the parameter `version`, or `program` for another "
    "program than BookKeeper; `wire=None` takes the parameter `wire`"
)
_NOT_SUPPORTED = "not supported: "
_LEFT_OUT = "was left out"
_WORDS = {"failed": "no", "not run": "not run", "passed": "yes", "not supported": "n.a."}
"""Outcomes, worst first, with the word of the table if one of a cell's tests had it."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one test for one cell."""

    area: str
    feature: str
    wire: str
    column: str
    outcome: str
    reason: str = ""


def not_supported(reason: str) -> NoReturn:
    """Ends the test of a feature that this version of Apache BookKeeper does not have: "n.a." """
    pytest.skip(_NOT_SUPPORTED + reason)


# The plugin


class _Gatherer:
    """Results of one session, by test."""

    def __init__(self) -> None:
        self.results: dict[str, Result] = {}
        self._keys: dict[str, list[str]] = {}

    def expect(self, item: pytest.Item) -> None:
        """Notes that the test exists, whether it will run or not."""
        marker = item.get_closest_marker("interop_result")
        if marker is None:
            return
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        row = dict(marker.kwargs)
        feature = row.pop("feature") + (f"; {note}" if (note := row.pop("note", None)) else "")
        column = row.pop("program", None) or parameters.get("version")
        wire = row.pop("wire", "-") or parameters.get("wire")
        area = row.pop("area")
        if row or marker.args:
            raise pytest.UsageError(f"{item.nodeid}: {MARKER.partition(':')[0]}")
        if not isinstance(wire, str):
            raise pytest.UsageError(f"{item.nodeid} has no parameter `wire`")
        # A test without a version counts for all of them.
        columns = VERSIONS if column is None else (str(column),)
        for each, one_wire in itertools.product(columns, re.split(", | and ", wire)):
            key = f"{item.nodeid} @ {each} {one_wire}"
            self._keys.setdefault(item.nodeid, []).append(key)
            self.results[key] = Result(area, feature, one_wire, each, "not run", _LEFT_OUT)

    def note(self, nodeid: str, outcome: str, reason: str = "") -> None:
        """Notes the outcome of a phase of the test; the worst of all phases counts."""
        for key in self._keys.get(nodeid, ()):
            if self.results[key].outcome != "failed":
                said = " ".join(reason.split())
                self.results[key] = replace(self.results[key], outcome=outcome, reason=said)


_gatherer = pytest.StashKey[_Gatherer]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)
    config.stash.setdefault(_gatherer, _Gatherer())


def expect_results(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Registers all collected tests, before -m and -k deselect some."""
    for item in items:
        config.stash[_gatherer].expect(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple) and call.excinfo is not None:
        path, line, _ = report.longrepr
        report.longrepr = (path, line, f"Skipped: {_reason_of_skip(call.excinfo.value)}")
    gatherer = item.config.stash[_gatherer]
    if report.failed or hasattr(report, "wasxfail"):
        gatherer.note(item.nodeid, "failed", getattr(report, "wasxfail", ""))
    elif report.skipped:
        skipped = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
        reason = skipped.removeprefix("Skipped: ")
        if reason.startswith(_NOT_SUPPORTED):
            gatherer.note(item.nodeid, "not supported", reason.removeprefix(_NOT_SUPPORTED))
        else:
            gatherer.note(item.nodeid, "not run", reason)
    elif report.when == "call":
        gatherer.note(item.nodeid, "passed")
    return report


def _reason_of_skip(raised: BaseException) -> str:
    """Returns the reason of a skip; pytest-trio hides that of an async test in its cause."""
    if isinstance(raised, BaseExceptionGroup):
        return next(filter(None, map(_reason_of_skip, raised.exceptions)), "")
    if isinstance(raised, pytest.skip.Exception) and raised.msg:
        return raised.msg
    return _reason_of_skip(raised.__context__) if raised.__context__ is not None else ""


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not session.config.option.collectonly:
        found = session.config.stash[_gatherer].results
        are_whole = not any("::" in argument for argument in session.config.args)
        keep(found, RESULTS, {_module(key) for key in found} if are_whole else set())


def _module(key: str) -> str:
    return key.partition("::")[0]


def keep(found: Mapping[str, Result], path: Path, whole: Collection[str] = ()) -> None:
    """Merges `found` into the file; tests that did not run replace nothing.

    `found` has all tests of the modules in `whole`: others of these modules are removed.
    """
    path.parent.mkdir(exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several runs may end at the same time
        kept = {
            key: result
            for key, result in load(path).items()
            if key in found or _module(key) not in whole
        }
        for key, result in found.items():
            if result.reason != _LEFT_OUT or key not in kept:
                kept[key] = result
        new = path.with_suffix(".new")
        new.write_text(json.dumps({key: asdict(r) for key, r in sorted(kept.items())}, indent=1))
        new.replace(path)


def load(path: Path) -> dict[str, Result]:
    """Returns the results of earlier runs, if any."""
    if not path.exists():
        return {}
    stored: dict[str, dict[str, Any]] = json.loads(path.read_text())
    return {key: Result(**fields) for key, fields in stored.items()}


# The table


def table_of(results: Iterable[Result]) -> Table:
    """Returns a cell for each row and version: the worst outcome of its tests."""
    cells: dict[Row, dict[str, list[Result]]] = {}
    for result in results:
        row = Row(result.area, result.feature, result.wire)
        cells.setdefault(row, {}).setdefault(result.column, []).append(result)
    return {
        row: {column: _cell(found) for column, found in columns.items()}
        for row, columns in cells.items()
    }


def _cell(results: list[Result]) -> Cell:
    outcome = next(o for o in _WORDS if any(result.outcome == o for result in results))
    reasons = {r.reason for r in results if r.reason and r.outcome in (outcome, "not supported")}
    return Cell(_WORDS[outcome], "; ".join(sorted(reasons)))


def differences(found: Table, written: Table) -> list[str]:
    """Returns the differences between the document and the results, one line each.

    Tests that did not run confirm nothing.
    """
    lines = []
    for row in sorted({*found, *written}):
        name = " / ".join((row.area, row.feature, row.wire))
        if row not in found or row not in written:
            lines.append(f"{name}: only in the {'results' if row in found else 'document'}")
            continue
        for column in sorted({*found[row], *written[row]}):
            is_so, says = found[row].get(column), written[row].get(column)
            if is_so != says:
                lines.append(f"{name} / {column}: document {_say(says)}, results {_say(is_so)}")
    return lines


def _say(cell: Cell | None) -> str:
    return (
        "nothing" if cell is None else f"{cell.word} ({cell.reason})" if cell.reason else cell.word
    )


def with_written(found: Table, written: Table) -> Table:
    """Returns `found`, with the document's cells for tests that did not run."""
    left_out = Cell("not run", _LEFT_OUT)
    return {
        row: {
            column: written.get(row, {}).get(column, cell) if cell == left_out else cell
            for column, cell in columns.items()
        }
        for row, columns in found.items()
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop.results")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="put the results into the document")
    action.add_argument("--check", action="store_true", help="fail if the document says otherwise")
    chosen = parser.parse_args(arguments)
    text = DOCUMENT.read_text(encoding="utf-8")
    written = parse_table(text)
    found = table_of(load(RESULTS).values())
    if not found:
        print(f"no results in {RESULTS}: run the suite first", file=sys.stderr)
        return 1
    if chosen.write:
        before, _, rest = text.partition(BEGIN)
        _, _, after = rest.partition(END)
        table = format_table(with_written(found, written), VERSIONS)
        DOCUMENT.write_text(f"{before}{BEGIN}\n\n{table}\n{END}{after}", encoding="utf-8")
        return 0
    cells = [cell for row in found.values() for cell in row.values()]
    if all(cell.word == "not run" for cell in cells):
        print("nothing to compare: " + "; ".join({cell.reason for cell in cells}))
        return 0  # in CI missing tools have failed the tests
    wrong = differences(found, written)
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong:
        print("cure: mend it, or write what is so: make interop-table", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
