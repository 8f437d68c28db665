"""Peers that send batch reads and read no reply: what is held for them stays within its limit."""

from __future__ import annotations

import os

import pytest
import trio

from ledger.errors import Status
from ledger.wire import v2
from ledger.wire.messages import BatchReadRequest, BatchReadResponse, Request
from tests.attacks.attackers import Attacker, memory_grows_by_at_most, neighbor
from tests.attacks.clusters import OWNER, TENANT, TENANTS, VICTIM, append, newest_ledger

pytestmark = pytest.mark.system

MIB = 1 << 20


@pytest.mark.parametrize(
    ("attacker", "peers", "requests"),
    [
        ("open", 12, 450),
        pytest.param("open", 150, 300, marks=pytest.mark.slow),
        ("in clear", 12, 450),
        ("anonymous", 12, 450),
        ("tenant", 12, 450),
        pytest.param("tenant", 100, 300, marks=pytest.mark.slow),
    ],
    indirect=["attacker"],
)
async def test_replies_that_nobody_reads_are_bounded(
    attacker: Attacker, peers: int, requests: int
) -> None:
    """A tenant reads what it may; the others read what is the victim's."""
    target, stream = attacker.target, f"unread-{attacker.kind.replace(' ', '-')}-{peers}"
    is_tenant = attacker.kind == "tenant"
    name, user = (TENANTS, TENANT) if is_tenant else (VICTIM, OWNER)
    async with target.namespace(name, user) as its:
        await append(its, stream, [os.urandom(MIB) for _ in range(8)])
        number = (await newest_ledger(its, stream)).ledger_id
    async with target.namespace() as namespace:
        await append(namespace, stream, [os.urandom(MIB) for _ in range(2)])
        own = (await newest_ledger(namespace, stream)).ledger_id
        flood = v2.encode_request(Request(2, 0, BatchReadRequest(number, 0, 0, 5 * MIB)))
        with memory_grows_by_at_most(target, 1, 60 * MIB):
            async with attacker.flood(1, peers, flood * requests):
                with trio.fail_after(60):
                    async with neighbor(target, 1) as connection:
                        wanted = BatchReadRequest(own, 0, 2, 5 * MIB)
                        answer = await connection.call(wanted, 50)
                    assert isinstance(answer, BatchReadResponse)
                    assert answer.status is Status.OK
                    await append(namespace, stream, [b"during"])
