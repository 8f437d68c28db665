"""Producers under kills with every change; `python -m tests.sim.producers --kills N` runs more."""

from __future__ import annotations

import pytest

from bookie.testing.process import leaves_of
from stream.core.producers import ProducerLog, ProducerSet
from tests.effort import scaled, seeds
from tests.sim.model import Violation
from tests.sim.producers import run_world

KILLS = scaled(ci=20, night=50)


@pytest.mark.parametrize("seed", seeds(ci=1, night=15))
def test_no_record_is_there_twice_or_lost(seed: int) -> None:
    counts = run_world(seed, KILLS)
    assert counts["kills"] == KILLS
    assert counts["confirmed"] > 0
    assert counts["there already"] > 0


def _never_mixed(_mixture: ProducerSet, _producer_id: int) -> bool:
    return False


def _all_new(_log: ProducerLog, _sequence: int, _count: int = 1) -> int:
    return 0


def _first_failure() -> BaseException | None:
    for seed in range(10):
        try:
            run_world(seed, KILLS)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what was found
            return next(leaves_of(error))
    return None


@pytest.mark.parametrize(
    ("what", "method", "bug"),
    [(ProducerSet, "add", _never_mixed), (ProducerLog, "known", _all_new)],
)
def test_the_proof_notices_a_bug(
    what: type, method: str, bug: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(what, method, bug)
    assert isinstance(_first_failure(), (Violation, AssertionError))
