"""More connections than a bookie takes, over which nothing comes: others are served."""

from __future__ import annotations

import pytest
import trio

from ledger.errors import Status
from ledger.wire import v2
from ledger.wire.messages import ReadRequest, Request
from tests.attacks.attackers import SOURCES, Attacker, neighbor
from tests.attacks.clusters import CONNECTIONS_MAX, append, newest_ledger

pytestmark = pytest.mark.system


async def others_are_served(attacker: Attacker, stream: str, **flood: object) -> None:
    async with attacker.target.namespace() as namespace:
        await append(namespace, stream, [b"before"])
        ledger = await newest_ledger(namespace, stream)
        async with attacker.flood(1, **flood):  # type: ignore[arg-type]
            for _ in range(3):
                with trio.fail_after(20):
                    async with neighbor(attacker.target, 1) as connection:
                        answer = await connection.call(ReadRequest(ledger.ledger_id, 0), 10)
                assert answer.status is Status.OK
                async with attacker.target.namespace() as again:
                    await append(again, stream, [b"during"])


@pytest.mark.parametrize(
    ("attacker", "count"),
    [
        ("open", 2 * CONNECTIONS_MAX),
        pytest.param("open", 1000, marks=pytest.mark.slow),
        ("in clear", 2 * CONNECTIONS_MAX),
        pytest.param("in clear", 1000, marks=pytest.mark.slow),
        ("anonymous", CONNECTIONS_MAX + 10),
        ("tenant", CONNECTIONS_MAX + 10),
    ],
    indirect=["attacker"],
)
async def test_silent_connections_keep_nobody_out(attacker: Attacker, count: int) -> None:
    stream = f"silent-{attacker.kind.replace(' ', '-')}-{count}"
    await others_are_served(attacker, stream, count=count)


@pytest.mark.parametrize("attacker", ["in clear", "anonymous", "tenant"], indirect=True)
async def test_nor_do_those_whose_request_was_refused(attacker: Attacker) -> None:
    """What is refused proves nothing, so that these connections are replaced, too."""
    stream = f"refused-{attacker.kind.replace(' ', '-')}"
    async with attacker.target.namespace() as namespace:
        await append(namespace, stream, [b"a"])
        ledger = await newest_ledger(namespace, stream)
    read = v2.encode_request(Request(2, 0, ReadRequest(ledger.ledger_id, 0)))
    await others_are_served(attacker, stream, count=CONNECTIONS_MAX + 10, data=read)


@pytest.mark.parametrize("attacker", ["open", "insider"], indirect=True)
async def test_one_address_has_its_share_whatever_it_sends(attacker: Attacker) -> None:
    stream = f"share-{attacker.kind}"
    async with attacker.target.namespace() as namespace:
        await append(namespace, stream, [b"a"])
        ledger = await newest_ledger(namespace, stream)
    read = v2.encode_request(Request(2, 0, ReadRequest(ledger.ledger_id, 0)))
    await others_are_served(
        attacker, stream, count=CONNECTIONS_MAX + 10, data=read, sources=SOURCES[:1]
    )
