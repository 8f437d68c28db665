"""One frame that claims a far end of a live ledger, whose writer then dies: nothing ends."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio

from ledger.core.entry import Digest, DigestType, master_key
from ledger.core.metadata import LedgerMetadata
from ledger.errors import Status
from ledger.wire.messages import AddRequest, WriteLacRequest
from tests.attacks.attackers import Attacker
from tests.attacks.clusters import append, newest_ledger
from tests.stream.whole_streams import read_values

pytestmark = pytest.mark.system

FAR = 10**12
VALUES = [b"%d" % number for number in range(8)]
NEAR = len(VALUES) + 1


class _Died(Exception):
    """Ends a writer's block, which leaves its segment open."""


async def claim(attacker: Attacker, ledger: LedgerMetadata, bookie: int, entry_id: int) -> None:
    """Sends an add with a LAC of the entry before it, and that LAC alone."""
    digest = Digest(ledger.digest_type or DigestType.CRC32C, ledger.password)
    number, key = ledger.ledger_id, master_key(ledger.password)
    header, payload = digest.encode_entry(number, entry_id, entry_id - 1, 9, b"forged")
    add = AddRequest(number, entry_id, key, header + bytes(payload))
    lac = WriteLacRequest(number, entry_id - 1, key, digest.encode_lac(number, entry_id - 1))
    expected = {Status.OK} if attacker.may_write else {Status.UNAUTHORIZED, None}
    for version, request in ((2, add), (3, lac)):
        async with attacker.connection(bookie, version) as connection:
            assert await attacker.ask(connection, request) in expected


@pytest.mark.parametrize(
    ("attacker", "bookies", "entry_id"),
    [
        ("open", 1, FAR),
        ("open", 3, FAR),
        ("open", 1, NEAR),
        ("open", 3, NEAR),
        ("in clear", 3, FAR),
        ("anonymous", 3, FAR),
        ("tenant", 3, FAR),
        ("insider", 3, FAR),
        ("insider", 3, NEAR),
    ],
    indirect=["attacker"],
)
async def test_a_forged_frame_neither_moves_an_end_nor_stops_a_takeover(
    attacker: Attacker, bookies: int, entry_id: int
) -> None:
    stream = f"claimed-{attacker.kind.replace(' ', '-')}-{bookies}-{entry_id}"
    with trio.fail_after(60):
        async with attacker.target.namespace() as namespace:
            with suppress(_Died):
                async with namespace.writer(stream, create=True) as writer:
                    for value in VALUES:
                        await writer.append(value)
                    ledger = await newest_ledger(namespace, stream)
                    for bookie in range(1, bookies + 1):
                        await claim(attacker, ledger, bookie, entry_id)
                    raise _Died
            await append(namespace, stream, [b"after"])
            closed = await namespace.client.ledger_metadata(ledger.ledger_id)
            assert (closed.is_closed, closed.last_entry_id) == (True, len(VALUES) - 1)
            assert await read_values(namespace, stream) == [*VALUES, b"after"]
            assert (await namespace.verify(stream)).lost_entries == 0
            info = await namespace.info(stream)
            assert info.next_sequence == len(VALUES) + 1
