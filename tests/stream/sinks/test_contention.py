"""Many drivers that commit to the same stream at once each succeed or get an error in time."""

from __future__ import annotations

import random

import pytest
import trio

from bookie.testing import SimCluster, simulate
from ledger.errors import MetadataConflict
from stream.core.backoff import GIVE_UP_AFTER_S, PAUSE_S_MAX, conflict_pause_s
from stream.sinks.sinks import commit_batch
from tests.effort import scaled
from tests.stream.sim_namespace import sim_namespace
from tests.stream.sinks.sink_ledgers import write_ledger

DRIVERS, BATCHES = scaled(ci=20, night=60), 4


def test_each_of_many_drivers_commits_its_batches() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sim_namespace(cluster) as namespace:
            client = namespace.client
            await namespace.create_stream("s")
            ended_s: list[float] = []

            async def drive(driver: int) -> None:
                for batch in range(BATCHES):
                    ledger = await write_ledger(
                        client, "s", [[b"%d-%d" % (driver, batch)]],
                        sink_id=f"k{driver}", batch_id=batch,
                    )  # fmt: skip
                    await commit_batch(client, [ledger], sink_id=f"k{driver}", batch_id=batch)
                ended_s.append(trio.current_time())

            async with trio.open_nursery() as nursery:
                for driver in range(DRIVERS):
                    nursery.start_soon(drive, driver)
            stream = await namespace.stream_metadata("s")
            assert len(stream.segments) == DRIVERS * BATCHES
            assert max(ended_s) - min(ended_s) < GIVE_UP_AFTER_S

    simulate(scenario)


def test_a_commit_gives_up_when_others_always_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sim_namespace(cluster) as namespace:
            client = namespace.client
            await namespace.create_stream("s")
            ledger = await write_ledger(client, "s", [[b"x"]])
            tries = 0

            async def too_late(*_: object) -> None:
                nonlocal tries
                tries += 1
                raise MetadataConflict("somebody was first")

            monkeypatch.setattr(client.store, "transaction", too_late)
            began_s = trio.current_time()
            with pytest.raises(MetadataConflict, match=r"first, \d+ times in 1\d\d s"):
                await commit_batch(client, [ledger])
            assert tries > 100
            assert (
                GIVE_UP_AFTER_S <= trio.current_time() - began_s < GIVE_UP_AFTER_S + PAUSE_S_MAX + 1
            )

    simulate(scenario)


def test_pauses_grow_with_conflicts_and_shrink_with_the_wait() -> None:
    rng = random.Random(3)

    def longest(conflicts: int, waited_s: float) -> float:
        return max(conflict_pause_s(conflicts, waited_s, rng) for _ in range(2000))

    assert 0 == longest(1, 0.0) < longest(2, 0.0) < longest(4, 0.0) < longest(8, 0.0) <= PAUSE_S_MAX
    assert longest(1000, 0.0) <= PAUSE_S_MAX
    assert (
        longest(1000, GIVE_UP_AFTER_S * 0.9)
        < longest(1000, GIVE_UP_AFTER_S / 2)
        < longest(1000, 0.0)
    )
    assert min(conflict_pause_s(8, 0.0, rng) for _ in range(2000)) < 0.01, (
        "pauses must be spread over the whole range"
    )
