"""What Apache's bookies send to a client that encrypts, and what they do not answer."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from ledger.connection.authentication import AuthProvider
from ledger.connection.connection import BookieConnection
from ledger.connection.encryption import ClientTls
from ledger.errors import BookieUnavailable, Status, Unauthorized
from ledger.options import ClientOptions
from ledger.proto import bookkeeper_protocol_pb2 as pb
from ledger.runtime.network import TcpNetwork, Transport
from ledger.wire import v2, v3
from ledger.wire.connection import is_version_3
from ledger.wire.messages import (
    AuthRequest,
    AuthResponse,
    ErrorResponse,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
    StartTlsRequest,
    StartTlsResponse,
)
from tests.certificates import Authority
from tests.ledger.connection.test_authentication import Friend

VERSIONS = pytest.mark.parametrize("version", [2, 3])


async def next_request(stream: trio.abc.ReceiveStream) -> Request | None:
    """Returns the next request, None at the end."""
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        received = await stream.receive_some(1)
        if not received:
            return None
        data += received
    frame = data[4:]
    return v3.decode_request(frame) if is_version_3(frame[0]) else v2.decode_request(frame)


async def encrypting_bookie(context: ssl.SSLContext, stream: trio.SocketStream) -> None:
    """Serves as Apache's bookies with a plugin do: behind the handshake it says that START_TLS has
    failed, because the client has not authenticated yet, and continues."""
    started = await next_request(stream)
    assert started is not None
    assert isinstance(started.body, StartTlsRequest)
    agreed = Response(3, started.txn_id, StartTlsResponse(Status.OK))
    await stream.send_all(v3.encode_response(agreed))
    encrypted = trio.SSLStream(stream, context, server_side=True)
    failed = Response(3, started.txn_id, ErrorResponse(Status.IO_ERROR, pb.START_TLS))
    await encrypted.send_all(v3.encode_response(failed))
    while (request := await next_request(encrypted)) is not None:
        if isinstance(request.body, AuthRequest):
            answer = Response(
                request.version, request.txn_id, AuthResponse(Status.OK, Friend.plugin, b"welcome")
            )
        else:
            assert isinstance(request.body, ReadRequest)
            answer = Response(
                request.version, request.txn_id, ReadResponse(Status.NO_SUCH_LEDGER, 7, 0)
            )
        codec = v3 if request.version == 3 else v2
        await encrypted.send_all(codec.encode_response(answer))


@asynccontextmanager
async def encrypting(
    directory: Path, version: int, provider: AuthProvider | None
) -> AsyncIterator[BookieConnection]:
    """A client's connection to such a bookie."""
    authority = Authority(directory)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.issue("bookie", "127.0.0.1"))
    options = ClientOptions(tls="start_tls", tls_ca_file=str(authority.file))

    async def serve(stream: trio.SocketStream) -> None:
        try:
            await encrypting_bookie(context, stream)
        except trio.BrokenResourceError:
            pass

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        port: int = listeners[0].socket.getsockname()[1]

        async def resolve(_: str) -> tuple[str, int]:
            return "127.0.0.1", port

        connection = BookieConnection(
            f"127.0.0.1:{port}",
            version,
            outbox_bytes_max=1 << 20,
            tls=ClientTls.of(options),
            auth=None if provider is None else lambda: provider,
        )
        nursery.start_soon(connection.run, TcpNetwork(), resolve, 60.0)
        yield connection
        nursery.cancel_scope.cancel()


@VERSIONS
async def test_a_late_error_of_start_tls_is_no_answer(tmp_path: Path, version: int) -> None:
    async with encrypting(tmp_path, version, Friend()) as connection:
        with trio.fail_after(60):
            await connection.wait_connected()
            answer = await connection.call(ReadRequest(7, 0), 60)
        assert answer.status is Status.NO_SUCH_LEDGER


@VERSIONS
async def test_without_credentials_it_says_that_they_are_missing(
    tmp_path: Path, version: int
) -> None:
    async with encrypting(tmp_path, version, None) as connection:
        with trio.fail_after(60):
            while connection.error is None:
                await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Unauthorized, match="requires authentication"):
            await connection.call(ReadRequest(7, 0), 60)


class Silent:
    """A transport to a bookie that takes everything and answers nothing."""

    peer = "silent"
    peer_certificate = None

    def send(self, data: bytes | bytearray | memoryview) -> int:
        return len(data)

    def recv_into(self, buffer: memoryview) -> int:
        raise BlockingIOError

    async def wait_readable(self) -> None:
        await trio.sleep_forever()

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()

    def end_sending(self) -> None: ...

    def close(self) -> None: ...


class SilentNetwork(TcpNetwork):
    async def connect(self, host: str, port: int) -> Transport:
        return Silent()


@pytest.mark.parametrize(
    ("tls", "provider", "missing"),
    [
        ("off", Friend(), "no answer to AUTH by plugin 'test.Friend'.*wrong password.*Cure"),
        ("start_tls", Friend(), "TLS was not agreed on"),
        ("start_tls", None, "TLS was not agreed on"),
    ],
)
async def test_it_says_what_a_silent_bookie_has_not_done(
    autojump_clock: trio.testing.MockClock, tls: str, provider: AuthProvider | None, missing: str
) -> None:
    connection = BookieConnection(
        "b:1",
        3,
        outbox_bytes_max=1 << 20,
        tls=ClientTls.of(ClientOptions(tls=tls)),
        auth=None if provider is None else lambda: provider,
    )

    async def resolve(_: str) -> tuple[str, int]:
        return "b", 1

    await connection.run(SilentNetwork(), resolve, 3.0)
    with pytest.raises(BookieUnavailable, match=f"no connection to bookie b:1 in 3 s: {missing}"):
        await connection.wait_connected()


def test_only_an_error_of_start_tls_is_one() -> None:
    def frame(body: StartTlsResponse | ErrorResponse) -> bytes:
        return v3.encode_response(Response(3, 0, body))[4:]

    assert v3.is_start_tls_error(frame(ErrorResponse(Status.IO_ERROR, pb.START_TLS)))
    others: list[bytes] = [
        frame(StartTlsResponse(Status.OK)),
        frame(ErrorResponse(Status.IO_ERROR, pb.AUTH)),
        v2.encode_response(Response(2, 0, ReadResponse(Status.NO_SUCH_LEDGER, 7, 0)))[4:],
        b"\n",
        b"\n\xff\xff",
        b"",
    ]
    assert not any(map(v3.is_start_tls_error, others))
