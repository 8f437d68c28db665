"""Tests exactly-once: kills pipelines stream -> Spark -> stream, and compares output with input.

`python -m tests.spark.kills.killing --kills 2000 --seed 7`. Kills real processes by real signals:
tasks,
sources, sinks, daemons, executors, JVMs, drivers and bookies, at named points and at random times.
docs/testing.md explains how to read a failure.
"""

from __future__ import annotations

import argparse
import collections
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.spark.hosts import event_log, speculative_tasks
from tests.spark.kills.driver import Driver
from tests.spark.kills.injection import KillInjector, KillPhase, Tally, UnexplainedError, explain
from tests.spark.kills.pipeline import TWO_HOSTS
from tests.spark.kills.report import Fault, random_kill, table
from tests.spark.kills.scenario import Scenario
from tests.spark.kills.slow_tasks import Slower
from tests.spark.kills.spark_processes import find_processes, send
from tests.spark.streams import connected
from tests.system.cluster import StandaloneCluster

KILLS_PER_WORLD = 200
_LOCAL = "local[2,2]"
_CLUSTER_SHARE = 0.12
"""The fraction of kills with executors in processes of their own, with speculation."""
_SETTINGS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
    "spark.sql.streaming.pollingDelay": "100ms",
    "spark.sql.streaming.stopTimeout": "120s",
    "spark.python.task.killTimeout": "500ms",
}
_SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "300ms",
    "spark.executor.memory": "512m",
    "spark.task.maxFailures": "2",
    "spark.excludeOnFailure.enabled": "false",
}
_JVM, _PYTHON, _FROZEN = (
    Fault("driver's JVM", "any time", "kill"),
    Fault("driver's Python program", "any time", "kill"),
    Fault("driver", "any time", "frozen, continues beside the next"),
)
_EXECUTOR = random_kill("executor")
_BOOKIE = Fault("bookie", "any time", "kill")
_DRIVERS = (_JVM, _PYTHON, _FROZEN)
_FREEZE_S = (1.0, 5.0)
_THAWED_S = 8.0
_BOOKIES = 3
_COPIES, _COPIES_PATIENCE_S = 3, 60.0
"""Copies of slow tasks that Spark must start in each world, and how long to wait for them at the
end."""
_REPORT_EVERY = 20
"""Kills between two progress reports; a run of 200 takes more than ten minutes."""
_LAST_KILLS = 6
"""Kills at the end of the local phase, during which the driver with executors starts."""


def _kills(faults: Mapping[Fault, int]) -> int:
    return sum(number for fault, number in list(faults.items()) if fault.is_kill)


@dataclass(slots=True)
class KillReport:
    """The injected faults, and the counts of the checks at the end."""

    faults: collections.Counter[Fault] = field(default_factory=collections.Counter)
    counts: collections.Counter[str] = field(default_factory=collections.Counter)

    def add(self, other: KillReport | Tally) -> None:
        self.faults.update(other.faults)
        self.counts.update(other.counts)

    def report(self) -> list[str]:
        """Returns lines: the table of kills, then the counts."""
        counted = [f"{number:10,} {what}" for what, number in sorted(self.counts.items())]
        return [*table(self.faults), *counted]


