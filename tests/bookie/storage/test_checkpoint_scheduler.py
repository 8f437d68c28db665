"""A checkpoint takes its time as long as nobody waits for it, and hurries when somebody may."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
import trio.testing

from bookie.core.duty_cycle import BACKGROUND, FOREGROUND, DutyCycle, checkpoint_duty_cycle
from bookie.storage import checkpoint
from bookie.storage.options import StorageOptions
from tests.bookie.storage.simulated_storage import SimulatedStorage


@pytest.mark.parametrize(
    ("filled", "lasts_s", "leisure_s", "pace"),
    [
        (0.0, 0.0, 10.0, BACKGROUND),
        (0.12, 9.9, 10.0, BACKGROUND),
        (0.13, 0.0, 10.0, FOREGROUND),
        (1.5, 0.0, 10.0, FOREGROUND),
        (0.0, 10.0, 10.0, FOREGROUND),
        (0.0, 0.0, 0.0, FOREGROUND),
    ],
)
def test_it_is_leisurely_until_memory_fills_or_the_time_is_over(
    filled: float, lasts_s: float, leisure_s: float, pace: DutyCycle
) -> None:
    assert checkpoint_duty_cycle(filled, lasts_s, leisure_s) == pace


def test_a_pace_leaves_the_loop_to_others_for_its_part() -> None:
    assert BACKGROUND.rest_s / (BACKGROUND.work_s + BACKGROUND.rest_s) > 0.8
    assert FOREGROUND.rest_s / (FOREGROUND.work_s + FOREGROUND.rest_s) < 0.2


OPTIONS = StorageOptions(write_cache_bytes=1 << 20, checkpoint_interval_s=1)


def watch_paces(
    monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[int], None] = lambda _: None
) -> list[DutyCycle]:
    """Counts all steps from now on; `meanwhile` is called with their number."""
    paces: list[DutyCycle] = []

    async def yield_to_tasks(pace: DutyCycle = FOREGROUND) -> None:
        paces.append(pace)
        meanwhile(len(paces))
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(checkpoint, "yield_to_tasks", yield_to_tasks)
    return paces


async def test_one_at_its_time_is_leisurely_and_hurries_when_adds_come(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    simulated = SimulatedStorage(options=OPTIONS)

    def add_at_20(steps: int) -> None:
        if steps == 20:
            for i in range(300):
                simulated.add(1, i, bytes(1000))

    async with simulated.running():
        for ledger_id in range(10, 3000):
            simulated.add(ledger_id, 0)
        await simulated.settle()
        paces = watch_paces(monkeypatch, add_at_20)
        await simulated.storage.directories[0].task.made()
        assert paces[:20] == [BACKGROUND] * 20
        assert set(paces[20:]) == {FOREGROUND}


async def test_one_that_is_waited_for_is_brisk(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        for ledger_id in range(100):
            simulated.add(ledger_id, 0)
        await simulated.settle()
        paces = watch_paces(monkeypatch)
        await simulated.storage.checkpoint()
        assert set(paces) == {FOREGROUND}
