"""The table of what works with Apache's programs is sound, and comes from tests that ran."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.results import differences, keep, load, main, table_of, with_written
from tests.interop.table import BEGIN, END, Cell, Row, format_table, parse_table
from tests.interop.versions import VERSIONS
from tests.tidy.checkout import ROOT

TABLE = parse_table((ROOT / "docs" / "interoperability.md").read_text(encoding="utf-8"))
APPEND = Row("Java client, our bookies", "append", "v2")
PULSAR = Row("Pulsar", "managed ledger", "v2")


def in_document(text: str) -> str:
    return f"# Words\n\n{BEGIN}\n\n{text}\n{END}\n\nMore words.\n"


def test_the_table_is_about_all_versions() -> None:
    """A row may leave a version out; each version has its rows."""
    columns = [set(cells) for cells in TABLE.values()]
    assert all(columns)
    assert set(VERSIONS) <= set().union(*columns)


def test_nothing_in_the_table_fails_or_was_not_tried() -> None:
    bad = [
        f"{row.area} / {row.feature} / {row.wire} / {column}: {cell.word}"
        for row, cells in TABLE.items()
        for column, cell in cells.items()
        if cell.word not in ("yes", "n.a.")
    ]
    assert not bad


def test_what_does_not_apply_says_why() -> None:
    cells = [cell for cells in TABLE.values() for cell in cells.values()]
    assert all(cell.reason for cell in cells if cell.word == "n.a.")


def test_a_table_is_read_as_it_was_written() -> None:
    table = {
        APPEND: {"4.16.6": Cell("yes"), "4.17.3": Cell("n.a.", "came later"), "4.18.0": Cell("no")},
        PULSAR: {"Pulsar 4.0": Cell("yes", "with a limit")},
    }
    assert parse_table(in_document(format_table(table, VERSIONS))) == table


def test_what_holds_for_both_wire_versions_is_one_line() -> None:
    cells = {version: Cell("yes") for version in VERSIONS}
    table = {APPEND: cells, APPEND._replace(wire="v3"): dict(cells)}
    text = format_table(table, VERSIONS)
    assert text.count("append") == text.count("| append | v2, v3 | yes |") == 1
    assert parse_table(in_document(text)) == table


@pytest.mark.parametrize(
    "text",
    [
        "| Area | Feature | Wire | 4.16.6 |\n|---|---|---|---|\n| a | b | v2 | maybe |",
        "| Area | Feature | Wire | 4.16.6 |\n|---|---|---|---|\n| a | b | v2 | n.a. (1) |",
        "| Area | Feature | Wire | 4.16.6 |\n|---|---|---|---|\n| a | b | v2 |",
        "| Area | Feature | Wire | 4.16.6 |\n|---|---|---|---|\n| a | b | - | yes |\n"
        "| a | b | - | yes |",
        "(1) a footnote without a use",
    ],
)
def test_a_table_that_is_not_well_formed_is_noticed(text: str) -> None:
    with pytest.raises(ValueError):
        parse_table(in_document(text))


SUITE = """
import pytest
from tests.interop.results import not_supported

pytestmark = pytest.mark.parametrize("version", ["4.16.6", "4.18.0"])

@pytest.mark.interop_result(area="a", feature="adds", wire=None)
@pytest.mark.parametrize("wire", ["v2", "v3"])
def test_adds(version, wire):
    if wire == "v3" and version == "4.16.6":
        not_supported("came with 4.17")

@pytest.mark.interop_result(area="a", feature="reads", wire="v2, v3")
def test_reads(version):
    pass

@pytest.mark.interop_result(area="a", feature="reads", wire="v2", note="up to 5 MiB")
@pytest.mark.slow
def test_reads_much(version):
    pass

@pytest.mark.interop_result(area="a", feature="reads", wire="v2, v3")
def test_reads_again(version):
    assert version != "4.18.0"

@pytest.mark.interop_result(area="b", feature="broker", program="Pulsar 4.0")
def test_broker(version):
    pytest.skip("no Java")
