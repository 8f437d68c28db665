"""Bookies that say "too many requests": the writer backs off, loses nothing and gives up nobody."""

from __future__ import annotations

import dataclasses
import random
from unittest import mock

from bookie.config import BookieConfig
from bookie.server.request_metrics import RequestCounts
from bookie.testing import SimCluster, Simulation, run_simulated
from bookie.testing.cluster import small_config
from ledger.errors import Status
from ledger.options import ClientOptions
from ledger.wire.messages import AddResponse, Request, ResponseBody
from tests.effort import scaled

KIB = 1024
PAYLOAD = 4 * KIB
ENTRIES = scaled(ci=400, night=1000)


def impatient(name: str, chance: random.Random) -> BookieConfig:
    """Room for a few chunks of adds; the others are refused soon."""
    return dataclasses.replace(small_config(name, chance), write_cache_wait_ms_max=20)


def test_a_writer_of_bookies_that_refuse_adds_goes_on_until_all_is_confirmed() -> None:
    refused = 0
    replied = RequestCounts.replied

    def counting(self: RequestCounts, request: Request, body: ResponseBody) -> None:
        nonlocal refused
        refused += isinstance(body, AddResponse) and body.status is Status.TOO_MANY_REQUESTS
        replied(self, request, body)

    async def scenario(simulation: Simulation) -> None:
        async with SimCluster(simulation, bookies=3, config=impatient) as cluster:
            # A window of several times what a bookie has room for, and disks that are slow.
            options = ClientOptions(window_bytes=16 << 20, add_timeout_s=30)
            for bookie in cluster.bookies:
                cluster.disk(bookie).options.slow_factor = 200.0
            async with (
                cluster.client("writer", options) as client,
                client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3) as writer,
            ):
                for number in range(ENTRIES):
                    while not writer.has_room:
                        await writer.wait_room()
                    writer.append_nowait(number.to_bytes(4, "big") * (PAYLOAD // 4))
                await writer.flush()
                assert writer.last_add_confirmed == ENTRIES - 1
                assert writer.statistics().ensemble_changes == 0, "a busy bookie was given up"
                for bookie in cluster.bookies:
                    cluster.disk(bookie).options.slow_factor = 1.0
                assert refused > 10, "nobody was busy"
                ledger_id = writer.ledger_id
            async with (
                cluster.client("reader") as client,
                client.open_ledger(ledger_id) as reader,
            ):
                entries = await reader.read(0, ENTRIES - 1)
                assert [bytes(entry.payload[:4]) for entry in entries] == [
                    number.to_bytes(4, "big") for number in range(ENTRIES)
                ]

    with mock.patch.object(RequestCounts, "replied", counting):
        run_simulated(scenario, 0, time_limit_s=600)
