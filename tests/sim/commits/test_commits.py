"""Commits beside writers, with faults; `python -m tests.sim.commits.run --commits N` runs more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ledger.metastore.base import Put
from stream.core.sinks import SinkMetadata
from stream.core.takeover import Takeover
from stream.sinks.prepared import UnclosedLedgers
from stream.writing.batch_sender import BatchSender
from tests.sim.commits.run import run_world

COMMITS = 15


@pytest.mark.parametrize("seed", [0, 3, 5])
def test_each_batch_is_there_once_and_whole_and_writers_lose_nothing(seed: int) -> None:
    counts = run_world(seed, COMMITS, is_merging=False)
    assert counts["committed"] > 0
    assert counts["kills"] > 0
    assert counts["small results"] > 0


def _late_batches_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SinkMetadata, "is_committed", lambda *_: False)


def _sequences_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def renumber(self: BatchSender, *_: int) -> int:
        return self.ready[-1].first_sequence + self.ready[-1].count if self.ready else 0

    monkeypatch.setattr(BatchSender, "renumber", renumber)


def _ends_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Takeover, "_note", lambda *_: None)


def _commits_leave_ledgers_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async def changes(_: UnclosedLedgers) -> list[Put]:
        return []

    monkeypatch.setattr(UnclosedLedgers, "changes", changes)


@pytest.mark.parametrize(
    ("plant", "seed"),
    [
        (_late_batches_are_new, 0),
        (_sequences_stay, 1),
        (_ends_are_forgotten, 4),
        (_commits_leave_ledgers_open, 0),
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`seed` found it when this was written: it saves time to begin with that."""
    plant(monkeypatch)
    for number in range(20):
        try:
            run_world((seed + number) % 20, COMMITS, is_merging=False)
        except Exception:  # noqa: BLE001 - whatever it is, it is what was found
            return
    pytest.fail("no seed notices it")
