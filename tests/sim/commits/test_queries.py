"""Queries that share the id of a sink, killed and with failing metadata."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stream.core import sink_order
from stream.core.sink_owner import SinkOwner
from tests.sim.commits.queries import run_world
from tests.sim.model import Violation

BATCHES = 25


@pytest.mark.parametrize("seed", range(4))
def test_one_query_writes_and_no_run_loses_rows_to_another(seed: int) -> None:
    counts = run_world(seed, BATCHES)
    assert counts["committed"] >= BATCHES
    assert counts["other query"] > 0
    assert counts["kills"] > 0


def _any_query_is_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_order, "_check_owner", lambda *_: None)


def _runs_are_not_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SinkOwner, "last_batch_of", lambda *_: None)


@pytest.mark.parametrize("plant", [_any_query_is_the_owner, _runs_are_not_noted])
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in range(20):
        try:
            run_world(seed, BATCHES)
        except Violation:
            return
    pytest.fail("no seed notices it")
