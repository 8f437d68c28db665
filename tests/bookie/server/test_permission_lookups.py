"""A connection that uses many ledgers for the first time does not wait for one after the other."""

from __future__ import annotations

import dataclasses
import random

import pytest
import trio

from bookie.config import BookieConfig
from bookie.server.access import LOOKUPS_MAX
from bookie.testing import SimCluster, Simulation, run_simulated, small_config
from bookie.testing.metastore import MetadataOptions
from ledger.connection.connection import BookieConnection
from ledger.core.permissions import Grant, Role
from ledger.errors import Status
from ledger.metastore.ledgers import LedgerStore
from ledger.metastore.permissions import Permissions
from ledger.wire.messages import ReadRequest, ResponseBody
from tests.bookie.server.permitted_cluster import Named, metadata_of, named_users

pytestmark = pytest.mark.usefixtures(named_users.__name__)
LEDGERS = 200
READ_S = 0.1
"""Longest time that a read of the metadata takes, in each direction."""


def permitting(name: str, chance: random.Random) -> BookieConfig:
    return dataclasses.replace(small_config(name, chance), permissions=True)


@pytest.mark.parametrize("version", [2, 3])
def test_namespaces_of_ledgers_of_a_chunk_are_read_together(version: int) -> None:
    async def scenario(simulation: Simulation) -> tuple[float, list[ResponseBody | None], int]:
        async with SimCluster(simulation, bookies=1, config=permitting) as cluster:
            store = cluster.metadata.connect("operator")
            await Permissions(store).grant([Grant("ann", Role.READ, "a")])
            for ledger_id in range(LEDGERS):
                await LedgerStore(store).create(metadata_of(ledger_id, "ab"[ledger_id % 2]))
            await trio.sleep(3)
            cluster.metadata.options = MetadataOptions(delay_max_s=READ_S)
            reads = 0

            def count(node: str, kind: str, path: str) -> None:
                nonlocal reads
                reads += kind == "get" and node == "bookie-0" and "/ledgers/" in path

            cluster.metadata.on_call = count

            async def resolve(_: str) -> tuple[str, int]:
                return "bookie-0", 3181

            ann = BookieConnection(
                "b", version, outbox_bytes_max=1 << 20, auth=lambda: Named("ann")
            )
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ann.run, cluster.network.of("ann"), resolve, 5.0)
                await ann.wait_connected()
                answers: list[ResponseBody | None] = []
                begun_at = trio.current_time()
                ann.post_many([(ReadRequest(n, 0), answers.append) for n in range(LEDGERS)])
                while len(answers) < LEDGERS:  # noqa: ASYNC110
                    await trio.sleep(0.05)
                took_s = trio.current_time() - begun_at
                nursery.cancel_scope.cancel()
            return took_s, answers, reads

    took_s, answers, reads = run_simulated(scenario, 1)
    refused = [one for one in answers if one is not None and one.status is Status.UNAUTHORIZED]
    assert len(refused) == LEDGERS // 2
    assert reads == LEDGERS  # each once
    assert took_s < 3 * LEDGERS * READ_S / LOOKUPS_MAX, f"{took_s:.2f} s"
