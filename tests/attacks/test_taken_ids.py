"""Ids of ledgers that are fenced, or get a key, before they are generated: writers continue."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import trio

from ledger.errors import Status
from ledger.wire import v3
from ledger.wire.messages import RequestBody
from tests.attacks.attackers import Attacker
from tests.attacks.clusters import append
from tests.bookie.server.test_master_keys import keyed_add, keyed_fence, keyed_lac
from tests.stream.whole_streams import read_values

pytestmark = pytest.mark.system


def fence(ledger_id: int, key: bytes) -> bytes:
    return keyed_fence(ledger_id, key)


def add(ledger_id: int, key: bytes) -> bytes:
    return keyed_add(ledger_id, key, is_recovery=False)


def recovery_add(ledger_id: int, key: bytes) -> bytes:
    return keyed_add(ledger_id, key, is_recovery=True)


WAYS = (fence, add, recovery_add, keyed_lac)


async def take(attacker: Attacker, bookie: int, ids: Sequence[int]) -> set[Status | None]:
    """Uses each id with a random key, in one of the ways, and returns the answers."""
    answers: set[Status | None] = set()
    rng, turns = random.Random(bookie), trio.CapacityLimiter(1000)

    async def one(request: RequestBody) -> None:
        async with turns:
            answers.add(await attacker.ask(connection, request))

    async with attacker.connection(bookie, 3) as connection, trio.open_nursery() as nursery:
        for ledger_id in ids:
            way = WAYS[ledger_id % len(WAYS)]
            nursery.start_soon(one, v3.decode_request(way(ledger_id, rng.randbytes(20))).body)
    return answers


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("attacker", "count"),
    [
        ("open", 240),
        pytest.param("open", 50_000, marks=SLOW),
        ("in clear", 40),
        ("anonymous", 40),
        ("tenant", 40),  # the bookie looks each of them up
        pytest.param("tenant", 2_000, marks=SLOW),
        ("insider", 40),
    ],
    indirect=["attacker"],
)
async def test_ids_that_are_taken_stop_no_writer(attacker: Attacker, count: int) -> None:
    stream = f"taken-{attacker.kind.replace(' ', '-')}-{count}"
    async with attacker.target.namespace() as namespace:
        first = await namespace.client.ledgers.next_ledger_id() + 1
        for bookie in attacker.target.bookies:
            answers = await take(attacker, bookie, range(first, first + count))
            if attacker.kind == "open":  # without a secret such ids are anybody's
                assert Status.OK in answers
            else:
                assert answers <= {Status.UNAUTHORIZED, None}
        with trio.fail_after(60):
            await append(namespace, stream, [b"a", b"b"])
            assert await read_values(namespace, stream) == [b"a", b"b"]
        ledgers = (await namespace.scope.stream_metadata(stream)).ledgers()
        assert (min(ledgers) >= first + count) == (attacker.kind == "open")
