"""Takeovers across languages: whichever client loses the ledger, no acknowledged entry is lost.

INTEROP_SEED repeats a run, INTEROP_TAKEOVERS is the number of interleavings over all versions. A
failure has the seed and the number; INTEROP_ONLY=number runs that one alone.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from ledger.metastore import open_store
from ledger.metastore.base import MetadataStore
from tests.effort import scaled
from tests.interop.conftest import GetVm
from tests.interop.mixed_bookies import (
    BookieProcess,
    name_of_apache,
    name_of_ours,
    open_mixed_bookies,
    running_bookies,
)
from tests.interop.takeover.clients import PythonTakeoverClient, TakeoverClient
from tests.interop.takeover.java_client import open_java_clients
from tests.interop.takeover.killed_recovery import KilledRecoveryRun
from tests.interop.takeover.plan import (
    Language,
    Moment,
    Pace,
    Plan,
    Recovery,
    make_plan,
    make_plans,
)
from tests.interop.takeover.run import MakeClient, TakeoverRun
from tests.interop.versions import VERSIONS

OURS = tuple(map(name_of_ours, range(5)))
APACHES = tuple(map(name_of_apache, range(5)))
TAKEOVERS = scaled(ci=60, night=200)


@pytest.fixture(scope="module")
def seed() -> int:
    given = os.environ.get("INTEROP_SEED")
    return random.SystemRandom().getrandbits(31) if given is None else int(given)


def numbers(share: int, of: int) -> range:
    """Returns the numbers of the interleavings in one share of the run."""
    count = int(os.environ.get("INTEROP_TAKEOVERS", TAKEOVERS))
    return range(count * share // of, count * (share + 1) // of)


async def play_all(
    seed: int,
    numbers: range,
    versions: tuple[str, ...],
    bookies: Mapping[str, BookieProcess],
    store: MetadataStore,
    make_java: MakeClient,
) -> Counter[str]:
    """Runs the plans one after the other; returns counts of the observations."""
    seen: Counter[str] = Counter()
    only = os.environ.get("INTEROP_ONLY")
    plans = make_plans(seed, numbers, versions=versions, ours=OURS, apaches=APACHES)
    async with open_mixed_bookies(bookies) as processes:
        for plan in plans:
            if only is not None and plan.number != int(only):
                continue
            began = trio.current_time()
            observed = await TakeoverRun(plan, processes, store, make_java).run()
            seen["plays"] += 1
            seen["kills"] += plan.kill is not None
            seen[f"writer error {observed.writer.error}"] += 1
            seen["recoveries tried again"] += len(observed.retries)
            seen["entries acknowledged"] += len(observed.writer.acked)
            seen["entries recovered"] += len(observed.read["python"]) - len(observed.writer.acked)
            print(
                f"{trio.current_time() - began:.2f} s {plan.title()}: "
                f"{len(observed.writer.acked)} of {observed.writer.pushed} acknowledged, "
                f"{observed.metadata}, {observed.writer.error}, {observed.retries}"
            )
    return seen


@pytest.mark.interop
@pytest.mark.interop_result(
    area="takeover", feature="either language fences the other, bookies killed", wire="v2 and v3"
)
async def test_no_takeover_loses_an_acknowledged_entry(
    seed: int,
    version: str,
    mixed_cluster: tuple[str, Mapping[str, BookieProcess]],
    java_vm: GetVm,
) -> None:
    uri, bookies = mixed_cluster
    async with open_store(uri) as store, open_java_clients([java_vm(version)], uri) as clients:

        @asynccontextmanager
        async def java(plan: Plan, ids: tuple[str, ...]) -> AsyncIterator[TakeoverClient]:
            yield clients.client_of(plan.version, plan.is_v2, ids)

        share = numbers(VERSIONS.index(version), len(VERSIONS))
        seen = await play_all(seed, share, (version,), bookies, store, java)
    print(dict(seen))
    assert seen["plays"] == len(share) or "INTEROP_ONLY" in os.environ


@pytest.mark.interop
@pytest.mark.interop_result(
    area="takeover",
    feature="a recovering process is killed, the other language finishes",
    wire="v2 and v3",
)
@pytest.mark.parametrize("killed", Language, ids=lambda language: f"{language.value} killed")
async def test_a_killed_recovery_is_finished_by_the_other_language(
    seed: int,
    version: str,
    killed: Language,
    mixed_cluster: tuple[str, Mapping[str, BookieProcess]],
    java_vm: GetVm,
    tmp_path: Path,
) -> None:
    uri, bookies = mixed_cluster
    async with (
        open_store(uri) as store,
        open_java_clients([java_vm(version)], uri) as clients,
        open_mixed_bookies(bookies) as stage,
    ):

        @asynccontextmanager
        async def java(plan: Plan, ids: tuple[str, ...]) -> AsyncIterator[TakeoverClient]:
            yield clients.client_of(plan.version, plan.is_v2, ids)

        for number, is_v2 in enumerate((True, False)):
            rng = random.Random(f"{seed}/{version}/{killed}/{number}")
            dealt = make_plan(seed, number, versions=(version,), ours=OURS, apaches=APACHES)
            plan = replace(
                dealt,
                writer=killed.other,
                is_v2=is_v2,
                # A long recovery, so that the kill is in the middle of it.
                pace=Pace(
                    number, tuple(rng.randrange(2000) for _ in range(400)), (0.0,) * 400, 400
                ),
                moment=Moment.AFTER_ACKS,
                acks=1,
                recoveries=(
                    Recovery(killed, gives_up_ms=rng.uniform(0, 30)),
                    Recovery(killed.other, waits_for_stopped=True),
                ),
                kill=None,
            )
            play = KilledRecoveryRun(plan, stage, store, java, uri=uri, directory=tmp_path)
            observed = await play.run()
            print(plan.title(), play.state_after_kill.name, observed.metadata)


@pytest.mark.system
@pytest.mark.slow
async def test_the_python_client_takes_over_from_itself(seed: int, tmp_path: Path) -> None:
    """Runs the same plans without Java: both clients and all bookies are ledgerstream's."""
    uri = f"sqlite://{tmp_path}/cluster.db"
    with running_bookies(tmp_path, uri, ours=len(OURS) + len(APACHES), apaches=0) as ours:
        bookies = dict(zip(OURS + APACHES, ours.values(), strict=True))
        async with open_store(uri) as store:

            def second(
                plan: Plan, ids: tuple[str, ...]
            ) -> AbstractAsyncContextManager[PythonTakeoverClient]:
                return _second(store, plan, ids)

            seen = await play_all(seed, range(30), ("-",), bookies, store, second)
    assert seen["plays"] == 30
    assert seen["kills"] == 10


@asynccontextmanager
async def _second(
    store: MetadataStore, plan: Plan, ids: tuple[str, ...]
) -> AsyncIterator[PythonTakeoverClient]:
    async with trio.open_nursery() as nursery:
        side = PythonTakeoverClient(store, nursery, ids, f"second {plan.seed}/{plan.number}")
        side.name = "second"
        yield side
        nursery.cancel_scope.cancel()
