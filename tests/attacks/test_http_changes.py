"""PUT state/readonly at each bookie's HTTP port, which would stop all appends."""

from __future__ import annotations

from http.client import HTTPConnection, HTTPException

import pytest

from tests.attacks.attackers import Attacker, attackers
from tests.attacks.clusters import OPERATOR, append

pytestmark = pytest.mark.system

CHANGE = "PUT", "/api/v1/bookie/state/readonly"


@attackers("anonymous", "tenant", "insider")
async def test_a_bookie_is_made_read_only_by_its_operators_alone(attacker: Attacker) -> None:
    target = attacker.target
    expected = 401 if attacker.user is None else 403
    for bookie in target.bookies:
        for wanted in (b'{"readOnly": true}', b'{"readOnly": false}'):
            assert target.http(bookie, *CHANGE, attacker.user, wanted)[0] == expected
        report = target.http(bookie, "GET", "/api/v1/bookie/state/readonly", OPERATOR)
        assert report == (200, b'{"readOnly":false}')
    async with target.namespace() as namespace:
        await append(namespace, f"http-{attacker.kind}", [b"a"])


@attackers("in clear")
async def test_a_request_in_clear_is_not_answered(attacker: Attacker) -> None:
    address = attacker.target.http_address(1)
    connection = HTTPConnection(*address, timeout=30)
    connection.request(*CHANGE, b'{"readOnly": true}')
    with pytest.raises((HTTPException, OSError)):
        connection.getresponse()
    connection.close()


@attackers("anonymous")
async def test_operators_still_may(attacker: Attacker) -> None:
    for state in (b"true", b"false"):
        body = b'{"readOnly": %s}' % state
        assert attacker.target.http(3, *CHANGE, OPERATOR, body)[0] == 200
