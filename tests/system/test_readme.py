"""The README's example, pasted into a file, runs against the README's cluster."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.cluster import PATIENCE_S, StandaloneCluster, environment
from tests.tidy.checkout import ROOT

pytestmark = pytest.mark.system


def python_examples() -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_example_runs(shared: StandaloneCluster, tmp_path: Path) -> None:
    example, of_spark = python_examples()
    assert "register(spark)" in of_spark  # tests/spark/test_documents.py runs it
    pasted = tmp_path / "clicks.py"
    pasted.write_text(example)
    for run in (1, 2):  # a second run takes the stream over and continues after the first
        done = subprocess.run(
            [sys.executable, "-W", "error", str(pasted), shared.uri],
            capture_output=True,
            env=environment(),
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        lines = done.stdout.decode().splitlines()
        assert lines[0].startswith("the last one is durable at ")
        assert len(lines) == 1 + 100 * run
        assert lines[-1] == f"{100 * run - 1} b'user-1' b'click 99'"
