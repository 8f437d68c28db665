"""Consumer groups under faults, and proof that a broken one would be noticed."""

from __future__ import annotations

import pytest

from tests.effort import seeds
from tests.sim.groups.bugs import GROUP_BUGS, group_bug_planted
from tests.sim.groups.run import run_group_seed
from tests.sim.model import Violation

SEEDS = seeds(ci=2, night=30)
# A seed that found the bug; any of the first 50 should do.
FINDING_SEEDS = {
    "commits-over-others": 1,
    "epoch-kept": 0,
    "handed-out-is-handled": 0,
    "no-late-farewell": 6,
    "takes-from-the-living": 1,
}


@pytest.mark.parametrize("seed", SEEDS)
def test_all_is_handled_and_nobody_commits_for_another(seed: int) -> None:
    counts = run_group_seed(seed).counts
    assert counts["records there"] > 0
    assert counts["changes of cursors"] > 0


def test_a_seed_gives_the_same_run() -> None:
    assert run_group_seed(1, seconds=5) == run_group_seed(1, seconds=5)
    assert run_group_seed(1, seconds=5) != run_group_seed(2, seconds=5)


@pytest.mark.slow
@pytest.mark.parametrize("bug", sorted(GROUP_BUGS))
def test_a_planted_bug_is_found(bug: str) -> None:
    with group_bug_planted(bug):
        for seed in (FINDING_SEEDS[bug], *range(50)):
            try:
                run_group_seed(seed)
            except Violation:
                return
    pytest.fail(f"50 seeds do not notice {bug}")
