"""TCP transports keep their promises when a connection ends while it is used."""

from __future__ import annotations

import socket

import pytest
import trio

from ledger.errors import BookieUnavailable
from ledger.runtime.network import TcpNetwork, TcpTransport


async def test_waits_on_a_closed_transport_raise() -> None:
    left, right = socket.socketpair()
    with right:
        transport = TcpTransport(left)
        transport.close()
        for _ in range(2):
            with pytest.raises(trio.ClosedResourceError):
                await transport.wait_readable()
            with pytest.raises(trio.ClosedResourceError):
                await transport.wait_writable()
        transport.close()  # a second close does nothing


async def test_a_socket_connected_to_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that connects repeatedly to a free port of its own machine gets such a socket."""
    with socket.socket() as echo:
        echo.bind(("127.0.0.1", 0))
        host, port = echo.getsockname()
        echo.connect((host, port))
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(echo))

        async def open_tcp_stream(*_: object) -> trio.SocketStream:
            await trio.lowlevel.checkpoint()
            return stream

        monkeypatch.setattr(trio, "open_tcp_stream", open_tcp_stream)
        with pytest.raises(BookieUnavailable, match="nothing listens there"):
            await TcpNetwork().connect(host, port)
    with socket.create_server((host, port)) as bookie:
        assert bookie.getsockname() == (host, port), "the port must be free at once"
