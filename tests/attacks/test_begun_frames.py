"""Connections that announce a large frame, send a few bytes of it and wait: they take no memory."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest

from ledger.errors import Status
from ledger.wire import v2
from ledger.wire.messages import ReadRequest
from tests.attacks.attackers import Attacker, memory_grows_by_at_most, neighbor
from tests.attacks.clusters import append, newest_ledger
from tests.stream.whole_streams import read_values

pytestmark = pytest.mark.system

MIB = 1 << 20
BEGUN = struct.pack(">iI", 5 * MIB, v2.ADD_HEADER) + bytes(8)


@pytest.mark.parametrize(
    ("attacker", "count"),
    [
        ("open", 150),
        pytest.param("open", 900, marks=pytest.mark.slow),
        ("in clear", 150),
        pytest.param("in clear", 900, marks=pytest.mark.slow),
        ("anonymous", 60),
        ("tenant", 60),
    ],
    indirect=["attacker"],
)
async def test_announced_frames_take_no_memory(attacker: Attacker, count: int) -> None:
    target, stream = attacker.target, f"begun-{attacker.kind.replace(' ', '-')}-{count}"
    async with target.namespace() as namespace, neighbor(target, 1) as other:
        await append(namespace, stream, [b"before"])
        request = ReadRequest((await newest_ledger(namespace, stream)).ledger_id, 0)
        assert (await other.call(request, 30)).status is Status.OK
        with memory_grows_by_at_most(target, 1, 100 * MIB):
            async with attacker.flood(1, count, BEGUN[:4]) as held:
                # One byte at a time: the bookie receives again after it knows the length.
                for sent in BEGUN[4:]:
                    assert (await other.call(request, 30)).status is Status.OK
                    for transport in held:
                        with suppress(OSError):
                            transport.send(bytes([sent]))
                await append(namespace, stream, [bytes(MIB)] * 4)
        assert len(await read_values(namespace, stream)) == 5
