"""The HTTP server of a bookie: Hypercorn serves `bookie.monitoring.http_app` within limits.

It serves up to 32 connections at a time, one request on each, within 20 s. Further ones take the
place of those that have sent no whole request (`bookie.core.peers`). An error of one connection is
logged and must never affect another one or the bookie. The libraries are loaded with
the first connection, so that a bookie without one starts sooner and takes less memory.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import trio

from bookie.core.peers import Peer, PeerLimits, Peers, address_of
from bookie.server.ended_connections import EndedConnections
from ledger.errors import InvalidArgument
from ledger.runtime.logs import OF_PEER

if TYPE_CHECKING:
    from bookie.monitoring.snapshot import Observer
    from ledger.runtime.certificates import TlsContext

_log = logging.getLogger(__name__)

CONNECTIONS_MAX = 32
CONNECTIONS_PER_PEER_MAX = 24
REQUEST_S_MAX = 20.0
_REQUEST_HEAD_BYTES_MAX = 16 * 1024
SILENCE_S_MAX = 10
COLLECTED_EVERY = 2000
"""Connections, of which each leaves 20 KB at most, which Hypercorn does not free."""

Serve = Callable[["HttpStream", Callable[[], None]], Awaitable[None]]
"""Serves one connection; calls its second argument when the head of a request has come."""


async def open_http(host: str, port: int) -> list[trio.SocketListener]:
    """Listens on the port; connections wait until `serve_http`. Port 0 is off: returns an empty
    list.

    Raises InvalidArgument if the address cannot be used.
    """
    if port == 0:
        return []
    try:
        return await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        raise InvalidArgument(
            f"cannot listen for HTTP on {host}:{port}: {error}. Cure: stop the process that listens"
            " there, or change http_port"
        ) from error


async def serve_http(
    listeners: list[trio.SocketListener], observer: Observer, tls: TlsContext | None = None
) -> None:
    """Serves until cancelled, over TLS alone if `tls` is given. Errors of clients and handlers are
    never raised."""
    if listeners:
        await HttpServer(listeners, observer, tls).run()


class HttpServer:
    """Accepts connections, and closes each in time."""

    def __init__(
        self,
        listeners: list[trio.SocketListener],
        observer: Observer,
        tls: TlsContext | None = None,
    ) -> None:
        self._listeners = listeners
        self._tls = tls
        self._observer = observer
        self._peers = Peers(
            PeerLimits(connections_max=CONNECTIONS_MAX, per_peer_max=CONNECTIONS_PER_PEER_MAX)
        )
        self._streams: dict[Peer, trio.SocketStream] = {}
        self._ended = EndedConnections(COLLECTED_EVERY)
        self._serve: Serve | None = None
        self._loading = trio.Lock()

    async def run(self) -> None:
        await trio.serve_listeners(self._connected, self._listeners)

    async def _connected(self, stream: trio.SocketStream) -> None:
        peer = self._admit(stream)
        if peer is None:
            await trio.aclose_forcefully(stream)
            return
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_close_in_time, stream, nursery.cancel_scope)
                serve = await self._loaded()
                over = await self._encrypted(stream)
                if over is not None:
                    await serve(over, lambda: self._peers.prove(peer))
                nursery.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - a request must never end the bookie
            if stream.socket.fileno() >= 0:  # else it took too long, or was replaced
                _log.error("http connection failed cause=%r", error, extra=OF_PEER)
        finally:
            self._peers.leave(peer)
            del self._streams[peer]
            self._ended.count()
            await trio.aclose_forcefully(stream)

    def _admit(self, stream: trio.SocketStream) -> Peer | None:
        try:
            host, port = stream.socket.getpeername()[:2]
        except OSError:
            return None  # reset already
        admission = self._peers.admit(address_of(f"{host}:{port}"), trio.current_time())
        if admission.leaves is not None:
            self._streams[admission.leaves].socket.close()
        if admission.peer is not None:
            self._streams[admission.peer] = stream
        return admission.peer

    async def _encrypted(self, stream: trio.SocketStream) -> HttpStream | None:
        """Returns what carries HTTP over `stream`, None if the handshake of TLS failed."""
        if self._tls is None:
            return _Unending(stream)
        host, port = stream.socket.getpeername()[:2]
        over = trio.SSLStream(stream, self._tls.current(), server_side=True, https_compatible=True)
        try:
            with trio.fail_after(SILENCE_S_MAX):
                await over.do_handshake()
        except trio.TooSlowError:
            cause = f"it took longer than {SILENCE_S_MAX} s"
        except trio.BrokenResourceError as error:
            cause = _cause_of(error)
        else:
            return over
        peer = f"{host}:{port}"
        _log.warning("tls handshake failed peer=%s cause=%s", peer, cause, extra=OF_PEER)
        audit = self._observer.bookie.audit
        if audit is not None:
            audit.refused("authenticate", "refused", peer=peer, mechanism="TLS", cause=cause)
        return None

    async def _loaded(self) -> Serve:
        async with self._loading:
            if self._serve is None:
                self._serve = await trio.to_thread.run_sync(
                    load, self._observer, self._listeners[0].socket.getsockname()[0]
                )
            return self._serve


def _cause_of(error: trio.BrokenResourceError) -> str:
    from ledger.runtime.tls import cause_of

    below = error.__cause__
    return cause_of(below if isinstance(below, Exception) else error)


async def _close_in_time(stream: trio.SocketStream, serving: trio.CancelScope) -> None:
    """Closes the socket after the time limit: Hypercorn shields its sends, so that only this ends
    one that the client does not read. Then ends what does not use the socket."""
    try:
        await trio.sleep(REQUEST_S_MAX)
    finally:
        stream.socket.close()
        serving.cancel()


class _Unending:
    """A stream without `send_eof`. Hypercorn calls it before it closes a stream, even while an
    answer is being sent, which then fails as if the bookie had a bug."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.socket = stream.socket
        self.send_all, self.receive_some = stream.send_all, stream.receive_some
        self.aclose = stream.aclose


