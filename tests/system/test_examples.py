"""Every program in examples/ runs, in at most 60 lines, and does what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bookie.testing import InProcessCluster
from tests.tidy.checkout import ROOT

pytestmark = pytest.mark.system

PATIENCE_S = 120
LINES_MAX = 60
SHORT = [
    "append_and_tail",
    "change_log",
    "order_book",
    "testing_with_faults",
]


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def example(name: str, cluster: InProcessCluster, *arguments: str) -> list[str]:
    return run("-m", f"examples.{name}", cluster.uri, *arguments).splitlines()


@pytest.mark.parametrize("name", SHORT)
def test_it_is_short(name: str) -> None:
    lines = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= LINES_MAX


def test_append_and_tail(ledgerstream_cluster: InProcessCluster) -> None:
    lines = example("append_and_tail", ledgerstream_cluster)
    appended = [line.split()[1] for line in lines if line.startswith("appended")]
    read = [line.split()[1].rstrip(",") for line in lines if line.startswith("read")]
    assert appended == read == [f"{20 + number / 10:.1f}" for number in range(10)]


def test_order_book(ledgerstream_cluster: InProcessCluster) -> None:
    *trades, last = example("order_book", ledgerstream_cluster)
    assert sum(int(line.split()[-1]) for line in trades) == 20
    assert last == f"20 of 20 shares were sold in {len(trades)} trades"


def test_change_log(ledgerstream_cluster: InProcessCluster) -> None:
    for _ in range(2):  # the second run goes on behind the first
        applied, kept = example("change_log", ledgerstream_cluster)
        assert applied == "applied 50 changes, 0 left"
        assert re.fullmatch(r"7 rows, account-0 is {'balance': 490}; 0 records kept", kept)


def test_testing_with_faults(tmp_path: Path) -> None:
    options = ["-o", "trio_mode=true", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'tmp'}"]
    assert "2 passed" in run("-m", "pytest", "-v", *options, "examples/testing_with_faults.py")
