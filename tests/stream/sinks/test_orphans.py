"""The janitor deletes ledgers of sinks that no commit used, and never one that was used."""

from __future__ import annotations

import pytest
import trio

from bookie.testing import SimCluster, simulate
from ledger.errors import NoSuchLedger
from stream import Janitor, Namespace
from stream.sinks.sinks import commit_batch
from tests.stream.sim_namespace import sim_namespace
from tests.stream.sinks.sink_ledgers import write_ledger

AGE_MS = 600_000
"""The age of deleted orphans; an hour of a simulated cluster takes seconds, a day a minute."""


async def ledgers(namespace: Namespace) -> set[int]:
    return set(await namespace.client.list_ledgers())


def test_unused_ledgers_are_deleted_when_the_batch_is_committed() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sim_namespace(cluster) as namespace:
            client = namespace.client
            await namespace.create_stream("s")
            janitor = Janitor(client, "n", sink_orphan_age_ms=AGE_MS)

            async def made(batch_id: int, sink_id: str = "k") -> int:
                ledger = await write_ledger(
                    client, "s", [[b"x"]], sink_id=sink_id, batch_id=batch_id
                )
                return ledger.ledger_id

            taken = await write_ledger(client, "s", [[b"1"]], sink_id="k", batch_id=3)
            before, same, later = await made(2), await made(3), await made(4)
            other, none = await made(1, "other"), await write_ledger(client, "s", [[b"y"]])
            every = {taken.ledger_id, before, same, later, other, none.ledger_id}
            assert (await janitor.sweep()).orphans_deleted == 0
            assert await ledgers(namespace) == every
            await commit_batch(client, [taken], sink_id="k", batch_id=3)
            assert (await janitor.sweep()).orphans_deleted == 2
            assert await ledgers(namespace) == every - {before, same}
            await trio.sleep(AGE_MS / 1000 - 100)
            assert (await janitor.sweep()).orphans_deleted == 0
            await trio.sleep(200)
            assert (await janitor.sweep()).orphans_deleted == 3
            assert await ledgers(namespace) == {taken.ledger_id}

    simulate(scenario, time_limit_s=200_000)


def test_a_batch_that_took_too_long_is_not_committed() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sim_namespace(cluster) as namespace:
            client = namespace.client
            await namespace.create_stream("s")
            ledger = await write_ledger(client, "s", [[b"1"]], sink_id="k", batch_id=3)
            await Janitor(client, "n", sink_orphan_age_ms=-1).sweep()
            with pytest.raises(NoSuchLedger):
                await commit_batch(client, [ledger], sink_id="k", batch_id=3)

    simulate(scenario)
