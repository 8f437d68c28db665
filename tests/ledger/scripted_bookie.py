"""A bookie on real sockets whose responses a test scripts, including those that ours never send.

It uses the real codecs of both wire versions, keeps entries in a dict, and calls `script` with
every request first.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from ledger.client import LedgerClient
from ledger.connection.authentication import AuthProvider
from ledger.core.availability import EntriesHeld
from ledger.errors import RemoteProtocolError, Status
from ledger.metastore.bookies import BookieInfo, encode_info
from ledger.metastore.memory import MemoryStore, MemoryTree
from ledger.options import ClientOptions
from ledger.runtime.network import TcpNetwork
from ledger.wire import v2, v3
from ledger.wire.connection import is_version_3
from ledger.wire.messages import (
    AddRequest,
    AddResponse,
    BatchReadRequest,
    BatchReadResponse,
    ForceLedgerRequest,
    ForceLedgerResponse,
    GetBookieInfoRequest,
    GetBookieInfoResponse,
    ListEntriesRequest,
    ListEntriesResponse,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
    ResponseBody,
    WriteLacRequest,
    WriteLacResponse,
)


class Hangup(Exception):
    """Raised by a script to make the bookie close the connection."""


class Silence(Exception):
    """Raised by a script to make the bookie answer nothing to this request."""


Script = Callable[[Request], ResponseBody | None]
"""Returns a response, or None for that of an ordinary bookie; may raise Hangup or Silence."""


def answers_no_lists(request: Request) -> ResponseBody | None:
    """Answers nothing to a request for a list of entries, as Apache's DbLedgerStorage does."""
    if isinstance(request.body, ListEntriesRequest):
        raise Silence
    return None


@dataclass
class ScriptedBookie:
    name: str
    entries: dict[tuple[int, int], bytes] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    requests_of: dict[int, list[Request]] = field(default_factory=dict)
    """The requests of each connection, by its number from 1."""
    script: Script = lambda request: None
    hold: Callable[[Request], trio.Event | None] = lambda request: None
    """An event to wait for before a request of a connection, and all later ones, are read."""

    def answer(self, request: Request) -> ResponseBody:
        self.requests.append(request)
        answer = self.script(request)
        return self.ordinary(request) if answer is None else answer

    def ordinary(self, request: Request) -> ResponseBody:
        match request.body:
            case AddRequest(ledger_id, entry_id):
                self.entries[ledger_id, entry_id] = bytes(request.body.body)
                return AddResponse(Status.OK, ledger_id, entry_id, entry_id)
            case ReadRequest(ledger_id, entry_id):
                held = [e for i, e in self.entries if i == ledger_id]
                wanted = max(held, default=-1) if entry_id == -1 else entry_id
                body = self.entries.get((ledger_id, wanted))
                status = Status.NO_SUCH_ENTRY if body is None else Status.OK
                return ReadResponse(status, ledger_id, entry_id, body)
            case BatchReadRequest(ledger_id, first, count):
                bodies: list[bytes] = []
                while (ledger_id, first + len(bodies)) in self.entries:
                    if 0 < count <= len(bodies):
                        break
                    bodies.append(self.entries[ledger_id, first + len(bodies)])
                status = Status.OK if bodies else Status.NO_SUCH_ENTRY
                return BatchReadResponse(status, ledger_id, first, tuple(bodies))
            case WriteLacRequest(ledger_id):
                return WriteLacResponse(Status.OK, ledger_id)
            case ReadLacRequest(ledger_id):
                held = [e for i, e in self.entries if i == ledger_id]
                if not held:
                    return ReadLacResponse(Status.NO_SUCH_ENTRY, ledger_id)
                last = self.entries[ledger_id, max(held)]
                return ReadLacResponse(Status.OK, ledger_id, None, last)
            case ForceLedgerRequest(ledger_id):
                return ForceLedgerResponse(Status.OK, ledger_id)
            case ListEntriesRequest(ledger_id):
                listed = EntriesHeld()
                for entry_id in sorted(e for i, e in self.entries if i == ledger_id):
                    listed.add(entry_id, entry_id)
                return ListEntriesResponse(Status.OK, ledger_id, listed.encode())
            case GetBookieInfoRequest():
                return GetBookieInfoResponse(Status.OK, 1000, 400)
        raise Hangup

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        asked = self.requests_of[self.connections] = []
        buffer = b""
        with trio.CancelScope():
            async with stream:
                try:
                    async for chunk in stream:
                        buffer += chunk
                        while len(buffer) >= 4:
                            end = 4 + int.from_bytes(buffer[:4], "big")
                            if len(buffer) < end:
                                break
                            frame, buffer = buffer[4:end], buffer[end:]
                            codec = v3 if is_version_3(frame[0]) else v2
                            request = codec.decode_request(frame)
                            if (held := self.hold(request)) is not None:
                                await held.wait()
                            asked.append(request)
                            try:
                                body = self.answer(request)
                            except Silence:
                                continue
                            response = Response(request.version, request.txn_id, body)
                            await stream.send_all(codec.encode_response(response))
                except (Hangup, RemoteProtocolError, trio.BrokenResourceError):
                    return  # the client may be meant for an earlier owner of the port


@dataclass
class ScriptedCluster:
    bookies: dict[str, ScriptedBookie]
    tree: MemoryTree

    def bookie(self, name: str) -> ScriptedBookie:
        return self.bookies[name]

    @asynccontextmanager
    async def client(
        self, auth: AuthProvider | None = None, **options: object
    ) -> AsyncIterator[LedgerClient]:
        async with (
            MemoryStore(self.tree, lambda: 0) as store,
            LedgerClient(
                store,
                TcpNetwork(),
                rng=random.Random(3),
                now_ms=lambda: 0,
                options=ClientOptions(**options),  # type: ignore[arg-type]
                auth=auth,
            ) as client,
        ):
            yield client


@asynccontextmanager
async def scripted_cluster(
    bookies: int = 3, properties: dict[str, str] | None = None
) -> AsyncIterator[ScriptedCluster]:
    """Starts bookies b0, b1, ... on ports of their own."""
    tree = MemoryTree()
    cluster = ScriptedCluster({}, tree)
    async with MemoryStore(tree, lambda: 0) as store, trio.open_nursery() as nursery:
        for i in range(bookies):
            bookie = ScriptedBookie(f"b{i}")
            listeners: list[trio.SocketListener] = await nursery.start(
                trio.serve_tcp, bookie.serve, 0
            )
            port = listeners[0].socket.getsockname()[1]
            info = encode_info(BookieInfo("127.0.0.1", port, properties or {}))
            await store.create(f"/ledgers/available/{bookie.name}", info)
            cluster.bookies[bookie.name] = bookie
        yield cluster
        nursery.cancel_scope.cancel()
