"""Seeds of the simulator: a few with every change; `python -m tests.sim --seeds N` runs more."""

from __future__ import annotations

import pytest

from tests.effort import seeds
from tests.sim.run import run_seed


# Those of CI meet every kind of fault together.
@pytest.mark.parametrize("seed", seeds(ci=(0, 10, 24, 27), night=60))
def test_nothing_promised_is_broken(seed: int) -> None:
    outcome = run_seed(seed)
    assert outcome.counts["copies checked"] > 0
    assert outcome.counts["entries read"] > 0
