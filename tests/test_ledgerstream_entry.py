"""A foreign package or a missing extra is reported with its cause and its cure."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import ledgerstream_entry as entry
from tests.tidy.checkout import ROOT

_TIMEOUT_S = 60
_WITHOUT_EDITABLE = """
import sys
sys.meta_path[:] = [one for one in sys.meta_path if "__editable__" not in str(one)]
"""
"""An editable installation finds parts of ours below a foreign package; a wheel does not."""


def install(
    site: Path, package: str, *, title: str | None = "other-things", source: str = ""
) -> Path:
    """Puts a package `package` into the folder `site`, as a distribution `title` would."""
    file = site / package / "__init__.py"
    file.parent.mkdir(parents=True)
    file.write_text(source)
    if title is not None:
        information = site / f"{title.replace('-', '_')}-1.2.3.dist-info"
        information.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {title}\nVersion: 1.2.3\n"
        (information / "METADATA").write_text(metadata)
        (information / "RECORD").write_text(f"{package}/__init__.py,,\n")
    return file


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python with `site` before this checkout on its path, in an empty folder."""
    (site / "sitecustomize.py").write_text(_WITHOUT_EDITABLE)
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=site, env={**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"},
        capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "imported", ["stream", "stream.writer", "connectors.spark", "ledgerstream", "ledgerstream.aio"]
)
def test_the_first_import_names_the_distribution_that_hides_ledger(
    tmp_path: Path, imported: str
) -> None:
    found = install(tmp_path, "ledger")
    assert last_line(run(tmp_path, "-c", f"import {imported}")) == (
        "ledgerstream_entry.ForeignPackage: the package 'ledger' of ledgerstream is hidden by "
        f"another one, {found}, of the distribution 'other-things' 1.2.3. Cure: pip uninstall "
        "other-things; or one virtual environment for each of the two"
    )


def test_a_connector_names_the_distribution_that_hides_stream(tmp_path: Path) -> None:
    install(tmp_path, "stream")
    line = last_line(run(tmp_path, "-c", "import connectors.spark"))
    assert "the package 'stream' of ledgerstream is hidden by" in line
    assert "of the distribution 'other-things' 1.2.3" in line


def test_the_module_for_spark_names_the_distribution_that_hides_connectors(tmp_path: Path) -> None:
    install(tmp_path, "connectors")
    line = last_line(run(tmp_path, "-c", "import pyspark_ledgerstream"))
    assert "the package 'connectors' of ledgerstream is hidden by" in line
    assert "of the distribution 'other-things' 1.2.3" in line


@pytest.mark.parametrize("package", ["ledger", "stream"])
def test_the_command_reports_a_hidden_package_in_one_line(tmp_path: Path, package: str) -> None:
    found = install(tmp_path, package)
    done = run(tmp_path, "-m", "ledgerstream_entry", "stream", "list", "demo")
    assert done.stderr.count("\n") == 1
    assert last_line(done) == (
        f"ledgerstream: the package '{package}' of ledgerstream is hidden by another one, "
        f"{found}, of the distribution 'other-things' 1.2.3. Cure: pip uninstall other-things; "
        "or one virtual environment for each of the two"
    )


def test_the_command_reports_a_hidden_bookie_when_it_is_needed(tmp_path: Path) -> None:
    install(tmp_path, "bookie")
    assert run(tmp_path, "-m", "ledgerstream_entry", "stream", "--help").returncode == 0
    done = run(tmp_path, "-m", "ledgerstream_entry", "bookie", "list")
    assert last_line(done) == done.stderr.strip()
    assert "the package 'bookie' of ledgerstream is hidden by another one" in done.stderr


def test_a_package_of_no_distribution_is_named_by_its_path(tmp_path: Path) -> None:
    found = install(tmp_path, "ledger", title=None)
    line = last_line(run(tmp_path, "-c", "import stream"))
    assert f"hidden by another one, {found}. Cure: rename it, or take its folder out of" in line


def test_a_module_hides_a_package_as_well(tmp_path: Path) -> None:
    (tmp_path / "ledger.py").write_text("balance = 0\n")
    line = last_line(run(tmp_path, "-c", "import stream"))
    assert f"hidden by another one, {tmp_path / 'ledger.py'}. Cure: rename it" in line