"""


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "two processes"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run of SUITE without its slow test left behind."""
    tmp_path = tmp_path_factory.mktemp("suite")
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: not now\n")
    (tmp_path / "conftest.py").write_text(
        "from pathlib import Path\n"
        "from tests.interop import results\n"
        "import pytest\n"
        "from tests.interop.results import expect_results, pytest_configure\n"
        "from tests.interop.results import pytest_runtest_makereport, pytest_sessionfinish\n"
        f"results.RESULTS = Path({str(tmp_path / 'kept' / 'results.json')!r})\n"
        "pytest_collection_modifyitems = pytest.hookimpl(tryfirst=True)(expect_results)\n"
    )
    command = [sys.executable, "-m", "pytest", "--strict-markers", "-m", "not slow"]
    command.append(f"--numprocesses={request.param}")
    ran = subprocess.run(
        [*command, "-c", str(tmp_path / "pytest.ini"), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    return tmp_path / "kept" / "results.json"


@pytest.fixture
def results(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, which `main` compares with an empty document."""
    copy = tmp_path / "results.json"
    copy.write_bytes(run.read_bytes())
    (tmp_path / "document.md").write_text(in_document(""))
    monkeypatch.setattr("tests.interop.results.RESULTS", copy)
    monkeypatch.setattr("tests.interop.results.DOCUMENT", tmp_path / "document.md")
    return copy


def test_outcomes_of_tests_become_cells(results: Path) -> None:
    table = table_of(load(results).values())
    left_out = Cell("not run", "was left out")
    assert table == {
        Row("a", "adds", "v2"): {"4.16.6": Cell("yes"), "4.18.0": Cell("yes")},
        Row("a", "adds", "v3"): {"4.16.6": Cell("n.a.", "came with 4.17"), "4.18.0": Cell("yes")},
        Row("a", "reads", "v2"): {"4.16.6": Cell("yes"), "4.18.0": Cell("no")},
        Row("a", "reads", "v3"): {"4.16.6": Cell("yes"), "4.18.0": Cell("no")},
        Row("a", "reads; up to 5 MiB", "v2"): {"4.16.6": left_out, "4.18.0": left_out},
        Row("b", "broker", "-"): {"Pulsar 4.0": Cell("not run", "no Java")},
    }
    assert parse_table(in_document(format_table(table, VERSIONS))) == table


def test_the_document_is_compared_with_the_results() -> None:
    written = {APPEND: {"4.16.6": Cell("yes"), "4.17.3": Cell("yes"), "4.18.0": Cell("yes")}}
    assert not differences(written, written)
    failed = {APPEND: {**written[APPEND], "4.17.3": Cell("no")}}
    assert differences(failed, written) == [
        "Java client, our bookies / append / v2 / 4.17.3: document yes, results no"
    ]
    assert differences({}, written) == [
        "Java client, our bookies / append / v2: only in the document"
    ]
    assert differences({**written, PULSAR: {}}, written) == [
        "Pulsar / managed ledger / v2: only in the results"
    ]


def test_what_was_left_out_bears_nothing_out_but_keeps_what_is_written() -> None:
    written = {PULSAR: {"Pulsar 4.0": Cell("yes")}}
    found = {PULSAR: {"Pulsar 4.0": Cell("not run", "was left out")}}
    assert differences(found, written) == [
        "Pulsar / managed ledger / v2 / Pulsar 4.0: document yes, results not run (was left out)"
    ]
    assert with_written(found, written) == written
    assert with_written(found, {}) == found


def test_nothing_is_wrong_where_nothing_could_run(results: Path) -> None:
    assert main(["--check"]) == 1
    skipped = {key: r for key, r in load(results).items() if r.reason == "no Java"}
    results.unlink()
    keep(skipped, results)
    assert main(["--check"]) == 0


def test_what_was_found_is_written_and_then_true(results: Path) -> None:
    assert main(["--write"]) == 0
    assert main(["--check"]) == 0
    text = results.with_name("document.md").read_text()
    assert text.startswith("# Words\n")
    assert text.endswith("\nMore words.\n")
