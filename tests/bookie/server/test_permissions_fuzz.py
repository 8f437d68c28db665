"""A client with valid rights to namespace `a`, which knows the protocol, the keys and all ids of
`b`, learns and changes nothing of `b`. PERMISSION_REQUESTS sets how many requests it sends."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import trio

from bookie.core.operations import HTTP_OPERATIONS, WIRE_OPERATIONS, operation_of
from bookie.monitoring.http import serve_http
from bookie.monitoring.snapshot import Observer
from bookie.storage.bookie_storage import BookieStorage
from ledger.connection.connection import BookieConnection
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
from tests.bookie.monitoring.test_http import Client
from tests.bookie.server.permitted_cluster import (
    connection_of,
    named_users,
    named_users_over_http,
    permitted_cluster,
)
from tests.bookie.server.test_server import KEY
from tests.effort import scaled

pytestmark = pytest.mark.usefixtures(named_users.__name__, named_users_over_http.__name__)

REQUESTS = int(os.environ.get("PERMISSION_REQUESTS", scaled(ci=10_000, night=1_000_000)))
BATCH = 500
"""Requests in one piece; of these, in another one, HTTP_BATCH over HTTP."""
HTTP_BATCH = 2
SECRET = b"B-SECRET"
GRANTS = (
    Grant("alice", Role.MANAGE, "a"),
    Grant("bob", Role.WRITE, "b"),
    Grant("root", Role.ADMIN),
)
OF_A, OF_B, OF_NONE, MISSING = range(100, 110), range(200, 210), range(300, 303), range(400, 403)
OF_ALICE = range(120, 130)
"""Ledgers of `a` that alice does not fence, but writes."""
OF_BOB = 220
"""A ledger of `b` that is written meanwhile."""
LEDGERS: dict[int, str | None] = (
    dict.fromkeys((*OF_A, *OF_ALICE), "a")
    | dict.fromkeys((*OF_B, OF_BOB), "b")
    | dict.fromkeys(OF_NONE)
)
ENTRIES = 5
DIGEST = Digest(DigestType.CRC32C)
WITH_SECRETS = (*OF_B, OF_BOB, *OF_NONE)
REFUSALS = (Status.BAD_REQUEST, Status.BAD_VERSION)
"""Of frames that are no requests, whatever their ledger is."""


def entry(ledger_id: int, entry_id: int, payload: bytes) -> bytes:
    return b"".join(DIGEST.encode_entry(ledger_id, entry_id, entry_id - 1, 1, payload))


def add(ledger_id: int, entry_id: int, payload: bytes, *, is_recovery: bool = False) -> AddRequest:
    body = entry(ledger_id, entry_id, payload)
    return AddRequest(ledger_id, entry_id, KEY, body, is_recovery=is_recovery)


async def frames_from(stream: trio.SocketStream) -> AsyncGenerator[bytes]:
    """Yields frames until the other end closes the connection."""
    received = ReceiveBuffer()
    while data := await stream.receive_some(1 << 16):
        assert SECRET not in data
        while data:
            space = received.space()
            taken = min(len(space), len(data))
            space[:taken] = data[:taken]
            received.received(taken)
            data = data[taken:]
            while (frame := received.next_frame()) is not None:
                yield bytes(frame)


class Alice:
    """What the tenant of `a` sends, and the answers."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.sent: Counter[tuple[int, str]] = Counter()
        """Requests by version and operation."""
        self.answers: Counter[Status] = Counter()
        self.http: Counter[int] = Counter()
        """Answers over HTTP by status."""
        self.bobs_next = 0
        """The entry that bob adds next."""
        self._added = 0

    def drawn(self, version: int) -> list[RequestBody]:
        """Returns valid requests for ledgers of any namespace, mostly of `b`."""
        bodies: list[RequestBody] = []
        while len(bodies) < BATCH:
            bodies += self._run() if self.rng.random() < 0.02 else [self._one(version)]
        for body in bodies:
            self.sent[version, operation_of(body).name] += 1
        return bodies

    def _run(self) -> list[RequestBody]:
        """Returns adds to a ledger of `a` that are taken without a look at each, with some to one
        of `b` among them."""
        mine, theirs = self.rng.choice(OF_ALICE), self.rng.choice(WITH_SECRETS)
        run: list[RequestBody] = []
        for _ in range(10):
            self._added += 1
            run.append(add(mine, self._added, b"of alice"))
        run.insert(self.rng.randrange(10), add(theirs, self._entry(theirs), b"of alice"))
        return run

    def _entry(self, ledger_id: int) -> int:
        if ledger_id == OF_BOB:
            return self.bobs_next + self.rng.randrange(-1, 3)
        return self.rng.choice([-1, 0, 1, ENTRIES - 1, ENTRIES, 10**12])

    def _one(self, version: int) -> RequestBody:
        rng = self.rng
        ledgers = rng.choice([OF_A, OF_B, OF_B, OF_B, OF_NONE, MISSING, (OF_BOB,)])
        ledger_id = rng.choice(ledgers)
        entry_id = self._entry(ledger_id)
        is_fencing = rng.random() < 0.3
        key = KEY if is_fencing else None
        kind = rng.randrange(3 if version == 2 else 8)
        if kind == 0:
            is_recovery = rng.random() < 0.5
            return add(ledger_id, max(entry_id, 0), b"of alice", is_recovery=is_recovery)
        if kind == 1:
            return ReadRequest(ledger_id, entry_id, key, is_fencing=is_fencing)
        if version == 2:
            return BatchReadRequest(ledger_id, entry_id, 10, 9999, key, is_fencing=is_fencing)
        if kind == 2:
            return ReadRequest(ledger_id, -1, previous_lac=-1, timeout_ms=1, is_piggyback=True)
        only_v3: list[RequestBody] = [
            WriteLacRequest(ledger_id, 3, KEY, DIGEST.encode_lac(ledger_id, 3)),
            ReadLacRequest(ledger_id),
            ForceLedgerRequest(ledger_id),
            ListEntriesRequest(ledger_id),
            GetBookieInfoRequest(3),
        ]
        return only_v3[kind - 3]

    async def attack(self, address: tuple[str, int], version: int) -> int:
        """Sends a batch in one piece; returns the number of responses that were checked."""
        rng, codec = self.rng, v3 if version == 3 else v2
        first = AuthRequest("named-by-the-test", b"alice")
        # The last one is refused as soon as all before it were looked at.
        last = ReadRequest(MISSING[0], 0)
        bodies = [first, *self.drawn(version), last]
        requests = [Request(version, n, b) for n, b in enumerate(bodies)]
        frames: list[Any] = [codec.encode_request(one) for one in requests]
        is_spoiled = rng.random() < 0.25
        if is_spoiled:
            for number in rng.sample(range(1, len(frames) - 1), 5):
                spoiled = bytearray(frames[number])
                spoiled[rng.randrange(4, len(spoiled))] ^= 1 << rng.randrange(8)
                frames[number] = spoiled
        answers = len(frames)
        async with await trio.open_tcp_stream(*address) as stream:
            try:
                await stream.send_all(b"".join(frames))
                with trio.fail_after(60):
                    answers = await self._check_all(stream, codec, len(frames), is_spoiled)
            except trio.BrokenResourceError:
                assert is_spoiled  # the bookie has closed the connection
        assert is_spoiled or answers == len(frames)
        return answers

    async def _check_all(
        self, stream: trio.SocketStream, codec: Any, wanted: int, is_spoiled: bool
    ) -> int:
        """Returns the number of responses that came."""
        answers = 0
        async with aclosing(frames_from(stream)) as frames:
            async for frame in frames:
                answers += 1
                number = self._check(codec, frame, is_spoiled=is_spoiled)
                if answers == wanted:
                    break
                if is_spoiled and number == wanted - 1:
                    await stream.send_eof()  # others may never be answered
        return answers

    def _check(self, codec: Any, frame: bytes, *, is_spoiled: bool) -> int:
        """Checks that a response says nothing of ledgers not of `a`; returns its number."""
        assert SECRET not in frame
        try:
            response = codec.decode_response(frame)
        except ProtocolError:
            assert is_spoiled, frame
            return -1
        body: ResponseBody = response.body
        self.answers[body.status] += 1
        if is_spoiled and body.status in REFUSALS:
            return int(response.txn_id)
        if isinstance(body, GetBookieInfoResponse):
            assert (body.status, body.total_bytes) == (Status.UNAUTHORIZED, None)
        if getattr(body, "ledger_id", OF_A[0]) not in (*OF_A, *OF_ALICE):
            assert body.status is Status.UNAUTHORIZED, body
            if isinstance(body, ReadResponse):
                assert (body.body, body.max_lac, body.lac_update_ms) == (None, None, None)
            elif isinstance(body, BatchReadResponse):
                assert body.bodies == ()
            elif isinstance(body, ReadLacResponse):
                assert (body.lac_body, body.last_entry_body) == (None, None)
            elif isinstance(body, ListEntriesResponse):
                assert body.availability is None
        return int(response.txn_id)

    async def attack_http(self, client: Client) -> None:
        """Sends a request over HTTP, which shows nothing but whether the bookie is well."""
        rng = self.rng
        one = rng.choice(HTTP_OPERATIONS)
        method = rng.choice([one.method, one.method, "HEAD", "PUT", "POST"])
        spelling = [one.path, f"{one.path}?ledger_id={rng.choice(OF_B)}", f"/.{one.path}"]
        path = rng.choice([*spelling, one.path.replace("api", "%61pi"), f"{one.path}/"])
        body = rng.choice([b"", b'{"readOnly": true}', b'{"force": true}', b"nope"])
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-User: alice\r\n"
        answer = await client.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        status = int(answer.split(b" ", 2)[1])
        self.http[status] += 1
        assert SECRET not in answer
        assert status in (307, 403, 404, 405) or one.needs is None, answer


