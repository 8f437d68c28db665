"""A client begins to authenticate in clear, behind its request to start TLS, as Apache's do.

What came in clear may have been written by another one, so that only what says nothing may count.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from bookie.standalone.cluster import free_ports
from ledger.core.authentication.digest_md5 import DigestMd5Client
from ledger.core.authentication.names import DIGEST_MD5
from ledger.errors import Status
from ledger.metastore.memory import MemoryStore
from ledger.metastore.users import UserStore
from ledger.wire import v2, v3
from ledger.wire.messages import (
    AddResponse,
    AuthRequest,
    AuthResponse,
    ReadRequest,
    Request,
    RequestBody,
    ResponseBody,
    StartTlsRequest,
    StartTlsResponse,
)
from tests.bookie.server.test_authentication import ANN, VERSIONS
from tests.bookie.server.test_server import add
from tests.bookie.server.test_tls import encrypted_cluster, receive
from tests.certificates import Authority
from tests.real_cluster import RealCluster

SPLIT = pytest.mark.parametrize("is_split", [False, True], ids=["joined", "split"])
TLS = v3.encode_request(Request(3, 1, StartTlsRequest()))
FIRST = AuthRequest("sasl", b"")
"""How Apache's client of DIGEST-MD5 begins."""


def encoded(version: int, body: RequestBody) -> bytes:
    codec = v3 if version == 3 else v2
    return bytes(codec.encode_request(Request(version, 2, body)))


async def answer(stream: trio.abc.ReceiveStream, version: int) -> ResponseBody:
    frame = await receive(stream)
    response = v3.decode_response(frame) if version == 3 else v2.decode_response(frame)
    return response.body


@asynccontextmanager
async def bookie(
    authority: Authority, *mechanisms: str, **settings: Any
) -> AsyncIterator[RealCluster]:
    """A bookie that requires TLS, and knows the user ann."""
    wanted: dict[str, Any] = {"tls_required": True, "authentication_mechanisms": mechanisms}
    async with encrypted_cluster(authority, **{**wanted, **settings}) as cluster:
        async with MemoryStore(cluster.tree, lambda: 0) as store:
            await UserStore(store).create(ANN)
        yield cluster


async def begin(stream: trio.SocketStream, early: bytes, *, is_split: bool) -> None:
    """Asks for TLS, and sends `early` in clear: at once, or behind the reply and byte by byte."""
    await stream.send_all(TLS if is_split else TLS + early)
    assert await answer(stream, 3) == StartTlsResponse(Status.OK)
    for number in range(len(early) if is_split else 0):
        await stream.send_all(early[number : number + 1])
        await trio.testing.wait_all_tasks_blocked()


async def encrypt(
    stream: trio.SocketStream, authority: Authority
) -> trio.SSLStream[trio.SocketStream]:
    """Returns the stream with TLS, after the handshake."""
    context = ssl.create_default_context(cafile=authority.file)
    encrypted = trio.SSLStream(stream, context, server_hostname="127.0.0.1")
    with trio.fail_after(60):
        await encrypted.do_handshake()
    return encrypted


async def assert_left(stream: trio.SocketStream) -> None:
    """Checks that the bookie closes the connection, and says nothing more in clear but an alert."""
    with trio.fail_after(60), contextlib.suppress(trio.BrokenResourceError):
        async for data in stream:
            assert data[:1] == b"\x15"


@VERSIONS
@SPLIT
async def test_an_exchange_begun_in_clear_goes_on_encrypted(
    tmp_path: Path, version: int, is_split: bool
) -> None:
    authority = Authority(tmp_path)
    async with (
        bookie(authority, DIGEST_MD5) as cluster,
        await trio.open_tcp_stream(*cluster.bookies[0].address) as stream,
    ):
        await begin(stream, encoded(version, FIRST), is_split=is_split)
        encrypted = await encrypt(stream, authority)
        challenge = await answer(encrypted, version)
        assert isinstance(challenge, AuthResponse)
        client = DigestMd5Client("ann", "swordfish", "cnonce")
        proof = AuthRequest("sasl", client.respond(challenge.payload))
        await encrypted.send_all(encoded(version, proof))
        proved = await answer(encrypted, version)
        assert isinstance(proved, AuthResponse)
        client.check(proved.payload)
        await encrypted.send_all(encoded(version, add(7, 0)))
        added = await answer(encrypted, version)
        assert isinstance(added, AddResponse)
        assert added.status is Status.OK


