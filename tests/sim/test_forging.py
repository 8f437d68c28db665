"""Nobody's acknowledged entry changes while an attacker sends other payloads for it."""

from __future__ import annotations

import pytest

from bookie.core.repeated_adds import Presence
from bookie.storage import history
from tests.effort import seeds
from tests.sim.forging import REFUSED_MIN, run_forging
from tests.sim.model import Violation


@pytest.mark.parametrize("seed", seeds(ci=3, night=100))
def test_forged_adds_are_refused_under_faults(seed: int) -> None:
    assert run_forging(seed).refused >= REFUSED_MIN


def test_a_bookie_that_takes_them_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(*_: object) -> Presence:
        return Presence.ABSENT

    monkeypatch.setattr(history, "compare", hasty)
    with pytest.raises(Violation):
        run_forging(0)
