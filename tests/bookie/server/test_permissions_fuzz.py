"""A client with valid rights to namespace `a`, which knows the protocol, the keys and all ids of
`b`, learns and changes nothing of `b`. PERMISSION_REQUESTS sets how many requests it sends."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import trio

from ledger.core.entry import Digest, DigestType
from ledger.core.permissions import Grant, Role
from ledger.errors import ProtocolError, Status
from ledger.wire import v2, v3
from ledger.wire.connection import ReceiveBuffer
from ledger.wire.messages import (
    AddRequest,
    AuthRequest,
    BatchReadRequest,
    BatchReadResponse,
    ForceLedgerRequest,
    GetBookieInfoRequest,
    GetBookieInfoResponse,
    ListEntriesRequest,
    ListEntriesResponse,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Request,
    RequestBody,
    ResponseBody,
    WriteLacRequest,
)
from tests.bookie.server.permitted_cluster import connection_of, named_users, permitted_cluster
from tests.bookie.server.test_server import KEY
from tests.effort import scaled

pytestmark = pytest.mark.usefixtures(named_users.__name__)

REQUESTS = int(os.environ.get("PERMISSION_REQUESTS", scaled(ci=10_000, night=200_000)))
BATCH = 100
SECRET = b"B-SECRET"
GRANTS = (
    Grant("alice", Role.MANAGE, "a"),
    Grant("bob", Role.WRITE, "b"),
    Grant("root", Role.ADMIN),
)
OF_A, OF_B, OF_NONE, MISSING = range(100, 110), range(200, 210), range(300, 303), range(400, 403)
LEDGERS: dict[int, str | None] = (
    dict.fromkeys(OF_A, "a") | dict.fromkeys(OF_B, "b") | dict.fromkeys(OF_NONE)
)
ENTRIES = 5
DIGEST = Digest(DigestType.CRC32C)


def entry(ledger_id: int, entry_id: int, payload: bytes) -> bytes:
    return b"".join(DIGEST.encode_entry(ledger_id, entry_id, entry_id - 1, 1, payload))


def add(ledger_id: int, entry_id: int, payload: bytes, *, is_recovery: bool = False) -> AddRequest:
    body = entry(ledger_id, entry_id, payload)
    return AddRequest(ledger_id, entry_id, KEY, body, is_recovery=is_recovery)


def drawn(rng: random.Random, version: int) -> RequestBody:
    """Returns a valid request for a ledger of any namespace, mostly of `b`."""
    ledger_id = rng.choice(rng.choice([OF_A, OF_B, OF_B, OF_B, OF_NONE, MISSING]))
    entry_id = rng.choice([-1, 0, 1, ENTRIES - 1, ENTRIES, 10**12])
    is_fencing = rng.random() < 0.3
    key = KEY if is_fencing else None
    bodies: list[RequestBody] = [
        add(ledger_id, max(entry_id, 0), b"of alice", is_recovery=rng.random() < 0.5),
        ReadRequest(ledger_id, entry_id, key, is_fencing=is_fencing),
    ]
    if version == 2:
        bodies.append(BatchReadRequest(ledger_id, entry_id, 10, 9999, key, is_fencing=is_fencing))
    else:
        bodies += [
            ReadRequest(ledger_id, -1, previous_lac=-1, timeout_ms=1, is_piggyback=True),
            WriteLacRequest(ledger_id, 3, KEY, DIGEST.encode_lac(ledger_id, 3)),
            ReadLacRequest(ledger_id),
            ForceLedgerRequest(ledger_id),
            ListEntriesRequest(ledger_id),
            GetBookieInfoRequest(3),
        ]
    return rng.choice(bodies)


def check(body: ResponseBody) -> None:
    """Checks that a response says nothing about ledgers that are not of `a`."""
    if isinstance(body, GetBookieInfoResponse):
        assert (body.status, body.total_bytes) == (Status.UNAUTHORIZED, None)
    ledger_id = getattr(body, "ledger_id", OF_A[0])
    if ledger_id in OF_A:
        return
    # A frame that is no request is refused as that, whatever its ledger is.
    assert body.status in (Status.UNAUTHORIZED, Status.BAD_REQUEST, Status.BAD_VERSION), body
    if isinstance(body, ReadResponse):
        assert (body.body, body.max_lac, body.lac_update_ms) == (None, None, None)
    elif isinstance(body, BatchReadResponse):
        assert body.bodies == ()
    elif isinstance(body, ReadLacResponse):
        assert (body.lac_body, body.last_entry_body) == (None, None)
    elif isinstance(body, ListEntriesResponse):
        assert body.availability is None


async def attack(address: tuple[str, int], rng: random.Random, version: int) -> int:
    """Sends a batch in one piece as alice; returns the number of responses that were checked."""
    codec = v3 if version == 3 else v2
    bodies = [AuthRequest("named-by-the-test", b"alice")]
    requests = [Request(version, n, b) for n, b in enumerate([*bodies, *_drawn(rng, version)])]
    frames = [bytearray(codec.encode_request(one)) for one in requests]
    is_spoiled = rng.random() < 0.25
    if is_spoiled:
        for spoiled in rng.sample(frames[1:], 5):
            spoiled[rng.randrange(4, len(spoiled))] ^= 1 << rng.randrange(8)
    received = ReceiveBuffer()
    answers = 0
    async with await trio.open_tcp_stream(*address) as stream:
        await stream.send_all(b"".join(frames))
        # A spoiled frame may end the connection, or ask for an answer that comes later.
        with trio.move_on_after(0.1) if is_spoiled else trio.fail_after(30):
            while answers < len(frames):
                data = await stream.receive_some(1 << 14)
                if not data:
                    break
                assert SECRET not in data
                received.space()[: len(data)] = data
                received.received(len(data))
                while (frame := received.next_frame()) is not None:
                    answers += 1
                    assert SECRET not in bytes(frame)
                    try:
                        check(codec.decode_response(frame).body)
                    except ProtocolError:
                        assert is_spoiled, bytes(frame)
    assert is_spoiled or answers == len(frames)
    return answers


def _drawn(rng: random.Random, version: int) -> list[RequestBody]:
    return [drawn(rng, version) for _ in range(BATCH)]


async def test_a_tenant_learns_and_changes_nothing_of_another(tmp_path: Path) -> None:
    rng = random.Random(1)
    async with (
        permitted_cluster(tmp_path, GRANTS, LEDGERS) as (cluster, _),
        connection_of(cluster, "bob", 2) as bob,
        connection_of(cluster, "root", 2) as root,
    ):
        for ledger_id in (*OF_B, *OF_NONE):
            for entry_id in range(ENTRIES):
                answer = await root.call(add(ledger_id, entry_id, SECRET * 10), 5.0)
                assert answer.status is Status.OK
        storage = cluster.bookies[0].storage
        assert storage is not None
        checked = 0
        for number in range(REQUESTS // BATCH):
            checked += await attack(cluster.bookies[0].address, rng, 2 + number % 2)
            mine = await bob.call(ReadRequest(rng.choice(OF_B), 0), 5.0)  # bob works beside it
            assert mine.status is Status.OK
        assert checked > REQUESTS * 0.5
        for ledger_id in (*OF_B, *OF_NONE):
            state = storage.state(ledger_id)
            assert state is not None
            assert (state.is_fenced, state.lac, state.explicit_lac) == (False, ENTRIES - 2, None)
            assert storage.last_entry_id(ledger_id) == ENTRIES - 1
            for entry_id in range(ENTRIES):
                read = await root.call(ReadRequest(ledger_id, entry_id), 5.0)
                assert isinstance(read, ReadResponse)
                assert read.body == entry(ledger_id, entry_id, SECRET * 10)
        assert not [one for one in MISSING if storage.state(one) is not None]
