"""The network interface: non-blocking transports, and their implementation for TCP.

A transport is deliberately thin: `send` and `recv_into` never wait, so that the hot paths process
a whole chunk of bytes between two waits and copy nothing. The simulator implements the same
protocol (`bookie.testing.network`). docs/adr/0002 says why it is not trio's Stream.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

import trio

from ledger.errors import BookieUnavailable


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """The names in a peer's certificate, which was verified: an authority that we trust signed it,
    and the peer has its key."""

    common_name: str = ""
    organizational_units: tuple[str, ...] = ()
    dns_names: tuple[str, ...] = ()
    ip_addresses: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()
    emails: tuple[str, ...] = ()
    expires_at_s: float = field(default=0.0, compare=False)
    """When the certificate ends, in seconds since 1970; 0 if that is not known."""


class Transport(Protocol):
    """One connection. In each direction only one task at a time may call its methods."""

    @property
    def peer(self) -> str:
        """Address of the peer, for messages and logs."""
        ...

    @property
    def peer_certificate(self) -> PeerCertificate | None:
        """The certificate that the peer proved to own; None without TLS, and if it sent none."""
        ...

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Returns how many bytes were accepted, at least 1. Raises BlockingIOError if none can be
        accepted now, OSError if the connection broke. The next send must begin with the bytes that
        were not accepted."""
        ...

    def recv_into(self, buffer: memoryview) -> int:
        """Returns how many bytes were put into `buffer`; 0 at the end of the connection. Raises
        BlockingIOError if none have arrived, OSError if the connection broke."""
        ...

    async def wait_readable(self) -> None:
        """Returns when `recv_into` would not raise BlockingIOError. May return early."""
        ...

    async def wait_writable(self) -> None:
        """Returns when `send` would not raise BlockingIOError. May return early."""
        ...

    def end_sending(self) -> None:
        """Has the peer read the end of the connection after what was sent. Receiving continues, so
        nothing that the peer has not read yet is lost to a reset. Raises OSError."""
        ...

    def close(self) -> None:
        """Closes at once. Waits on this side, also later ones, raise OSError or
        trio.ClosedResourceError."""
        ...


class Listener(Protocol):
    """A listening socket."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to which it is bound."""
        ...

    async def accept(self) -> Transport: ...

    def close(self) -> None: ...


class Network(Protocol):
    """Connects and listens."""

    async def connect(self, host: str, port: int) -> Transport:
        """Raises BookieUnavailable if the peer cannot be reached."""
        ...

    async def listen(self, host: str, port: int) -> Listener:
        """Listens; with port 0 the system chooses one."""
        ...


_SOCKET_BUFFER_BYTES = 1 << 20
_LISTENER_IS_GONE = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)
_ACCEPT_PAUSE_S = 0.1


class TcpTransport:
    """A connected, non-blocking TCP socket."""

    __slots__ = ("_socket", "peer", "recv_into", "send")

    peer_certificate: PeerCertificate | None = None

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        if connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER_BYTES)
        self._socket = connected
        # The socket's own methods: the hot paths pay for no wrapper.
        self.send = connected.send
        self.recv_into = connected.recv_into
        name = connected.getpeername()
        self.peer: str = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)

    # The caller awaits trio's coroutine: another around it would be resumed at each receive, too.

    def wait_readable(self) -> Coroutine[Any, Any, None]:
        return trio.lowlevel.wait_readable(self._open_fd())  # noqa: ASYNC105

    def wait_writable(self) -> Coroutine[Any, Any, None]:
        return trio.lowlevel.wait_writable(self._open_fd())  # noqa: ASYNC105

    def _open_fd(self) -> int:
        # A closed socket has no descriptor: trio would raise a ValueError the first time, and
        # report a busy resource later.
        fd = self._socket.fileno()
        if fd < 0:
            raise trio.ClosedResourceError(f"the connection to {self.peer} was closed")
        return fd

    def end_sending(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


class TcpListener:
    """A listening, non-blocking TCP socket."""

    def __init__(self, listening: socket.socket) -> None:
        self._socket = listening
        name = listening.getsockname()
        self.address: tuple[str, int] = (name[0], name[1])

    async def accept(self) -> Transport:
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                connected, _ = self._socket.accept()
                try:
                    return TcpTransport(connected)
                except OSError:
                    connected.close()  # reset by the peer already
                    continue
            except (BlockingIOError, ConnectionAbortedError):
                continue
            except OSError as error:
                if error.errno in _LISTENER_IS_GONE:
                    raise
                # Out of descriptors or buffers, or a fault of one peer: keep serving.
                await trio.sleep(_ACCEPT_PAUSE_S)

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


def refuse_own_echo(connected: socket.socket) -> None:
    """Raises ConnectionRefusedError if both ends of the connection are this socket.

    A client that connects to an unused port of its own machine may be assigned that very port as
    its source, and TCP then connects the socket to itself. A client that retries long enough runs
    into this. It would keep the server off its port, and for a minute after a normal close.
    """
    if connected.getsockname() == connected.getpeername():
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        raise ConnectionRefusedError(errno.ECONNREFUSED, "nothing listens there")


class TcpNetwork:
    """`Network` over TCP."""

    async def connect(self, host: str, port: int) -> Transport:
        try:
            stream = await trio.open_tcp_stream(host, port)
        except OSError as error:
            raise BookieUnavailable(f"cannot connect to {host}:{port}: {error}") from error
        plain = socket.socket(fileno=stream.socket.detach())
        try:
            refuse_own_echo(plain)
            return TcpTransport(plain)
        except OSError as error:
            plain.close()
            raise BookieUnavailable(f"lost {host}:{port} while connecting: {error}") from error

    async def listen(self, host: str, port: int) -> Listener:
        listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))
            listening.listen(512)
            listening.setblocking(False)
        except OSError:
            listening.close()
            raise
        return TcpListener(listening)
