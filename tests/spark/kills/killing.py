"""Exactly once, shown: pipelines stream -> Spark -> stream are killed again and again, and in the
end the output is the input: `python -m tests.spark.kills.killing --kills 2000 --seed 7`.

Real processes, real signals: tasks, sources, sinks, daemons, executors, JVMs, drivers and bookies,
at named points and at any time. docs/testing.md says how to read a failure.
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
from tests.spark.kills.injection import Stage, Tally, Tormentor, Unexplained, explain
from tests.spark.kills.pipeline import TWO_HOSTS
from tests.spark.kills.report import Deed, random_kill, table
from tests.spark.kills.scenario import Scene
from tests.spark.kills.slow_tasks import Slower
from tests.spark.kills.spark_processes import send, victims
from tests.spark.streams import connected
from tests.system.cluster import StandaloneCluster

KILLS_PER_WORLD = 200
_LOCAL = "local[2,2]"
_CLUSTER_SHARE = 0.12
"""Of the kills: how many on executors of their own, with speculation."""
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
    Deed("driver's JVM", "any time", "kill"),
    Deed("driver's Python program", "any time", "kill"),
    Deed("driver", "any time", "frozen, goes on beside the next"),
)
_EXECUTOR = random_kill("executor")
_BOOKIE = Deed("bookie", "any time", "kill")
_DRIVERS = (_JVM, _PYTHON, _FROZEN)
_FREEZE_S = (1.0, 5.0)
_THAWED_S = 8.0
_BOOKIES = 3
_COPIES, _COPIES_PATIENCE_S = 3, 60.0
"""Of slow tasks, begun by Spark in each world; how long they are waited for after the last kill."""
_TOLD_EVERY = 20
"""Kills; a run of 200 takes ten minutes and more."""
_LAST_KILLS = 6
"""Of the local stage: during them the driver with executors starts."""


def _kills(deeds: Mapping[Deed, int]) -> int:
    return sum(number for deed, number in list(deeds.items()) if deed.is_kill)


@dataclass(slots=True)
class Done:
    """What was done, and what was looked at in the end."""

    deeds: collections.Counter[Deed] = field(default_factory=collections.Counter)
    counts: collections.Counter[str] = field(default_factory=collections.Counter)

    def add(self, other: Done | Tally) -> None:
        self.deeds.update(other.deeds)
        self.counts.update(other.counts)

    def report(self) -> list[str]:
        """Lines: who died when, then how often what happened."""
        counted = [f"{number:10,} {what}" for what, number in sorted(self.counts.items())]
        return [*table(self.deeds), *counted]


class World:
    """One cluster, its pipelines, and one driver after the other."""

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
        self._done = Done()
        self._told = 0

    def run(self) -> Done:
        """What was done. Raises Wrong, Unexplained, DriverDied."""
        self._directory.mkdir(parents=True)
        (self._directory / "events").mkdir()
        cluster = self._cluster
        try:
            cluster.start()
            with connected(cluster.uri) as streams:
                scene = Scene(streams, self._directory, str(self._seed))
                scene.start()
                try:
                    self._torment(scene)
                finally:
                    self._end_all()
                self._done.counts.update(scene.check())
                self._done.counts.update(scene.check_ledgers())
                self._done.counts.update(self._speculated())
        finally:
            cluster.stop()
        return self._done

    def _speculated(self) -> dict[str, int]:
        """From the event log of the driver with executors. Raises NotTried."""
        started, won = speculative_tasks(self._directory / "events")
        if not started:
            raise NotTried("no speculative task was started: nothing is shown about them")
        return {"speculative tasks started": started, "speculative tasks that were first": won}

    def _torment(self, scene: Scene) -> None:
        on_executors = max(1, round(_CLUSTER_SHARE * self._kills))
        driver = self._new_driver(scene, is_local=True)
        driver.wait_ready()
        former, driver = self._run_stage(scene, self._kills - on_executors, driver, is_local=True)
        driver.wait_ready()
        self._unjudge(former)
        former.kill()
        driver, _ = self._run_stage(scene, on_executors, driver, is_local=False)
        scene.stop()
        driver.finish()
        driver.wait_end()
        self._raise_errors()

    # Stages

    def _run_stage(
        self, scene: Scene, kills: int, driver: Driver, *, is_local: bool
    ) -> tuple[Driver, Driver]:
        """The driver that has the queries in the end, and the one that has been started for the
        stage that follows a local one."""
        following = driver
        tally = Tally(kills, self._directory / "journal")
        stage = Stage(driver, tally, tasks_only=not is_local)
        self._hand_over(stage, driver, scene)
        tormentors = [
            Tormentor(stage, name, orders, random.Random(f"{self._seed}/{is_local}/{name}"))
            for name, orders in scene.orders.items()
        ]
        for tormentor in tormentors:
            tormentor.start()
        slower = None if is_local else self._slower(stage)
        deaths = self._deaths(kills) if is_local else [_EXECUTOR] * max(1, kills // 12)
        for number, death in enumerate(deaths):
            spare = self._new_driver(scene, is_local=True) if death in _DRIVERS else None
            self._wait(tormentors, tally, kills * (len(deaths) - number) // (len(deaths) + 1))
            if spare is not None:
                spare.wait_ready()
                self._die(death, stage.driver, tally)
                tally.count_deed(death, f"{stage.driver.directory.name}, {death.victim}")
                self._hand_over(stage, spare, scene)
            elif self._kill_one(death, stage.driver):
                tally.count_deed(death, death.victim)
        if is_local:
            self._wait(tormentors, tally, _LAST_KILLS)
            following = self._new_driver(scene, is_local=False)
        self._wait(tormentors, tally, 0)
        for tormentor in tormentors:
            tormentor.join()
        if slower is not None:
            slower.end(_COPIES_PATIENCE_S)
        self._done.add(tally)
        self._raise_errors()
        return stage.driver, following

    def _slower(self, stage: Stage) -> Slower:
        events = self._directory / "events"
        chance = random.Random(f"{self._seed}/slower")
        slower = Slower(stage, lambda: speculative_tasks(events)[0], _COPIES, chance)
        slower.start()
        return slower

    def _deaths(self, kills: int) -> list[Deed]:
        deaths = [_JVM] * max(1, kills // 50) + [_PYTHON] * max(1, kills // 50)
        deaths += [_FROZEN] * max(1, kills // 50) + [_BOOKIE] * max(1, kills // 50)
        self._chance.shuffle(deaths)
        return deaths

    def _kill_one(self, death: Deed, driver: Driver) -> bool:
        """Whether there was one. Who started it starts another."""
        if death is _BOOKIE:
            number = self._chance.randint(1, _BOOKIES)
            return send(self._cluster.pid_of(number), signal.SIGKILL)
        executors = victims(driver.jvm, "executor")
        return bool(executors) and send(self._chance.choice(executors), signal.SIGKILL)

    def _wait(self, tormentors: list[Tormentor], tally: Tally, until_left: int) -> None:
        while True:
            self._errors += [t.error for t in tormentors if t.error is not None]
            self._raise_errors()
            self._tell(_kills(self._done.deeds) + _kills(tally.deeds))
            if tally.kills_left <= until_left:
                return
            time.sleep(0.05)

    def _tell(self, kills: int) -> None:
        if kills >= self._told + _TOLD_EVERY:
            self._told = kills
            clock = time.strftime("%H:%M:%S")
            print(f"{clock} seed {self._seed}: {kills} of {self._kills} kills", file=sys.stderr)

    def _raise_errors(self) -> None:
        if self._errors:
            raise self._errors[0]

    # Drivers

    def _new_driver(self, scene: Scene, *, is_local: bool) -> Driver:
        settings = _SETTINGS
        if not is_local:
            settings = {**_SETTINGS, **_SPECULATION, **event_log(self._directory / "events")}
        directory = self._directory / f"driver-{len(self._drivers)}"
        master = _LOCAL if is_local else TWO_HOSTS
        driver = Driver(directory, master, settings, scene.warm_up)
        self._drivers.append(driver)
        return driver

    def _hand_over(self, stage: Stage, driver: Driver, scene: Scene) -> None:
        self._judged.add(driver.pid)
        driver.take(scene.specs)
        stage.driver = driver
        stage.tally.count("drivers that had the queries", driver.directory.name)

        def was_shared(after_s: float) -> bool:
            return any(one is not driver and one.ran_after(after_s) for one in self._drivers)

        def listen() -> None:
            try:
                if not explain(driver.events.get, stage.tally, was_shared):
                    raise Unexplained(f"{driver.directory.name} ended, and nobody had killed it")
            except Unexplained as error:
                if driver.pid in self._judged:
                    self._errors.append(error)

        self._start(listen)

    def _start(self, function: object) -> None:
        thread = threading.Thread(target=function, daemon=True)  # type: ignore[arg-type]
        thread.start()
        self._helpers.append(thread)

    def _unjudge(self, driver: Driver) -> None:
        """What it says from now on is said in its death."""
        self._judged.discard(driver.pid)

    def _die(self, death: Deed, driver: Driver, tally: Tally) -> None:
        if death is _FROZEN:
            # What it says when it goes on is judged as before.
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


class NotTried(Exception):
    """The world held, but what it must stand was not done to it."""


class Found(Exception):
    """What a seed found, and the command that runs it again."""


def run_worlds(kills: int, seed: int, directory: Path) -> Done:
    """Worlds with so many kills in all, in new directories under this one; the directory of one
    that failed stays. Raises Found."""
    totals = Done()
    while kills > 0:
        world = directory / f"seed-{seed}"
        in_this = min(kills, KILLS_PER_WORLD)
        try:
            totals.add(World(world, seed, in_this).run())
        except Exception as error:
            raise Found(
                f"seed {seed} FAILED: {type(error).__name__}: {error}\nlogs: {world}\n"
                f"again: python -m tests.spark.kills.killing --seed {seed} --kills {in_this}"
            ) from error
        shutil.rmtree(world)
        kills, seed = kills - in_this, seed + 1
    return totals


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.kills.killing")
    parser.add_argument("--kills", type=int, default=200, help="processes killed (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="of the first world (default 0)")
    parser.add_argument("--dir", type=Path, help="where worlds are made; default: a new one")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # with all it started
    begun = time.monotonic()
    directory = options.dir or Path(tempfile.mkdtemp(prefix="ledgerstream-killing-"))
    try:
        done = run_worlds(options.kills, options.seed, directory)
    except Found as found:
        print(found)
        return 1
    print("\n".join(done.report()))
    print(
        f"seed {options.seed}: {_kills(done.deeds)} kills in {time.monotonic() - begun:.0f} s: "
        "output is input, 0 records lost, 0 doubled"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
