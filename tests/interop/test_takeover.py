"""Takeovers across languages: whoever loses the ledger, no acknowledged entry is lost.

INTEROP_SEED repeats a run, INTEROP_TAKEOVERS says how many interleavings it has.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from ledger.metastore import open_store
from tests.interop.sides import PythonSide, Side
from tests.interop.stage import BookieProcess, OurBookie, open_stage
from tests.interop.takeover import Plan, make_plan
from tests.interop.takeover_run import Play

OURS = tuple(f"ours-{n}" for n in range(5))
APACHES = tuple(f"apache-{n}" for n in range(5))


def seed_of_run() -> int:
    given = os.environ.get("INTEROP_SEED")
    return random.SystemRandom().getrandbits(31) if given is None else int(given)


@pytest.mark.system
@pytest.mark.slow
async def test_our_client_takes_over_from_itself(tmp_path: Path) -> None:
    uri = f"sqlite://{tmp_path}/cluster.db"
    bookies: dict[str, BookieProcess] = {
        name: OurBookie(tmp_path / name, uri) for name in OURS + APACHES
    }
    seed = seed_of_run()
    async with open_store(uri) as store, open_stage(bookies) as stage:

        @asynccontextmanager
        async def second(plan: Plan, ids: tuple[str, ...]) -> AsyncIterator[Side]:
            async with (
                trio.open_nursery() as nursery,
                PythonSide(store, nursery, ids, plan.seed) as side,
            ):
                side.name = "second"
                yield side
                nursery.cancel_scope.cancel()

        seen: Counter[str] = Counter()
        victim = None
        for number in range(int(os.environ.get("INTEROP_TAKEOVERS", "30"))):
            plan = make_plan(
                seed, number, versions=["-"], ours=OURS, apaches=APACHES, last_victim=victim
            )
            story = await Play(plan, stage, store, second).run()
            seen[plan.moment.value] += 1
            seen["retries"] += len(story.retries)
            seen[f"told {story.writer.error}"] += 1
            print(plan.title(), story.metadata, len(story.writer.acked), story.writer.error, story.writer.closed_at, story.retries)
            victim = plan.victim
    print(seen)
