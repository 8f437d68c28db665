"""Seeds of clusters that heal themselves; `python -m tests.sim --scenario healing --seeds N` runs
more. Planted bugs must be found: an oracle that cannot fail proves nothing."""

from __future__ import annotations

import pytest

from tests.effort import seeds
from tests.ledger.autorecovery import test_disturbances
from tests.sim.healing.bugs import BUGS, bug_planted
from tests.sim.healing.run import run_seed
from tests.sim.model import Violation

# A seed that is known to find the bug; for most, any of the first 40 does.
FINDING_SEEDS = {
    "copied-before-closed": 2,
    "copy-counted-twice": 1,
    "deleted-ledger-replicated": 0,
    "last-fragment-replaced": 0,
    "mark-deleted-blindly": 0,
    "moved-in-part": 48,
    "named-before-copied": 1,
}
SEEDS = 40


@pytest.mark.parametrize("seed", seeds(ci=(1, 3), night=40))
def test_what_lacks_copies_gets_them_and_nothing_is_lost(seed: int) -> None:
    outcome = run_seed(seed)
    assert outcome.counts["ledgers whole in the end"] > 0
    assert outcome.counts["entries read"] > 0


def test_the_same_seed_gives_the_same_run() -> None:
    assert run_seed(1).trace_hash == run_seed(1).trace_hash


@pytest.mark.slow
@pytest.mark.parametrize("bug", sorted(FINDING_SEEDS))
def test_a_planted_bug_is_found(bug: str) -> None:
    for seed in (FINDING_SEEDS[bug], *range(SEEDS)):
        try:
            run_seed(seed, bug=bug)
        except Exception:  # noqa: BLE001 - violated promises, and processes that die of them
            return
    raise Violation(f"{SEEDS} seeds did not notice {bug}")


def test_a_stopped_copy_that_counts_is_found() -> None:
    """Seeds seldom find it, because all that saw the loss mark the ledger again."""
    with bug_planted("stopped-copy-counts"), pytest.raises(AssertionError):
        test_disturbances.test_a_bookie_that_returns_during_the_copying_gets_what_it_lacks()


def test_every_bug_is_planted_in_a_test() -> None:
    assert {*FINDING_SEEDS, "stopped-copy-counts"} == {*BUGS}