@VERSIONS
@SPLIT
async def test_without_authentication_any_plugin_is_answered(
    tmp_path: Path, version: int, is_split: bool
) -> None:
    """The payload of the plugin is ignored."""
    authority = Authority(tmp_path)
    async with (
        bookie(authority) as cluster,
        await trio.open_tcp_stream(*cluster.bookies[0].address) as stream,
    ):
        early = encoded(version, AuthRequest("org.example.Tokens", b"token"))
        await begin(stream, early, is_split=is_split)
        encrypted = await encrypt(stream, authority)
        answered = await answer(encrypted, version)
        assert answered == AuthResponse(Status.OK, "AuthDisabledPlugin", b"")
        await encrypted.send_all(encoded(version, add(7, 0)))
        assert (await answer(encrypted, version)).status is Status.OK


@VERSIONS
@SPLIT
@pytest.mark.parametrize(
    "early",
    [AuthRequest("SCRAM-SHA-256", b"n,,n=ann,r=abcdefghijklmnop"), AuthRequest("sasl", b"x")],
    ids=lambda early: early.plugin,
)
async def test_nobody_is_believed_for_what_came_in_clear(
    tmp_path: Path, version: int, is_split: bool, early: AuthRequest
) -> None:
    authority = Authority(tmp_path)
    async with (
        bookie(authority, DIGEST_MD5, "SCRAM-SHA-256") as cluster,
        await trio.open_tcp_stream(*cluster.bookies[0].address) as stream,
    ):
        await begin(stream, encoded(version, early), is_split=is_split)
        with contextlib.suppress(trio.BrokenResourceError):
            await encrypt(stream, authority)
        await assert_left(stream)


@pytest.mark.parametrize(
    "early",
    [
        encoded(2, add(7, 0)),
        encoded(3, add(7, 0)),
        encoded(2, ReadRequest(7, 0)),
        TLS,
        encoded(2, FIRST) * 2,
        encoded(2, FIRST) + encoded(2, add(7, 0)),
        bytes(4),
        bytes(8),
        b"\0\0\0\4\0\0",
        b"\0\x40\0\0",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=lambda early: f"{early[:20].hex()}-{len(early)}",
)
@SPLIT
async def test_nothing_else_in_clear_is_understood(
    tmp_path: Path, is_split: bool, early: bytes
) -> None:
    authority = Authority(tmp_path)
    async with (
        bookie(authority, DIGEST_MD5) as cluster,
        await trio.open_tcp_stream(*cluster.bookies[0].address) as stream,
    ):
        with contextlib.suppress(trio.BrokenResourceError):
            await begin(stream, early, is_split=is_split)
            await stream.send_eof()
        await assert_left(stream)
        storage = cluster.bookies[0].storage
        assert storage is not None
        assert storage.state(7) is None


async def test_a_port_with_tls_from_the_first_byte_has_nothing_before(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    (port,) = free_ports(1)
    async with (
        bookie(authority, DIGEST_MD5, tls_port=port),
        await trio.open_tcp_stream("127.0.0.1", port) as stream,
    ):
        await stream.send_all(encoded(2, FIRST))
        await assert_left(stream)


async def test_a_peer_that_begins_and_says_no_more_is_disconnected(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with bookie(authority, DIGEST_MD5, tls_handshake_ms_max=50) as cluster:
        for early in (b"\0", encoded(2, FIRST)[:-1], encoded(2, FIRST)):
            async with await trio.open_tcp_stream(*cluster.bookies[0].address) as stream:
                await begin(stream, early, is_split=False)
                await assert_left(stream)
        server = cluster.bookies[0].server
        assert server is not None
        assert server.statistics().tls.handshakes_failed == 3
