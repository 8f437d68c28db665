"""Runs one seed as a job for another process, which returns what it found as a value.

A module of its own, because a spawned process cannot import what `__main__` holds.
"""

from __future__ import annotations

from bookie.testing.process import leaves_of
from tests.sim import bugs, run
from tests.sim.healing import bugs as healing_bugs
from tests.sim.healing import run as healing_run
from tests.sim.run import Outcome

RUNS = {"faults": run.run_seed, "healing": healing_run.run_seed}
BUGS = {"faults": bugs.BUGS, "healing": healing_bugs.BUGS}


def attempt(scenario: str, seed: int, bug: str | None, is_repeated: bool) -> Outcome | str:
    try:
        outcome = RUNS[scenario](seed, bug=bug)
        again = RUNS[scenario](seed, bug=bug) if is_repeated else outcome
    except Exception as error:  # noqa: BLE001 - sent to the parent as text
        return "; ".join(f"{type(leaf).__name__}: {leaf}" for leaf in leaves_of(error))
    if again.trace_hash != outcome.trace_hash:
        return "the same seed gave another trace: something is not determined by it"
    return outcome
