"""What a start of the command, and an import of a package, may load: modules, not milliseconds."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.tidy.checkout import ROOT

_PROGRAM = """
import atexit, sys
before = set(sys.modules)
sys.argv = ["ledgerstream", {arguments}]
atexit.register(lambda: print(*sorted(set(sys.modules) - before), file=sys.stderr))
{statement}
"""
HEAVY = {"google", "hypercorn", "kazoo", "msgspec", "pyarrow", "pyspark", "rocksdict", "starlette"}
NETWORK = HEAVY | {"ssl", "sqlite3", "trio"}
OWN = {"ledger", "stream", "bookie", "connectors"}


def loaded(statement: str, *arguments: str) -> list[str]:
    """Returns the modules that a statement loads in a new interpreter."""
    program = _PROGRAM.format(statement=statement, arguments=", ".join(map(repr, arguments)))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.split()


def tops(modules: list[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


RUN = "import ledgerstream_entry; ledgerstream_entry.main()"


def test_the_version_loads_nothing_of_ours_but_the_entry() -> None:
    modules = loaded(RUN, "--version")
    assert not tops(modules) & (NETWORK | OWN | {"cyclopts", "rich"})
    assert len(modules) <= 90


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"], ["stream", "list", "--help"], ["read", "--help"], ["append", "--help"],
        ["namespace", "set", "--help"], ["cursor", "set", "--help"], ["status", "--help"],
        ["ledger", "read", "--help"], ["metadata", "export", "--help"], ["context", "list"],
        ["autorecovery", "list", "--help"], ["autorecovery", "--help"],
        ["standalone", "--help"], ["bookie", "run", "--help"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_command_loads_nothing_that_its_help_does_not_show(arguments: list[str]) -> None:
    modules = loaded(RUN, *arguments)
    assert not tops(modules) & NETWORK
    assert not [m for m in modules if m in ("ledger.client", "stream.namespace")]
    assert len(modules) <= 330
    assert len([m for m in modules if m.partition(".")[0] in OWN]) <= 45


@pytest.mark.parametrize(
    ("package", "most"),
    [
        ("ledgerstream", 40),
        ("stream", 10),
        ("ledger", 10),
        ("bookie", 10),
        ("stream.blocking", 480),
    ],
)
def test_a_package_loads_what_it_needs(package: str, most: int) -> None:
    modules = loaded(f"import {package}")
    assert not tops(modules) & HEAVY - {"google"}
    assert len(modules) <= most
