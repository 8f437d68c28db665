"""Copies that bookies missed are marked, whatever was killed; what is well is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from bookie.testing import NetworkOptions, SimCluster, simulate
from ledger.core.append import AppendCore
from ledger.missed.recovered import RecoveredLedgers
from ledger.writing.idle_replacement import IdleReplacement
from ledger.writing.trailing_acks import TrailingAcks
from tests.effort import seeds
from tests.sim.missed import run_missed
from tests.sim.model import Violation


@pytest.mark.parametrize("seed", seeds(ci=8, night=200))
def test_every_copy_that_is_missing_is_marked(seed: int) -> None:
    found = run_missed(seed)
    assert found.ledgers > 0


@pytest.mark.parametrize("seed", seeds(ci=4, night=60))
def test_a_minute_of_auto_recovery_completes_every_copy_without_a_search(seed: int) -> None:
    found = run_missed(seed, heals=True)
    assert (found.missing, found.marked) == (0, 0)


def test_these_runs_miss_copies_of_every_kind() -> None:
    """Otherwise they would prove nothing."""
    runs = [run_missed(seed) for seed in range(8)]
    assert sum(found.missing for found in runs) >= 40
    assert min(found.recovered for found in runs) >= 1
    assert sum(found.open_ledgers for found in runs) >= 10
    assert sum(found.fragments - found.ledgers for found in runs) >= 40
    # Marks of copies that are there cost a question each: bookies that stood still may have them.
    assert sum(found.marked for found in runs) <= 2 * sum(found.missing for found in runs)


def nothing(*_arguments: object, **_named: object) -> None:
    """Does nothing."""


def lacks_nothing(*_arguments: object) -> bool:
    return False


FORGETS: dict[str, tuple[type, str, Callable[..., Any]]] = {
    "at the close": (TrailingAcks, "__exit__", nothing),
    "at an ensemble change": (AppendCore, "lacks", lacks_nothing),
    "after a recovery": (RecoveredLedgers, "check", nothing),
    "while idle": (IdleReplacement, "add", nothing),
}


@pytest.mark.parametrize("bug", FORGETS)
def test_a_writer_that_forgets_to_mark_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*FORGETS[bug])
    for seed in range(60):
        try:
            run_missed(seed)
        except Violation:
            return
    pytest.fail(f"60 seeds did not notice a writer that forgets {bug}")


async def write_and_close(cluster: SimCluster) -> None:
    """Ledgers of which the ack quorum is mostly ahead of the slowest bookie, on a healthy
    cluster."""
    cluster.network.options = NetworkOptions(latency_max_s=0.02)
    cluster.disk("bookie-1").options.slow_factor = 20.0
    trailing = 0
    async with cluster.client() as client:

        async def write(ensemble: int, deferred_sync: bool) -> None:
            nonlocal trailing
            for _ in range(10):
                async with client.create_ledger(
                    ensemble_size=ensemble,
                    write_quorum=3,
                    ack_quorum=1 + deferred_sync,
                    deferred_sync=deferred_sync,
                ) as writer:
                    await writer.append_many([b"%d" % number for number in range(25)])
                trailing = max(trailing, client.missed.doubts)

        async with trio.open_nursery() as nursery:
            for ensemble, deferred_sync in ((3, False), (4, False), (3, True)):
                nursery.start_soon(write, ensemble, deferred_sync)
        assert trailing > 0, "no ack trails: this proves nothing"
        await trio.sleep(20)
        assert (client.missed.doubts, client.missed.recorded) == (0, 0)
        assert await client.underreplication.list() == []


def test_without_faults_nothing_is_marked_although_acks_trail() -> None:
    for seed in range(5):
        simulate(write_and_close, seed, bookies=4)


def test_a_writer_that_marks_before_the_ack_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    close = TrailingAcks.__exit__

    def impatient(trailing: TrailingAcks, *error: Any) -> None:
        close(trailing, *error)
        trailing.give_up()

    monkeypatch.setattr(TrailingAcks, "__exit__", impatient)
    with pytest.raises(AssertionError):
        simulate(write_and_close, 0, bookies=4)
