"""Twenty seeds of torment with every change; `python -m tests.sim --seeds N` runs more."""

from __future__ import annotations

import pytest

from tests.sim.run import run_seed


@pytest.mark.parametrize("seed", range(20))
def test_nothing_promised_is_broken(seed: int) -> None:
    outcome = run_seed(seed)
    assert outcome.counts["copies checked"] > 0
    assert outcome.counts["entries read"] > 0