def test_a_foreign_package_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    found = install(tmp_path, "ledger", source="print 'for an older Python'\n")
    line = last_line(run(tmp_path, "-c", "import stream"))
    assert f"hidden by another one, {found}, of the distribution 'other-things'" in line


def test_files_overwritten_in_the_same_folder_are_installed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two distributions in one site-packages: the later one has replaced our `__init__.py`."""
    install(tmp_path, "hidden_one")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(entry, "__file__", str(tmp_path / "ledgerstream_entry.py"))
    with pytest.raises(entry.ForeignPackage) as caught:
        entry.require_own_packages("hidden_one")
    assert (
        "Cure: pip uninstall other-things && pip install --force-reinstall --no-deps ledgerstream"
        in str(caught.value)
    )


def test_a_package_that_is_not_there_at_all_is_missing() -> None:
    with pytest.raises(entry.ForeignPackage, match=r"'no_such_package' .* is missing\. Cure: pip"):
        entry.require_own_packages("no_such_package")


def test_our_own_packages_are_recognized_without_reading_metadata() -> None:
    program = (
        "import sys; before = set(sys.modules); import stream, bookie, connectors.spark; "
        "print('importlib.metadata' in set(sys.modules) - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=True
    )
    assert done.stdout.strip() == b"False"
    entry.require_own_packages(*entry.PACKAGES)


def test_an_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    entry.require_extra("bookie")
    monkeypatch.setitem(entry.EXTRAS, "bookie", ("trio", "no_such_module"))
    with pytest.raises(entry.MissingExtra) as caught:
        entry.require_extra("bookie")
    assert str(caught.value) == (
        "this needs no_such_module, which is not installed. "
        "Cure: pip install 'ledgerstream[bookie]'"
    )


def missing(module: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"No module named {module!r}", name=module)


@pytest.mark.parametrize(
    ("module", "cure"),
    [
        ("cyclopts", "ledgerstream"),
        ("rich.console", "ledgerstream"),
        ("rocksdict", "'ledgerstream[bookie]'"),
        ("kazoo.client", "'ledgerstream[zookeeper]'"),
        ("pyarrow", "'ledgerstream[arrow]'"),
        ("trio", "ledgerstream"),
    ],
)
def test_a_missing_module_is_explained_by_its_extra(module: str, cure: str) -> None:
    nested = ExceptionGroup("tasks", [ExceptionGroup("inner", [missing(module)])])
    name = module.partition(".")[0]
    assert entry.explain(nested) == (
        f"this needs {name}, which is not installed. Cure: pip install {cure}"
    )


@pytest.mark.parametrize(
    "error",
    [
        missing("something_else"),
        missing("ledger.no_such_part"),
        ImportError("cannot import name 'x' from 'rich'", name="rich"),
        ValueError("a bug"),
        ExceptionGroup("tasks", [missing("rocksdict"), ValueError("a bug")]),
    ],
)
def test_other_errors_keep_their_traceback(error: Exception) -> None:
    assert entry.explain(error) is None


def test_the_modules_of_extras_are_those_of_pyproject() -> None:
    """Each distribution that an extra asks for has its module in the table, and no other."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    modules = {
        "PyJWT": "jwt",
        "prometheus-client": "prometheus_client",
        "protobuf": "google",
        "tomli-w": "tomli_w",
    }
    for extra, named in entry.EXTRAS.items():
        assert set(named) == {modules.get(name, name) for name in asked_for(project, extra)}
    core = [re.match(r"[\w-]+", line) for line in project["dependencies"]]
    assert set(entry.CORE) == {modules.get(found[0], found[0]) for found in core if found}


def asked_for(project: dict[str, dict[str, list[str]]], extra: str) -> set[str]:
    """The distributions that `extra` asks for, those of other extras of ours included."""
    names: set[str] = set()
    for line in project["optional-dependencies"][extra]:
        requirement = Requirement(line)
        if requirement.name == entry.DISTRIBUTION:
            for other in requirement.extras:
                names |= asked_for(project, other)
        else:
            names.add(requirement.name)
    return names