class World:
    """A cluster with its pipelines, and a sequence of drivers."""

    def __init__(self, directory: Path, seed: int, kills: int) -> None:
        self._directory = directory
        self._seed = seed
        self._kills = kills
        self._chance = random.Random(f"{seed}/drivers")
        self._cluster = StandaloneCluster(directory / "cluster", None, ())
        self._drivers: list[Driver] = []
        self._judged: set[int] = set()
        self._errors: list[Exception] = []
        self._helpers: list[threading.Thread] = []
        self._done = KillReport()
        self._reported = 0

    def run(self) -> KillReport:
        """Runs the world; returns its report. Raises the error that was found."""
        self._directory.mkdir(parents=True)
        (self._directory / "events").mkdir()
        cluster = self._cluster
        try:
            cluster.start()
            with connected(cluster.uri) as streams:
                scenario = Scenario(streams, self._directory, str(self._seed))
                scenario.start()
                try:
                    self._inject_kills(scenario)
                finally:
                    self._end_all()
                self._done.counts.update(scenario.check())
                self._done.counts.update(scenario.check_ledgers())
                self._done.counts.update(self._speculated())
        finally:
            cluster.stop()
        return self._done

    def _speculated(self) -> dict[str, int]:
        """Counts speculative tasks in the event log of the driver with executors.

        Raises NotExercised.
        """
        started, won = speculative_tasks(self._directory / "events")
        if not started:
            raise NotExercised("no speculative task was started: they were not tested")
        return {"speculative tasks started": started, "speculative tasks that were first": won}

    def _inject_kills(self, scenario: Scenario) -> None:
        on_executors = max(1, round(_CLUSTER_SHARE * self._kills))
        driver = self._new_driver(scenario, is_local=True)
        driver.wait_ready()
        former, driver = self._run_stage(
            scenario, self._kills - on_executors, driver, is_local=True
        )
        driver.wait_ready()
        self._unjudge(former)
        former.kill()
        driver, _ = self._run_stage(scenario, on_executors, driver, is_local=False)
        scenario.stop()
        driver.finish()
        driver.wait_end()
        self._raise_errors()

    # Phases

    def _run_stage(
        self, scenario: Scenario, kills: int, driver: Driver, *, is_local: bool
    ) -> tuple[Driver, Driver]:
        """Runs a phase; returns its last driver, and the driver of the next phase.

        The latter is started during a local phase.
        """
        following = driver
        tally = Tally(kills, self._directory / "journal")
        phase = KillPhase(driver, tally, tasks_only=not is_local)
        self._hand_over(phase, driver, scenario)
        injectors = [
            KillInjector(phase, name, orders, random.Random(f"{self._seed}/{is_local}/{name}"))
            for name, orders in scenario.orders.items()
        ]
        for injector in injectors:
            injector.start()
        slower = None if is_local else self._slower(phase)
        deaths = self._deaths(kills) if is_local else [_EXECUTOR] * max(1, kills // 12)
        for number, death in enumerate(deaths):
            spare = self._new_driver(scenario, is_local=True) if death in _DRIVERS else None
            self._wait(injectors, tally, kills * (len(deaths) - number) // (len(deaths) + 1))
            if spare is not None:
                spare.wait_ready()
                self._die(death, phase.driver, tally)
                tally.count_fault(death, f"{phase.driver.directory.name}, {death.target}")
                self._hand_over(phase, spare, scenario)
            elif self._kill_one(death, phase.driver):
                tally.count_fault(death, death.target)
        if is_local:
            self._wait(injectors, tally, _LAST_KILLS)
            following = self._new_driver(scenario, is_local=False)
        self._wait(injectors, tally, 0)
        for injector in injectors:
            injector.join()
        if slower is not None:
            slower.end(_COPIES_PATIENCE_S)
        self._done.add(tally)
        self._raise_errors()
        return phase.driver, following

    def _slower(self, phase: KillPhase) -> Slower:
        events = self._directory / "events"
        chance = random.Random(f"{self._seed}/slower")
        slower = Slower(phase, lambda: speculative_tasks(events)[0], _COPIES, chance)
        slower.start()
        return slower

    def _deaths(self, kills: int) -> list[Fault]:
        deaths = [_JVM] * max(1, kills // 50) + [_PYTHON] * max(1, kills // 50)
        deaths += [_FROZEN] * max(1, kills // 50) + [_BOOKIE] * max(1, kills // 50)
        self._chance.shuffle(deaths)
        return deaths

    def _kill_one(self, death: Fault, driver: Driver) -> bool:
        """Kills a bookie or an executor; returns whether there was one. It is started again."""
        if death is _BOOKIE:
            number = self._chance.randint(1, _BOOKIES)
            return send(self._cluster.pid_of(number), signal.SIGKILL)
        executors = find_processes(driver.jvm, "executor")
        return bool(executors) and send(self._chance.choice(executors), signal.SIGKILL)

    def _wait(self, injectors: list[KillInjector], tally: Tally, until_left: int) -> None:
        while True:
            self._errors += [t.error for t in injectors if t.error is not None]
            self._raise_errors()
            self._report_progress(_kills(self._done.faults) + _kills(tally.faults))
            if tally.kills_left <= until_left:
                return
            time.sleep(0.05)

    def _report_progress(self, kills: int) -> None:
        if kills >= self._reported + _REPORT_EVERY:
            self._reported = kills
            clock = time.strftime("%H:%M:%S")
            print(f"{clock} seed {self._seed}: {kills} of {self._kills} kills", file=sys.stderr)

    def _raise_errors(self) -> None:
        if self._errors:
            raise self._errors[0]

    # Drivers

    def _new_driver(self, scenario: Scenario, *, is_local: bool) -> Driver:
        settings = _SETTINGS
        if not is_local:
            settings = {**_SETTINGS, **_SPECULATION, **event_log(self._directory / "events")}
        directory = self._directory / f"driver-{len(self._drivers)}"
        master = _LOCAL if is_local else TWO_HOSTS
        driver = Driver(directory, master, settings, scenario.warm_up)
        self._drivers.append(driver)
        return driver

    def _hand_over(self, phase: KillPhase, driver: Driver, scenario: Scenario) -> None:
        self._judged.add(driver.pid)
        driver.take(scenario.specs)
        phase.driver = driver
        phase.tally.count("drivers that had the queries", driver.directory.name)

        def was_shared(after_s: float) -> bool:
            return any(one is not driver and one.ran_after(after_s) for one in self._drivers)

        def listen() -> None:
            try:
                if not explain(driver.events.get, phase.tally, was_shared):
                    raise UnexplainedError(f"{driver.directory.name} ended without being killed")
            except UnexplainedError as error:
                if driver.pid in self._judged:
                    self._errors.append(error)

        self._start(listen)

    def _start(self, function: object) -> None:
        thread = threading.Thread(target=function, daemon=True)  # type: ignore[arg-type]
        thread.start()
        self._helpers.append(thread)

    def _unjudge(self, driver: Driver) -> None:
        """Ignores the errors of a driver that is being killed."""
        self._judged.discard(driver.pid)

    def _die(self, death: Fault, driver: Driver, tally: Tally) -> None:
        if death is _FROZEN:
            # Its errors after it continues are judged as before.
            driver.freeze()
            tally.note_stopped()
            frozen_s = self._chance.uniform(*_FREEZE_S)

            def thaw() -> None:
                time.sleep(frozen_s)
                driver.thaw()
                tally.note_woken()
                time.sleep(_THAWED_S)
                self._unjudge(driver)
                driver.kill()

            self._start(thaw)
            return
        self._unjudge(driver)
        if death is _JVM:
            driver.kill_jvm()
        else:
            driver.kill_python()

    def _end_all(self) -> None:
        for driver in self._drivers:
            self._unjudge(driver)
            driver.kill()


class NotExercised(Exception):
    """The checks succeeded, but a kind of fault was not injected."""


class FailedSeed(Exception):
    """A seed failed; the text has the error and the command that repeats it."""


def run_worlds(kills: int, seed: int, directory: Path) -> KillReport:
    """Runs worlds with this number of kills in total, in new directories under this one.

    The directory of a world that failed is kept. Raises FailedSeed.
    """
    totals = KillReport()
    while kills > 0:
        world = directory / f"seed-{seed}"
        in_this = min(kills, KILLS_PER_WORLD)
        try:
            totals.add(World(world, seed, in_this).run())
        except Exception as error:
            raise FailedSeed(
                f"seed {seed} FAILED: {type(error).__name__}: {error}\nlogs: {world}\n"
                f"again: python -m tests.spark.kills.killing --seed {seed} --kills {in_this}"
            ) from error
        shutil.rmtree(world)
        kills, seed = kills - in_this, seed + 1
    return totals


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.kills.killing")
    parser.add_argument("--kills", type=int, default=200, help="processes killed (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first world (default 0)")
    parser.add_argument("--dir", type=Path, help="directory for the worlds; default: a new one")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # with all it started
    begun = time.monotonic()
    directory = options.dir or Path(tempfile.mkdtemp(prefix="ledgerstream-killing-"))
    try:
        done = run_worlds(options.kills, options.seed, directory)
    except FailedSeed as found:
        print(found)
        return 1
    print("\n".join(done.report()))
    print(
        f"seed {options.seed}: {_kills(done.faults)} kills in {time.monotonic() - begun:.0f} s: "
        "output is input, 0 records lost, 0 doubled"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
