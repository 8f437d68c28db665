"""The command, installed from the wheel into environments that lack extras, names what to install.

No sub-command may end in a traceback because an extra is missing.
"""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.tidy.checkout import ROOT
from tests.wheel import TIMEOUT_S, build_wheel, clean_environment

pytestmark = [pytest.mark.system, pytest.mark.slow]

CORE = ["trio", "protobuf", "crc32c", "cyclopts", "rich"]
MODULES = ["ledgerstream", "stream.cli"]
_NO_CLUSTER = "sqlite:///no-such-folder/cluster.db"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment with the wheel only, without even its dependencies."""
    return clean_environment(tmp_path_factory.mktemp("bare"), wheel, [])


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment that `pip install ledgerstream` creates."""
    return clean_environment(tmp_path_factory.mktemp("core"), wheel, CORE)


def run(directory: Path, *command: str) -> subprocess.CompletedProcess[str]:
    ours = ("PYTHON", "LEDGERSTREAM_", "VIRTUAL_ENV")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    return subprocess.run(
        command, cwd=directory, env=environment,
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


def forms(commands: Path) -> list[list[str]]:
    """The ways to start the command."""
    python = str(commands / "python")
    return [[str(commands / "ledgerstream")], *([python, "-m", name] for name in MODULES)]


@pytest.mark.parametrize("environment", ["bare", "core"])
def test_the_version_needs_no_extra(
    environment: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for command in forms(request.getfixturevalue(environment)):
        done = run(tmp_path, *command, "--version")
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{project['version']}\n", "")


@pytest.mark.parametrize(
    "arguments", [[], ["--help"], ["append", "demo/x"], ["bookie", "run"], ["standalone"]]
)
def test_without_dependencies_every_command_asks_for_them(
    bare: Path, tmp_path: Path, arguments: list[str]
) -> None:
    for command in forms(bare):
        done = run(tmp_path, *command, *arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert re.fullmatch(
            r"ledgerstream: this needs \w+, which is not installed\. "
            r"Cure: pip install ledgerstream\n",
            done.stderr,
        )


@pytest.mark.parametrize(
    "arguments",
    [
        ["standalone", "--dir", "data"],
        ["bookie", "run", "--config", "bookie.toml"],
        ["bookie", "check", "bookie.toml"],
        ["bookie", "rebuild-index", "bookie.toml"],
        ["bookie", "inspect", "index", "data"],
        ["bookie", "inspect", "ledger", "data", "1"],
    ],
    ids=" ".join,
)
def test_a_command_of_bookies_asks_for_their_extra(
    core: Path, tmp_path: Path, arguments: list[str]
) -> None:
    (tmp_path / "bookie.toml").write_text('metadata_uri = "sqlite:///x/cluster.db"\n')
    done = run(tmp_path, str(core / "ledgerstream"), *arguments)
    assert done.returncode == 1
    assert done.stderr.startswith("ledgerstream: this needs ")
    assert done.stderr.endswith(
        ", which is not installed. Cure: pip install 'ledgerstream[bookie]'\n"
    )
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["stream", "list", "demo"],
        ["append", "demo/x"],
        ["read", "demo/x"],
        ["namespace", "list"],
        ["cursor", "list", "demo/x"],
        ["group", "list", "demo/x"],
        ["sink", "list"],
        ["ledger", "list"],
        ["canary", "demo/x"],
        ["janitor", "--once"],
        ["bookie", "list"],
        ["bookie", "show"],
        ["bookie", "gc", "127.0.0.1:3181"],
    ],
    ids=" ".join,
)
def test_other_commands_need_no_extra(core: Path, tmp_path: Path, arguments: list[str]) -> None:
    done = run(tmp_path, str(core / "ledgerstream"), *arguments, "--cluster", _NO_CLUSTER)
    assert done.returncode == 1
    assert done.stderr.startswith("ledgerstream: ")
    assert "/no-such-folder" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_address_of_zookeeper_asks_for_its_extra(core: Path, tmp_path: Path) -> None:
    address = "zk://127.0.0.1:2181/ledgers"
    done = run(tmp_path, str(core / "ledgerstream"), "stream", "list", "x", "--cluster", address)
    assert done.returncode == 1
    assert done.stderr == (
        f"ledgerstream: cluster address '{address}' needs kazoo, which is not installed. "
        "Cure: pip install 'ledgerstream[zookeeper]' (the address is from --cluster)\n"
    )


def test_bench_reports_that_benchmarks_are_part_of_the_source(core: Path, tmp_path: Path) -> None:
    done = run(tmp_path, str(core / "ledgerstream"), "bench", "append")
    assert done.returncode == 1
    assert "benchmarks are part of the source, not of the installed package" in done.stderr
