"""Exactly once, shown: pipelines stream -> Spark -> stream are killed again and again, and in the
end the output is the input: `python -m tests.spark.killing --kills 2000 --seed 7`.

Real processes, real signals: tasks, sources, sinks, daemons, executors, JVMs and drivers, at named
points and at any time. docs/testing.md says how to read a failure.
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
from pathlib import Path

from tests.spark.driver import Driver
from tests.spark.scene import Scene
from tests.spark.streams import connected
from tests.spark.torment import Stage, Tally, Tormentor, Unexplained, explain
from tests.system.cluster import StandaloneCluster

KILLS_PER_WORLD = 200
_LOCAL = "local[2,2]"
_SPECULATING = "local-cluster[2,1,1024]"
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
    # Executors are killed on purpose; their hosts are as good as before.
    "spark.excludeOnFailure.enabled": "false",
    "spark.deploy.maxExecutorRetries": "-1",
}
_FREEZE_S = (1.0, 5.0)
_THAWED_S = 8.0


class World:
    """One cluster, its pipelines, and one driver after the other."""

    def __init__(self, directory: Path, seed: int, kills: int) -> None:
        self._directory = directory
        self._seed = seed
        self._kills = kills
        self._chance = random.Random(f"{seed}/drivers")
        self._drivers: list[Driver] = []
        self._judged: set[int] = set()
        self._errors: list[Exception] = []
        self._helpers: list[threading.Thread] = []
        self.counts: collections.Counter[str] = collections.Counter()

    def run(self) -> collections.Counter[str]:
        """What was done. Raises Wrong, Unexplained, DriverDied."""
        self._directory.mkdir(parents=True)
        cluster = StandaloneCluster(self._directory / "cluster", None, ())
        try:
            cluster.start()
            with connected(cluster.uri) as streams:
                scene = Scene(streams, self._directory, str(self._seed))
                scene.start()
                try:
                    self._torment(scene)
                finally:
                    self._end_all()
                self.counts["records"] += scene.check()
                self.counts.update(scene.check_ledgers())
        finally:
            cluster.stop()
        return self.counts

    def _torment(self, scene: Scene) -> None:
        on_executors = max(1, round(_CLUSTER_SHARE * self._kills))
        driver = self._run_stage(scene, self._kills - on_executors, is_local=True)
        driver = self._run_stage(scene, on_executors, is_local=False, before=driver)
        scene.stop()
        driver.finish()
        driver.wait_end()
        self._raise_errors()

    # Stages

    def _run_stage(
        self, scene: Scene, kills: int, *, is_local: bool, before: Driver | None = None
    ) -> Driver:
        """Returns the driver that has the queries in the end."""
        driver = self._new_driver(scene, is_local=is_local)
        driver.wait_ready()
        if before is not None:
            self._unjudge(before)
            before.kill()
        tally = Tally(kills)
        stage = Stage(driver, tally, tasks_only=not is_local)
        self._hand_over(stage, driver, scene)
        tormentors = [
            Tormentor(stage, name, orders, random.Random(f"{self._seed}/{is_local}/{name}"))
            for name, orders in scene.orders.items()
        ]
        for tormentor in tormentors:
            tormentor.start()
        deaths = self._deaths(kills) if is_local else []
        for number, death in enumerate(deaths):
            spare = self._new_driver(scene, is_local=is_local)
            self._wait(tormentors, tally, kills * (len(deaths) - number) // (len(deaths) + 1))
            spare.wait_ready()
            self._die(death, stage.driver)
            tally.count(f"driver: {death}")
            self._hand_over(stage, spare, scene)
        self._wait(tormentors, tally, 0)
        for tormentor in tormentors:
            tormentor.join()
        self.counts.update(tally.counts)
        self._raise_errors()
        return stage.driver

    def _deaths(self, kills: int) -> list[str]:
        deaths = ["JVM, kill"] * max(1, kills // 22) + ["Python, kill"] * max(1, kills // 22)
        deaths += ["frozen, goes on later"] * max(1, kills // 50)
        self._chance.shuffle(deaths)
        return deaths

    def _wait(self, tormentors: list[Tormentor], tally: Tally, until_left: int) -> None:
        while tally.kills_left > until_left:
            self._errors += [t.error for t in tormentors if t.error is not None]
            self._raise_errors()
            time.sleep(0.05)

    def _raise_errors(self) -> None:
        if self._errors:
            raise self._errors[0]

    # Drivers

    def _new_driver(self, scene: Scene, *, is_local: bool) -> Driver:
        settings = _SETTINGS if is_local else {**_SETTINGS, **_SPECULATION}
        directory = self._directory / f"driver-{len(self._drivers)}"
        master = _LOCAL if is_local else _SPECULATING
        driver = Driver(directory, master, settings, scene.warm_up)
        self._drivers.append(driver)
        return driver

    def _hand_over(self, stage: Stage, driver: Driver, scene: Scene) -> None:
        self._judged.add(driver.pid)
        driver.take(scene.specs)
        stage.driver = driver

        def listen() -> None:
            try:
                if not explain(driver.events.get, stage.tally):
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

    def _die(self, death: str, driver: Driver) -> None:
        self._unjudge(driver)
        if death == "JVM, kill":
            driver.kill_jvm()
        elif death == "Python, kill":
            driver.kill_python()
        else:
            driver.freeze()
            frozen_s = self._chance.uniform(*_FREEZE_S)

            def thaw() -> None:
                time.sleep(frozen_s)
                driver.thaw()
                time.sleep(_THAWED_S)
                driver.kill()

            self._start(thaw)

    def _end_all(self) -> None:
        for driver in self._drivers:
            self._unjudge(driver)
            driver.kill()


class Found(Exception):
    """What a seed found, and the command that runs it again."""


def run_worlds(kills: int, seed: int, directory: Path) -> collections.Counter[str]:
    """Worlds with so many kills in all, in new directories under this one; the directory of one
    that failed stays. Raises Found."""
    totals = collections.Counter[str]()
    while kills > 0:
        world = directory / f"seed-{seed}"
        in_this = min(kills, KILLS_PER_WORLD)
        try:
            totals.update(World(world, seed, in_this).run())
        except Exception as error:
            raise Found(
                f"seed {seed} FAILED: {type(error).__name__}: {error}\nlogs: {world}\n"
                f"again: python -m tests.spark.killing --seed {seed} --kills {in_this}"
            ) from error
        shutil.rmtree(world)
        kills, seed = kills - in_this, seed + 1
    return totals


def report(counts: collections.Counter[str]) -> list[str]:
    """Lines: how often what was done."""
    return [f"{number:8} {what}" for what, number in sorted(counts.items())]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.killing")
    parser.add_argument("--kills", type=int, default=200, help="processes killed (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="of the first world (default 0)")
    parser.add_argument("--dir", type=Path, help="where worlds are made; default: a new one")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # with all it started
    begun = time.monotonic()
    directory = options.dir or Path(tempfile.mkdtemp(prefix="ledgerstream-killing-"))
    try:
        counts = run_worlds(options.kills, options.seed, directory)
    except Found as found:
        print(found)
        return 1
    print("\n".join(report(counts)))
    print(f"{options.kills} kills in {time.monotonic() - begun:.0f} s: output is input")
    return 0


if __name__ == "__main__":
    sys.exit(main())
