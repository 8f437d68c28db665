"""`python -m tests.night` (`make night`): every campaign in full, with a report of what ran.

A change is tried with samples (`tests/effort.py`). This runs all tests with all of their examples,
seeds and crash points, then other seeds of the simulator and kills under Spark. A step that fails
stops no other. `build/night/report.md` says what ran, how much, how long and what failed; the
output of each step is beside it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests import effort
from tests.bookie.storage.crash_points import FILES
from tests.tidy.checkout import ROOT

DIRECTORY = ROOT / "build" / "night"
_PYTEST = (
    "pytest",
    "-p",
    "no:cacheprovider",
    "--numprocesses",
    "2",
    "--dist",
    "loadfile",
    "--no-loadscope-reorder",
)
_LINES_KEPT = 40
_COUNTS = re.compile(
    r"^(?:=+ )?\d+ (?:passed|failed|error|skipped|deselected).* in [\d.]+s.*$"
    r"|^\d+ (?:crash points|continuations)$|^.*\bkills\b.*$|^.*\bseeds\b.*$"
    r"|^[\d,]+ (?:frames|TLS records|HTTP requests)$|^  (?:memory|tasks|neighbour|FAILED): .*$"
    r"|^seed \d+$|^\d+ faults: .*$|^ \"\w+\": .*$"
)
_FAILURES = re.compile(r"^(?:FAILED|ERROR) .*$")


class Step(NamedTuple):
    """A campaign: a module of Python with arguments."""

    name: str
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    step: Step
    code: int
    seconds: float
    lines: Sequence[str]
    """Of its output."""

    def counts(self) -> list[str]:
        return [line.strip("= ") for line in self.lines if _COUNTS.match(line)][-_LINES_KEPT:]

    def failures(self) -> list[str]:
        return [line for line in self.lines if _FAILURES.match(line)]


def steps(seeds: int, kills: int) -> list[Step]:
    ignored = [f"--ignore={name}" for name in FILES]  # a step of their own
    # Other seeds each night; the report says which.
    drawn = "--first", str(int(time.time())), "--seeds", str(seeds)
    return [
        Step("tests", (*_PYTEST, "-m", "not interop and not spark", *ignored)),
        Step(
            "crash-points", ("tests.bookie.storage.crash_points", "-n", "2", "--dist", "loadfile")
        ),
        Step("simulator", ("tests.sim", *drawn)),
        Step("simulator-healing", ("tests.sim", "--scenario", "healing", *drawn)),
        Step("healing-faults", ("tests.system.healing.campaign", "--faults", "200")),
        *(
            Step(f"healing-{case}", ("tests.system.healing.lost_bookie", "--case", case))
            for case in ("disk", "two", "returns", "auditor")
        ),
        Step(
            "hostile", ("tests.hostile", "--requests", "10000000", "--seed", str(int(time.time())))
        ),
        Step("interop", (*_PYTEST, "-m", "interop")),
        Step("spark", (*_PYTEST, "-m", "spark")),
        Step("spark-kills", ("tests.spark.kills.killing", "--kills", str(kills))),
    ]


def run(step: Step) -> Outcome:
    """Runs a step; its output goes to a file and to the terminal."""
    started_s = time.monotonic()
    lines: list[str] = []
    process = subprocess.Popen(
        [sys.executable, "-m", *step.command],
        cwd=ROOT,
        env={**os.environ, "TEST_EFFORT": "night"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    with process, (DIRECTORY / f"{step.name}.log").open("w") as log:
        for line in process.stdout:
            log.write(line)
            sys.stdout.write(line)
            lines.append(line.rstrip())
    return Outcome(step, process.returncode, time.monotonic() - started_s, lines)


def report(outcomes: Sequence[Outcome]) -> str:
    rows = [
        f"| {one.step.name} | {'ok' if one.code == 0 else f'exit code {one.code}'} "
        f"| {one.seconds / 60:.1f} | `python -m {' '.join(one.step.command)}` |"
        for one in outcomes
    ]
    parts = [
        "# Report of a night",
        f"Written {time.strftime('%Y-%m-%d %H:%M:%S %z')}; Python {sys.version.split()[0]}, "
        f"{os.cpu_count()} cores.",
        "\n".join(("| step | result | minutes | command |", "|---|---|---|---|", *rows)),
    ]
    for one in outcomes:
        parts.append(f"## {one.step.name}")
        parts += ["\n".join(f"- {line}" for line in lines) for lines in (one.counts(),) if lines]
        if found := one.failures():
            parts.append("Failed:\n\n" + "\n".join(f"- `{line}`" for line in found))
    sizes = [f"- {where}: `{what}`" for where, what in effort.places()]
    parts += ["## What a change tries less of", "\n".join(sizes)]
    return "\n\n".join(parts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.night", description="Runs every campaign in full and writes a report."
    )
    names = [step.name for step in steps(0, 0)]
    parser.add_argument("--seeds", type=int, default=500, help="of the simulator (default 500)")
    parser.add_argument("--kills", type=int, default=2000, help="under Spark (default 2000)")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="these steps")
    given = parser.parse_args()
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    for step in steps(given.seeds, given.kills):
        if step.name in given.only:
            outcomes.append(run(step))
            # After each step: a night that is broken off has a report, too.
            (DIRECTORY / "report.md").write_text(report(outcomes))
    sys.stdout.write(f"\nreport: {DIRECTORY / 'report.md'}\n")
    return max(int(one.code != 0) for one in outcomes)


if __name__ == "__main__":
    sys.exit(main())
