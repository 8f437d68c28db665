"""Faults on real processes, after which every copy must be there again within a minute.

`python -m tests.system.healing.campaign --faults 200 --seed 7`. Bookies of a standalone cluster are
killed with -9, paused for 0.2 to 40 s, and their links are cut or stalled by a proxy: one, two or
all of them; meanwhile writers append, are killed, and take over from each other. Within a minute
after the last fault `stream verify` must find every stream whole, `status` must say so, and every
record that was acknowledged must be readable, in order.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import trio

from tests.system.cluster import environment
from tests.system.healing.clusters import new_cluster
from tests.system.healing.proxy import LinkProxy

STREAMS = 4
_INNER_HOST, _OUTER_HOST = "127.0.0.2", "127.0.0.1"
_PAUSE_MEAN_S = 2.0
_FAULT_S_MAX = 40.0
SETTLE_S = 60.0
_POLL_S = 1.0


class World:
    """The cluster, its proxies and its writers."""

    def __init__(
        self, directory: Path, bookies: int, seed: int, fault_s_max: float = _FAULT_S_MAX
    ) -> None:
        self.chance = random.Random(seed)
        # Bookies advertise the addresses of the proxies.
        self.cluster = new_cluster(
            directory / "cluster", bookies, host=_INNER_HOST, advertised_host=_OUTER_HOST
        )
        self._fault_s_max = fault_s_max
        self.bookies = range(1, bookies + 1)
        self.proxies = {
            number: LinkProxy((_OUTER_HOST, port), (_INNER_HOST, port))
            for number, port in enumerate(self.cluster.ports(), 1)
        }
        self.counts: collections.Counter[str] = collections.Counter()
        self._directory = directory
        self._writers: dict[int, subprocess.Popen[bytes]] = {}
        self._incarnations = 0
        self._paused: dict[int, None] = {}

    def stream(self, number: int) -> str:
        return f"demo/s{number}"

    # Writers.

    def acknowledged(self, number: int) -> Path:
        return self._directory / f"acknowledged-{number}"

    def start_writer(self, number: int) -> None:
        """Starts a writer of a stream; one that lives is taken over, and killed later."""
        self._incarnations += 1
        before = self._writers.get(number)
        if before is not None and self.chance.random() < 0.5:
            before.kill()
        arguments = [
            "-m",
            "tests.system.healing.appender",
            self.cluster.uri,
            self.stream(number),
            f"{self._incarnations:05}",
            str(self.acknowledged(number)),
        ]
        with (self._directory / "writers.log").open("ab") as log:
            self._writers[number] = subprocess.Popen(
                [sys.executable, *arguments], stderr=log, env=environment()
            )
        if before is not None:
            before.kill()
            before.wait()

    def stop_writers(self) -> None:
        for writer in self._writers.values():
            writer.kill()
            writer.wait()

    # Faults.

    async def one_fault(self) -> None:
        kinds: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("kill", self._kill),
            ("pause", self._pause),
            ("cut", partial(self._link, "cut")),
            ("stall", partial(self._link, "stall")),
            ("takeover", self._takeover),
        ]
        name, fault = self.chance.choice(kinds)
        self.counts[name] += 1
        await fault()

    def _some(self) -> list[int]:
        count = self.chance.choices((1, 2, len(self.bookies)), (6, 3, 1))[0]
        return self.chance.sample(list(self.bookies), count)

    def _seconds(self) -> float:
        return min(self._fault_s_max, 0.2 + self.chance.expovariate(0.15))

    async def _kill(self) -> None:
        for number in self._some():
            self._signal(number, signal.SIGKILL)

    async def _pause(self) -> None:
        numbers = [one for one in self._some() if one not in self._paused]
        self._paused |= dict.fromkeys(numbers)
        for number in numbers:
            self._signal(number, signal.SIGSTOP)
        await trio.sleep(self._seconds())
        for number in numbers:
            self._signal(number, signal.SIGCONT)
            del self._paused[number]

    async def _link(self, kind: str) -> None:
        seconds = self._seconds()
        async with trio.open_nursery() as nursery:
            for number in self._some():
                nursery.start_soon(getattr(self.proxies[number], kind), seconds)

    async def _takeover(self) -> None:
        self.start_writer(self.chance.randrange(STREAMS))

    def _signal(self, number: int, what: signal.Signals) -> None:
        try:
            os.kill(self.cluster.pid_of(number), what)
        except (FileNotFoundError, ProcessLookupError):
            pass  # it is being started again

    # Judging.

    def judge(self) -> list[str]:
        """Returns what is not as it must be."""
        problems = []
        for number in range(STREAMS):
            name = self.stream(number)
            done = self.cluster.try_run("stream", "verify", name)
            if done.returncode != 0:
                problems.append(f"verify {name}: {done.returncode} {_text(done)}")
            read = self.cluster.run("read", name, "--from", "earliest", "-f", "%v\\n")
            records = [b" ".join(line.split()[:2]).decode() for line in read.splitlines()]
            known = {record: place for place, record in enumerate(records)}
            if len(known) != len(records):
                problems.append(f"{name}: {len(records) - len(known)} records are there twice")
            noted = self.acknowledged(number).read_text().splitlines()
            lost = [one for one in noted if one not in known]
            if lost:
                problems.append(f"{name}: {len(lost)} acknowledged records are lost: {lost[:3]}")
            by_writer: dict[str, int] = {}
            for record, place in known.items():
                if place < by_writer.get(record[:5], -1):
                    problems.append(f"{name}: record {record} is out of order")
                    break
                by_writer[record[:5]] = place
        status = self.cluster.try_run("status")
        if status.returncode != 0:
            problems.append(f"status: {status.returncode} {_text(status)}")
        return problems


def _text(done: subprocess.CompletedProcess[bytes]) -> str:
    return (done.stdout + done.stderr).decode(errors="replace")[:2000]


async def _judge_settled(world: World, settle_s: float) -> list[str]:
    """Returns what is not as it must be once the cluster is healthy, or after `settle_s`."""
    deadline_s = trio.current_time() + settle_s
    while trio.current_time() < deadline_s:
        status = await trio.to_thread.run_sync(world.cluster.try_run, "status")
        if status.returncode == 0:
            break
        await trio.sleep(_POLL_S)
    world.stop_writers()
    while True:
        problems = await trio.to_thread.run_sync(world.judge)
        if not problems or trio.current_time() >= deadline_s:
            return problems
        await trio.sleep(_POLL_S)


async def _run(world: World, faults: int, settle_s: float, pause_mean_s: float) -> list[str]:
    async with trio.open_nursery() as proxies:
        for proxy in world.proxies.values():
            await proxies.start(proxy.run)
        await trio.to_thread.run_sync(world.cluster.start)
        try:
            world.cluster.run("namespace", "create", "demo", "--roll-bytes", "200kB")
            for number in range(STREAMS):
                world.cluster.run("stream", "create", world.stream(number))
                world.acknowledged(number).touch()
                world.start_writer(number)
            async with trio.open_nursery() as nursery:
                for done in range(faults):
                    await trio.sleep(world.chance.expovariate(1 / pause_mean_s))
                    nursery.start_soon(world.one_fault)
                    if done % 20 == 19:
                        print(f"{done + 1} faults: {dict(world.counts)}", flush=True)
            print(f"calm; up to {settle_s:g} s", flush=True)
            return await _judge_settled(world, settle_s)
        finally:
            world.stop_writers()
            world.cluster.end()
            proxies.cancel_scope.cancel()


def campaign(
    directory: Path,
    *,
    faults: int,
    seed: int,
    bookies: int = 5,
    settle_s: float = SETTLE_S,
    pause_mean_s: float = _PAUSE_MEAN_S,
    fault_s_max: float = _FAULT_S_MAX,
) -> list[str]:
    """Returns what was not as it must be after the faults. `pause_mean_s`: between two faults.
    `fault_s_max`: how long a pause or a fault of a link lasts at most."""
    world = World(directory, bookies, seed, fault_s_max)
    return trio.run(_run, world, faults, settle_s, pause_mean_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--bookies", type=int, default=5)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--settle-s", type=float, default=SETTLE_S)
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        problems = campaign(
            Path(directory),
            bookies=given.bookies,
            faults=given.faults,
            seed=given.seed,
            settle_s=given.settle_s,
        )
    for problem in problems:
        print(problem)
    print("whole" if not problems else f"{len(problems)} problems")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