async def seen(storage: BookieStorage) -> dict[int, tuple[object, ...]]:
    """Returns all that a bookie has of the ledgers that are not of `a`: state, ids, bytes."""
    found: dict[int, tuple[object, ...]] = {}
    for ledger_id in WITH_SECRETS:
        state = storage.state(ledger_id)
        assert state is not None
        held = (await storage.entries_held(ledger_id)).encode()
        last = storage.last_entry_id(ledger_id)
        entries = [bytes(await storage.read(ledger_id, one)) for one in range(last + 1)]
        names = ("master_key", "is_fenced", "is_limbo", "is_removed", "is_leaving", "is_deleted")
        named = tuple(getattr(state, name) for name in (*names, "end", "explicit_lac"))
        found[ledger_id] = (named, held, last, entries)
    assert not [one for one in MISSING if storage.state(one) is not None]
    return found


async def fill(root: BookieConnection) -> None:
    """Adds what alice must not learn."""
    for ledger_id in (*OF_B, *OF_NONE):
        for entry_id in range(ENTRIES):
            answer = await root.call(add(ledger_id, entry_id, SECRET * 10), 5.0)
            assert answer.status is Status.OK


async def test_a_tenant_learns_and_changes_nothing_of_another(tmp_path: Path) -> None:
    alice = Alice(random.Random(1))
    async with (
        permitted_cluster(tmp_path, GRANTS, LEDGERS) as (cluster, _),
        connection_of(cluster, "bob", 2) as bob,
        connection_of(cluster, "root", 3) as root,
        trio.open_nursery() as nursery,
    ):
        await fill(root)
        await root.call(WriteLacRequest(OF_B[0], 2, KEY, DIGEST.encode_lac(OF_B[0], 2)), 5.0)
        await work(bob, alice)
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        observer = Observer(cluster.bookies[0], cluster.disks[0])
        nursery.start_soon(serve_http, listeners, observer)
        client = Client(listeners[0].socket.getsockname())
        storage = cluster.bookies[0].storage
        assert storage is not None
        before = await seen(storage)
        checked = 0
        for number in range(REQUESTS // BATCH):
            checked += await alice.attack(cluster.bookies[0].address, 2 + number % 2)
            for _ in range(HTTP_BATCH):
                await alice.attack_http(client)
            await work(bob, alice)
        print("alice sent", dict(alice.sent), dict(alice.http), "and got", dict(alice.answers))
        assert checked > REQUESTS * 0.5
        assert len(alice.sent) == sum(len(one.versions) for one in WIRE_OPERATIONS) - 3
        after = await seen(storage)
        bobs = after.pop(OF_BOB), before.pop(OF_BOB)
        assert after == before
        assert bobs[0][0] == bobs[1][0]
        written = [entry(OF_BOB, one, SECRET) for one in range(alice.bobs_next)]
        assert bobs[0][3] == written
        nursery.cancel_scope.cancel()
        # And what was written to disks is the same.
        await cluster.stop(0)
        await cluster.start(0)
        storage = cluster.bookies[0].storage
        assert storage is not None
        again = await seen(storage)
        assert again.pop(OF_BOB)[3] == written
        assert again == after


async def work(bob: BookieConnection, alice: Alice) -> None:
    """Adds and reads an entry of `b` as its user."""
    added = await bob.call(add(OF_BOB, alice.bobs_next, SECRET), 30.0)
    assert added.status is Status.OK
    alice.bobs_next += 1
    mine = await bob.call(ReadRequest(alice.rng.choice(OF_B), 0), 30.0)
    assert isinstance(mine, ReadResponse)
    assert mine.body == entry(mine.ledger_id, 0, SECRET * 10)
