"""Retention under faults: `python -m tests.sim.retention.run --expiries 1000000 --jobs 2`.

Real janitor, real store, real transitions on the simulated metadata store with its faults; ledgers
are metadata alone. Writers, operators, cursors and readers race janitors that crash at every step;
the oracle (model.py) sees every change. The same seed gives the same run.
"""

from __future__ import annotations

import argparse
import gc
import logging
import random
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import trio

from bookie.testing.metastore import MetadataOptions, SimMetadata
from bookie.testing.scheduler import Simulation, run_simulated
from ledger.errors import LedgerError
from stream.namespace import Namespace, create_namespace
from stream.retention.janitor import Janitor
from tests.sim.page_limits import page_limits, small_merges
from tests.sim.retention.actors import Actors, MetadataClient
from tests.sim.retention.model import RetentionModel

ORPHAN_AGE_MS = 30_000
REPLACED_MS = 2000
BOUND_MS = 60_000
"""What is due must be gone after so long, janitors crashing all the while."""
AUDIT_S = 3.0
EXPIRIES_PER_WORLD = 20_000
"""Worlds grow: cursors and policies keep much. Many small ones see more than one large one."""
COLLECT_S = 60.0
FAULTS = MetadataOptions(
    delay_max_s=0.004,
    timeout_s=1.0,
    error_before_probability=0.002,
    error_after_probability=0.002,
    error_late_probability=0.002,
    late_max_s=3.0,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    counts: dict[str, int]
    virtual_s: float
    trace_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    expiries: int = 20_000
    seed: int = 1
    namespaces: int = 4
    streams: int = 8
    """In each namespace."""
    janitors: int = 2
    """Of each namespace, at the same time."""


@page_limits(8, 2)
@small_merges()
def run_retention(options: Options) -> Outcome:
    """Raises Violation, or whatever else went wrong."""

    async def main(simulation: Simulation) -> Outcome:
        world = World(simulation, options)
        await world.run()
        world.model.count("ms: longest wait of what was due", world.model.longest_wait_ms)
        return Outcome(
            dict(sorted(world.model.counts.items())),
            trio.current_time(),
            simulation.trace_hash(),
        )

    logging.disable(logging.CRITICAL)
    try:
        return run_simulated(main, options.seed, time_limit_s=1e9)
    finally:
        logging.disable(logging.NOTSET)


class World:
    """Namespaces with their streams, and all who are at work on them."""

    def __init__(self, simulation: Simulation, options: Options) -> None:
        self.simulation = simulation
        self.options = options
        self.metadata = SimMetadata(simulation)
        self.model = RetentionModel(self.metadata.tree, simulation.fail, ORPHAN_AGE_MS, REPLACED_MS)
        self.chance = simulation.chance("retention")
        self.names = [f"n{number}" for number in range(options.namespaces)]
        self._ledger_ids = 0

    def client(self, node: str) -> MetadataClient:
        """A new session; what an older one of this node had is lost."""
        store = self.metadata.connect(node)
        return MetadataClient(
            store,
            rng=random.Random(self.chance.random()),
            now_ms=self.simulation.now_ms,
            next_id=self.next_ledger_id,
        )

    def next_ledger_id(self) -> int:
        self._ledger_ids += 1
        return self._ledger_ids

    async def run(self) -> None:
        maker = self.client("maker")
        for name in self.names:
            await create_namespace(maker, name, retention_ms=3000, trash_ms=1000)
            for number in range(self.options.streams):
                await Namespace(maker, name).create_stream(f"s{number}")
        self.metadata.options = FAULTS
        async with trio.open_nursery() as nursery:
            for name in self.names:
                actors = Actors(self.model, name, self.options.streams, ORPHAN_AGE_MS)
                for actor, act in actors.roles():
                    nursery.start_soon(self._play, f"{name}-{actor}", act)
                for number in range(self.options.janitors):
                    nursery.start_soon(self._janitor, f"{name}-janitor{number}", name)
            await self._watch()
            nursery.cancel_scope.cancel()
        await self._calm()

    async def _play(
        self, node: str, act: Callable[[MetadataClient, random.Random], Awaitable[None]]
    ) -> None:
        """An actor runs forever, through retryable errors and deaths."""
        chance = random.Random(f"{self.options.seed}/{node}")
        client = self.client(node)
        while True:
            await trio.sleep(chance.expovariate(1))
            if chance.random() < 0.02:
                client = self.client(node)
            try:
                with trio.move_on_after(chance.expovariate(0.02)):
                    await act(client, chance)
            except LedgerError as error:
                self.model.count(f"refused: {type(error).__name__}")

    async def _janitor(self, node: str, namespace: str) -> None:
        """Sweeps, and dies at some call of the metadata store, before or after it took effect."""
        chance = random.Random(f"{self.options.seed}/{node}")
        while True:
            client = self.client(node)
            janitor = Janitor(
                client, namespace, orphan_age_ms=ORPHAN_AGE_MS, merge_bytes_per_s=0,
                replaced_ms=REPLACED_MS,
            )  # fmt: skip
            with trio.CancelScope() as scope:
                client.crash_later(scope, calls=int(chance.expovariate(1 / 1500)) + 1)
                while True:
                    try:
                        report = await janitor.sweep()
                        self.model.count("sweeps")
                        self.model.count("sweeps that failed in part", report.failures > 0)
                    except LedgerError as error:
                        self.model.count(f"sweep: {type(error).__name__}")
                    await trio.sleep(chance.uniform(1, 3))
            self.model.count("janitor crashes")

    async def _watch(self) -> None:
        """Until there were enough expiries; audits meanwhile."""
        collect_s = COLLECT_S
        while self.model.counts.get("expiries", 0) < self.options.expiries:
            await trio.sleep(AUDIT_S)
            self.model.audit(self.simulation.now_ms(), BOUND_MS)
            if trio.current_time() >= collect_s:
                collect_s += COLLECT_S
                gc.collect()  # the simulator has switched it off

    async def _calm(self) -> None:
        """Faults end, and nothing is to be kept: after some sweeps nothing may be left."""
        self.metadata.options = MetadataOptions(delay_max_s=0.0001)
        await trio.sleep(10)  # what is late has happened
        client = self.client("calm")
        for name in self.names:
            namespace = Namespace(client, name)
            await namespace.set_policy(
                retention_ms=0, retention_bytes=None, retention_cursors=(), trash_ms=0
            )
            await trio.sleep(ORPHAN_AGE_MS / 1000 + 1)
            for stream in await namespace.list_streams():
                await namespace.delete_stream(stream)
            for _ in range(3):
                report = await Janitor(client, name, orphan_age_ms=ORPHAN_AGE_MS).sweep()
                assert report.failures == 0, report
        for path, left in self.model.streams.items():
            assert not left.ledgers(), f"{path} has {len(left.ledgers())} ledgers left"
        assert not self.model.ledgers, f"ledgers are left: {sorted(self.model.ledgers)[:10]}"
        await trio.sleep(3600)
        for name in self.names:
            await Janitor(client, name).sweep()
            await client.delete_namespace(name)
        assert not self.metadata.tree.children("/ledgerstream/namespaces")


def _world(seed: int, expiries: int) -> Outcome | str:
    """What became of one world; or what went wrong in it."""
    try:
        return run_retention(Options(expiries=expiries, seed=seed))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what this seed found
        return f"{type(error).__name__}: {error}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.retention.run")
    parser.add_argument("--expiries", type=int, default=20_000, help="in all worlds together")
    parser.add_argument("--seed", type=int, default=1, help="of the first world")
    parser.add_argument("--jobs", type=int, default=1, help="worlds at the same time")
    given = parser.parse_args()
    begun, totals = time.perf_counter(), dict[str, int]()
    left = [
        min(EXPIRIES_PER_WORLD, given.expiries - done)
        for done in range(0, given.expiries, EXPIRIES_PER_WORLD)
    ]
    seeds = range(given.seed, given.seed + len(left))
    with ProcessPoolExecutor(
        given.jobs, max_tasks_per_child=1, mp_context=get_context("spawn")
    ) as pool:
        for seed, expiries, outcome in zip(seeds, left, pool.map(_world, seeds, left), strict=True):
            if isinstance(outcome, str):
                print(f"seed {seed} FAILED: {outcome}")
                print(
                    f"again: python -m tests.sim.retention.run --seed {seed} --expiries {expiries}"
                )
                pool.shutdown(wait=False, cancel_futures=True)
                return 1
            for what, number in outcome.counts.items():
                is_longest = what.startswith("ms: ")
                totals[what] = (
                    max(totals.get(what, 0), number)
                    if is_longest
                    else (totals.get(what, 0) + number)
                )
            print(
                f"seed {seed} ok: {totals['expiries']:,} expiries so far, "
                f"{time.perf_counter() - begun:.0f} s, trace {outcome.trace_hash[:16]}",
                flush=True,
            )
    for what, number in sorted(totals.items()):
        print(f"{number:12,} {what}")
    took_s = time.perf_counter() - begun
    print(
        f"{len(left)} worlds ok: {totals['expiries']:,} expiries, {took_s:.1f} s, "
        f"{totals['expiries'] / took_s:,.0f} expiries/s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
