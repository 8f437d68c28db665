"""Runs one seed as a job for another process, which returns what it found as a value.

A module of its own, because a spawned process cannot import what `__main__` holds.
"""

from __future__ import annotations

from bookie.testing.process import leaves_of
from tests.sim.run import Outcome, run_seed


def attempt(seed: int, bug: str | None, is_repeated: bool) -> Outcome | str:
    try:
        outcome = run_seed(seed, bug=bug)
        again = run_seed(seed, bug=bug) if is_repeated else outcome
    except Exception as error:  # noqa: BLE001 - sent to the parent as text
        return "; ".join(f"{type(leaf).__name__}: {leaf}" for leaf in leaves_of(error))
    if again.trace_hash != outcome.trace_hash:
        return "the same seed gave another trace: something is not determined by it"
    return outcome
