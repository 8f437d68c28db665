"""What only the night tries is listed, and the night never tries less than a change."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

from tests import effort
from tests.tidy.checkout import ROOT


def test_the_night_tries_more() -> None:
    calls = [(where, what) for where, what in effort.places() if what.endswith(")")]
    assert len(calls) > 50
    for where, what in calls:
        call = ast.parse(what, mode="eval").body
        assert isinstance(call, ast.Call)
        sizes = {one.arg: ast.literal_eval(one.value) for one in call.keywords}
        sample = sizes["ci"] if isinstance(sizes["ci"], int) else len(sizes["ci"])
        assert 0 < sample < sizes.get("night", float("inf")), (where, what)


def test_an_unknown_effort_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.effort", "--list"],
        cwd=ROOT, env={**os.environ, "TEST_EFFORT": "nigth"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Cure: set it to 'ci' or 'night'" in done.stderr


def test_seeds_beyond_the_sample_are_slow_tests() -> None:
    parameters = effort.seeds(ci=2, night=3)
    assert [[mark.name for mark in one.marks] for one in parameters] == [[], [], ["slow"]]
    parameters = effort.seeds(ci=(0, 2), night=3)
    assert [[mark.name for mark in one.marks] for one in parameters] == [[], ["slow"], []]
