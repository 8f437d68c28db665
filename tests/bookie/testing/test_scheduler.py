"""Time, order and the watchdog of the simulator."""

from __future__ import annotations

import random
from functools import partial

import pytest
import trio
from trio._core import _run as trio_run

from bookie.testing import SimCluster, Simulation, SimulationStuck, run_simulated, simulate
from stream.namespace import Namespace


async def _race(simulation: Simulation) -> str:
    async def walker(name: str) -> None:
        for step in range(20):
            await trio.sleep(0.001 if step % 2 else 0.002)
            simulation.trace(name, step)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(walker, f"walker-{number}")
    return simulation.trace_hash()


def test_same_seed_same_trace_other_seed_other_trace() -> None:
    first = run_simulated(_race, 1)
    random.Random(5).random()
    assert run_simulated(_race, 1) == first
    assert run_simulated(_race, 2) != first


def test_trio_is_left_as_it_was() -> None:
    state = trio_run._r.getstate()
    switch = trio_run._ALLOW_DETERMINISTIC_SCHEDULING
    run_simulated(_race, 1)
    assert trio_run._r.getstate() == state
    assert switch == trio_run._ALLOW_DETERMINISTIC_SCHEDULING


def test_time_jumps_over_idle_years() -> None:
    async def sleeper(simulation: Simulation) -> float:
        await trio.sleep_until(1e8)
        return simulation.now_s

    assert run_simulated(sleeper, 0, time_limit_s=1e9) == 1e8


def test_events_run_in_order_of_time_then_of_asking() -> None:
    async def main(simulation: Simulation) -> list[tuple[str, float]]:
        seen: list[tuple[str, float]] = []

        def see(name: str) -> None:
            seen.append((name, simulation.now_s))

        for name, delay_s in (("late", 2.0), ("first", 1.0), ("second", 1.0)):
            simulation.call_later(delay_s, partial(see, name))
        await trio.sleep(1.5)
        seen.append(("task", trio.current_time()))
        await trio.sleep(1)
        return seen

    assert run_simulated(main, 0) == [("first", 1), ("second", 1), ("task", 1.5), ("late", 2)]


def test_an_event_can_wake_a_task() -> None:
    async def main(simulation: Simulation) -> float:
        event = trio.Event()
        simulation.call_later(3.0, event.set)
        await event.wait()
        return trio.current_time()

    assert run_simulated(main, 0) == 3.0


def test_deadlock_is_reported_with_the_waiting_tasks() -> None:
    async def waits_for_nothing() -> None:
        await trio.Event().wait()

    async def main(simulation: Simulation) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waits_for_nothing)

    with pytest.raises(SimulationStuck, match="nothing can happen any more") as caught:
        run_simulated(main, 0)
    message = str(caught.value)
    assert "waits_for_nothing (test_scheduler.py:" in message
    assert "waits for Event.wait" in message
    assert "simulation watchdog" in caught.value.tasks


def test_a_stuck_run_is_explained_in_ten_lines() -> None:
    async def waits_for_nothing() -> None:
        await trio.Event().wait()

    async def main(cluster: SimCluster) -> None:
        async with trio.open_nursery() as nursery, cluster.client() as client:
            for _ in range(20):
                nursery.start_soon(waits_for_nothing)
            namespace = Namespace(client, "n")
            await namespace.ensure()
            await namespace.create_stream("s")
            async with namespace.reader("s") as reader:
                await reader.__anext__()

    with pytest.raises(SimulationStuck, match="the time limit of 100 virtual seconds") as caught:
        simulate(main, time_limit_s=100)
    message = str(caught.value)
    assert len(message.splitlines()) <= 10
    assert "main (test_scheduler.py:" in message
    assert " more\n" in message
    assert "tasks of the cluster" in message


def test_running_past_the_time_limit_is_reported() -> None:
    async def main(simulation: Simulation) -> None:
        def again() -> None:
            simulation.call_later(1, again)

        again()
        await trio.sleep_forever()

    with pytest.raises(SimulationStuck, match=r"virtual second 10.*the time limit of 10 virtual"):
        run_simulated(main, 0, time_limit_s=10)


def test_spinning_without_time_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie.testing.scheduler.STEPS_WITHOUT_TIME_MAX", 1000)

    async def main(simulation: Simulation) -> None:
        while True:
            await trio.lowlevel.checkpoint()

    with pytest.raises(SimulationStuck, match=r"stuck at virtual second 0.*tasks spin"):
        run_simulated(main, 0)


def test_errors_of_the_world_and_of_events_end_the_run_as_they_are() -> None:
    async def raises(simulation: Simulation) -> None:
        raise KeyError("mine")

    async def fails_in_an_event(simulation: Simulation) -> None:
        simulation.call_later(1, lambda: simulation.fail(ValueError("seen")))
        await trio.sleep_forever()

    with pytest.raises(KeyError, match="mine"):
        run_simulated(raises, 0)
    with pytest.raises(ValueError, match="seen"):
        run_simulated(fails_in_an_event, 0)


def test_chance_differs_by_name_and_seed_only() -> None:
    async def draw(simulation: Simulation) -> tuple[float, float]:
        return simulation.chance("disk").random(), simulation.chance("network").random()

    first = run_simulated(draw, 1)
    assert first == run_simulated(draw, 1)
    assert first[0] != first[1]
    assert first != run_simulated(draw, 2)
