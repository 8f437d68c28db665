"""A writer of a cluster continues while hostile peers take connections, frames and replies."""

from __future__ import annotations

import dataclasses
import random
import struct

import pytest
import trio

from bookie.config import BookieConfig
from bookie.testing import SimCluster, Simulation, run_simulated
from bookie.testing.cluster import small_config
from ledger.errors import BookieUnavailable
from ledger.wire import v2
from ledger.wire.messages import BatchReadRequest, ReadRequest, Request
from tests.effort import scaled

SEEDS = scaled(ci=3, night=30)
ENTRIES = 200
_VALID = v2.encode_request(Request(2, 0, ReadRequest(1 << 40, 0)))
_BEGUN = struct.pack(">iI", 40_000, v2.ADD_HEADER)
_BATCHES = v2.encode_request(Request(2, 0, BatchReadRequest(0, 0, 0, 60_000))) * 50


def small(name: str, chance: random.Random) -> BookieConfig:
    """Limits that a few dozen peers reach."""
    return dataclasses.replace(
        small_config(name, chance),
        connections_max=40,
        first_request_wait_ms_max=3_000,
        frame_wait_ms_max=5_000,
        replies_bytes_max=200_000,
        reply_wait_ms_max=5_000,
    )


async def attack(
    cluster: SimCluster, name: str, rng: random.Random, kinds: tuple[bytes, ...]
) -> None:
    """Opens connections forever, sends one of `kinds`, and leaves them in that state."""
    network = cluster.network.of(name)
    held = []
    while True:
        try:
            transport = await network.connect(rng.choice(cluster.bookies), 3181)
            transport.send(rng.choice(kinds))
            held.append(transport)
        except (BookieUnavailable, OSError):
            pass  # refused, or replaced already
        if len(held) > 200:
            held.pop(rng.randrange(100)).close()
        await trio.sleep(rng.random() * 0.02)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_writer_and_its_readers_go_on_under_attack(seed: int) -> None:
    async def scenario(simulation: Simulation) -> None:
        async with (
            SimCluster(simulation, bookies=3, config=small) as cluster,
            trio.open_nursery() as nursery,
        ):
            for number in range(4):
                rng = random.Random(f"{seed} {number}")
                # One speaks the protocol, and may have half of the connections.
                kinds = (b"\0", _BEGUN) if number else (_VALID, _VALID + _BEGUN, _BATCHES)
                nursery.start_soon(attack, cluster, f"attacker-{number}", rng, kinds)
            await trio.sleep(2)
            async with (
                cluster.client("writer") as client,
                client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2) as writer,
            ):
                for number in range(ENTRIES):
                    await writer.append(number.to_bytes(4, "big") * 100)
                    await trio.sleep(0.05)
                ledger_id = writer.ledger_id
            async with (
                cluster.client("reader") as client,
                client.open_ledger(ledger_id) as reader,
            ):
                entries = await reader.read(0, ENTRIES - 1)
                assert [bytes(entry.payload[:4]) for entry in entries] == [
                    number.to_bytes(4, "big") for number in range(ENTRIES)
                ]
            nursery.cancel_scope.cancel()

    run_simulated(scenario, seed, time_limit_s=600)