HttpStream = _Unending | trio.SSLStream[trio.SocketStream]


def _mark(record: logging.LogRecord) -> bool:
    record.__dict__.update(OF_PEER)
    return True


async def _stay_with_http_1(*_: object) -> None:
    """Takes the place of Hypercorn's switch to HTTP/2, which is not bounded as HTTP/1.1 is: one
    connection may have any number of requests, whose answers wait in memory."""


def load(observer: Observer, host: str) -> Serve:
    """Imports the libraries; returns the function that serves one connection. `host` is the bound
    address."""
    from hypercorn.config import Config
    from hypercorn.protocol.h11 import H11Protocol
    from hypercorn.trio.tcp_server import TCPServer
    from hypercorn.trio.worker_context import WorkerContext
    from hypercorn.typing import ConnectionState
    from hypercorn.utils import wrap_app
    from prometheus_client import CollectorRegistry

    from bookie.monitoring.http_app import BookieHttp
    from bookie.monitoring.http_bodies import BODY_BYTES_MAX

    H11Protocol._check_protocol = _stay_with_http_1  # type: ignore[method-assign,assignment]
    errors = logging.getLogger(f"{__name__}.hypercorn")
    errors.addFilter(_mark)
    config = Config()
    config.errorlog = errors
    config.accesslog = None
    config.include_server_header = False
    config.h11_max_incomplete_size = _REQUEST_HEAD_BYTES_MAX
    config.keep_alive_timeout = config.read_timeout = SILENCE_S_MAX
    config.keep_alive_max_requests = 1
    config.ssl_handshake_timeout = SILENCE_S_MAX
    app = BookieHttp(observer, CollectorRegistry()).app(
        is_loopback=ipaddress.ip_address(host).is_loopback
    )
    wrapped = wrap_app(app, BODY_BYTES_MAX, "asgi")  # type: ignore[arg-type]
    context = WorkerContext(None)

    async def serve(stream: HttpStream, on_request: Callable[[], None]) -> None:
        async def noticed(*call: Any) -> None:
            on_request()
            await wrapped(*call)

        server = TCPServer(noticed, config, context, ConnectionState({}), stream)  # type: ignore[arg-type]
        await server.run()

    return serve


def http_address(
    listeners: list[trio.SocketListener], advertised_host: str
) -> tuple[str, int] | None:
    """Returns the address for the registration. `advertised_host` replaces a wildcard address."""
    if not listeners:
        return None
    host, port = listeners[0].socket.getsockname()[:2]
    return (advertised_host if ipaddress.ip_address(host).is_unspecified else host), port
