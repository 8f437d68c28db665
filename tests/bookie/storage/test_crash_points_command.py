"""The command that runs every crash test, with one of them."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.tidy.checkout import ROOT


def test_it_runs_them_and_counts_what_was_tried() -> None:
    run = subprocess.run(
        [
            sys.executable, "-P", "-m", "tests.bookie.storage.crash_points",
            "-k", "test_power_loss_at_every_step_loses_nothing_acknowledged",
        ],
        cwd=ROOT, env={"PYTHONPATH": str(ROOT), "PATH": "", "TEST_EFFORT": "ci"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    counted = re.search(r"^(\d+) crash points$", run.stdout, re.MULTILINE)
    assert counted is not None
    assert int(counted[1]) > 0
