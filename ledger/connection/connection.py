"""One connection to one bookie: connecting, sending, receiving, and its end.

Bytes that have gathered are sent in one piece, and responses are processed a whole chunk at a time
(`ledger.connection.responses`). Adds are sent by `send_adds` and acknowledged to an `AckSink` as
runs of entries; everything else is a `call`: one request, one response. Nothing is sent before the
client is authenticated, if the bookie asks for that, nor in clear by a client that encrypts.
Nothing is retried here: the caller decides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import trio

from ledger.connection.authentication import AuthSource, authenticate
from ledger.connection.encryption import ClientTls
from ledger.connection.pending_calls import OnAnswer, PendingCalls
from ledger.connection.responses import AckSink, ResponseReader
from ledger.errors import (
    BookieUnavailable,
    LedgerError,
    OperationTimeout,
    Unauthorized,
)
from ledger.runtime.network import Network, Transport
from ledger.runtime.parking import ParkingSlot
from ledger.wire.connection import ReceiveBuffer
from ledger.wire.messages import (
    AddRequest,
    BatchReadRequest,
    Buffer,
    ReadRequest,
    RequestBody,
    ResponseBody,
)

_JOINED_PIECE_BYTES_MAX = 16 * 1024
_JOINED_BYTES_MAX = 128 * 1024
_POSTED_CALLS_MAX = 10_000

Resolve = Callable[[str], Awaitable[tuple[str, int]]]
"""Host and port of a bookie id."""


@dataclass(frozen=True, slots=True)
class ConnectionStatistics:
    """Counts of one connection since it was opened, and what waits now."""

    sends: int
    receives: int
    bytes_sent: int
    bytes_received: int
    outbox_bytes: int
    calls_waiting: int


class BookieConnection:
    """Lives from `run` until the first failure or `close`; never reused after that.

    Args:
        bookie: id, for messages.
        version: 2 or 3.
        outbox_bytes_max: with more unsent bytes than this the bookie does not keep up; the
            connection is closed, so that a slow bookie never costs unbounded memory.
        tls: encrypts the connection; None: nothing is encrypted.
        auth: who the client is, which it proves right after connecting; None: no AUTH exchange.
    """

    def __init__(
        self,
        bookie: str,
        version: int,
        *,
        outbox_bytes_max: int,
        tls: ClientTls | None = None,
        auth: AuthSource | None = None,
    ) -> None:
        self.bookie = bookie
        self.version = version
        self.outbox_bytes_max = outbox_bytes_max
        self.error: LedgerError | None = None
        self.was_connected = False
        self._transport: Transport | None = None
        self._outbox: deque[Buffer] = deque()
        self._outbox_bytes = 0
        self._sender = ParkingSlot()
        self._auth = auth
        self._tls = tls
        self._missing = ""
        """What the bookie has not done yet, for the error if there is no connection in time."""
        self._calls = PendingCalls(version)
        self._responses = ResponseReader(bookie, self._calls)
        self.sinks: dict[int, AckSink] = self._responses.sinks
        self._settled = trio.Event()
        self._scope = trio.CancelScope()
        self._sends = self._receives = self._bytes_sent = self._bytes_received = 0

    @property
    def bytes_received(self) -> int:
        """Bytes received so far: shows whether the peer is alive when a response is missing."""
        return self._bytes_received

    async def wait_connected(self) -> None:
        """Returns once requests can be sent; raises BookieUnavailable if connecting failed."""
        await self._settled.wait()
        if self.error is not None:
            raise lost(self.error)

    # ---- sending

    def send_adds(self, frames: Buffer) -> None:
        """Queues whole ADD frames; their acks go to `sinks[ledger id]`."""
        self._send(frames)

    def _send(self, data: Buffer) -> None:
        if self.error is not None:
            return  # the sinks were notified and the calls failed already
        if self._transport is not None and not self._outbox:
            try:
                sent = self._transport.send(data)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self._fail(BookieUnavailable(f"connection to bookie {self.bookie} broke: {error}"))
                return
            self._sends += 1
            self._bytes_sent += sent
            if sent == len(data):
                return
            self._outbox.append(memoryview(data)[sent:])
            self._outbox_bytes += len(data) - sent
        else:
            self._outbox.append(data)
            self._outbox_bytes += len(data)
        if self._outbox_bytes > self.outbox_bytes_max and self._outbox_bytes > (
            # Unconfirmed bytes of writers do not count: their windows bound them.
            self.outbox_bytes_max + sum(sink.bytes_pending for sink in self.sinks.values())
        ):
            self._fail(
                BookieUnavailable(
                    f"bookie {self.bookie} does not keep up: {self._outbox_bytes} bytes wait to "
                    f"be sent, allowed are {self.outbox_bytes_max}"
                )
            )
            return
        self._sender.unpark()

    async def _run_sender(self, transport: Transport) -> None:
        outbox = self._outbox
        while True:
            if not outbox:
                await self._sender.park()
                continue
            await transport.wait_writable()
            while outbox:
                if len(outbox) > 1 and len(outbox[0]) < _JOINED_PIECE_BYTES_MAX:
                    self._join_outbox()
                data = outbox[0]
                try:
                    sent = transport.send(data)
                except BlockingIOError:
                    break
                self._sends += 1
                self._bytes_sent += sent
                self._outbox_bytes -= sent
                if sent < len(data):
                    outbox[0] = memoryview(data)[sent:]
                    break
                outbox.popleft()

    def _join_outbox(self) -> None:
        """Joins small pieces at the front; large ones are never copied again."""
        pieces: list[Buffer] = []
        size = 0
        outbox = self._outbox
        while outbox and len(outbox[0]) < _JOINED_PIECE_BYTES_MAX and size < _JOINED_BYTES_MAX:
            pieces.append(outbox.popleft())
            size += len(pieces[-1])
        outbox.appendleft(b"".join(pieces))

    # ---- calls

    async def call(self, body: RequestBody, timeout_s: float) -> ResponseBody:
        """Sends one request and returns its response.

        Raises BookieUnavailable if the connection is lost, OperationTimeout after `timeout_s`
        seconds: then the request may or may not have been carried out.
        """
        if self.error is not None:
            raise lost(self.error)
        call, data = self._calls.begin(body)
        self._send(data)
        if self.error is not None:
            raise BookieUnavailable(str(self.error))
        received = self._bytes_received
        with trio.move_on_after(timeout_s):
            return await self._calls.wait(call)
        if self._bytes_received == received:
            # No byte in all that time: the peer is gone, and the network did not report it.
            self.close(BookieUnavailable(f"bookie {self.bookie} is silent for {timeout_s:g} s"))
        raise OperationTimeout(
            f"no answer from bookie {self.bookie} to {type(body).__name__} in {timeout_s:g} s; "
            "outcome unknown"
        )

    def post(self, body: RequestBody, on_answer: OnAnswer) -> None:
        """Sends one request; no task waits, `on_answer` is called with the response or None."""
        self.post_many([(body, on_answer)])

    def post_many(
        self, requests: Sequence[tuple[RequestBody, OnAnswer]], *, keeps_views: bool = True
    ) -> None:
        """Sends requests like `post`, in one piece. `keeps_views`: see `PendingCall`."""
        if self.error is not None or self._calls.waiting + len(requests) > _POSTED_CALLS_MAX:
            for _, on_answer in requests:
                on_answer(None)
            return
        frames: list[bytes] = []
        for body, on_answer in requests:
            call, data = self._calls.begin(body)
            call.on_answer, call.keeps_views = on_answer, keeps_views
            frames.append(data)
        self._send(b"".join(frames))

    # ---- receiving

    async def run(self, network: Network, resolve: Resolve, connect_timeout_s: float) -> None:
        """Connects and serves until the connection fails or `close`. It never raises for a fault
        of the network or the peer: callers and sinks are notified instead."""
        try:
            with self._scope:
                with trio.fail_after(connect_timeout_s):
                    host, port = await resolve(self.bookie)
                    transport = await self._open(await network.connect(host, port), host)
                try:
                    await self._serve(transport)
                finally:
                    transport.close()
        except trio.TooSlowError:
            self._fail(
                BookieUnavailable(
                    f"no connection to bookie {self.bookie} in {connect_timeout_s:g} s"
                    f"{self._missing}"
                )
            )
        except LedgerError as error:
            self._fail(error)
        except (OSError, trio.ClosedResourceError) as error:
            self._fail(BookieUnavailable(f"connection to bookie {self.bookie} broke: {error}"))
        finally:
            self._transport = None
            self._fail(BookieUnavailable(f"connection to bookie {self.bookie} was closed"))

    async def _open(self, transport: Transport, host: str) -> Transport:
        """Returns a transport over which the bookie accepts requests."""
        try:
            if self._tls is not None:
                self._missing = ": TLS was not agreed on"
                transport = await self._tls.encrypt(transport, self.bookie, host)
            provider = None if self._auth is None else self._auth()
            if provider is not None:
                self._missing = (
                    f": no answer to AUTH by plugin {provider.plugin!r}. One of Apache's bookies "
                    "gives none to a wrong password. Cure: look at the credentials, and at the "
                    "bookie"
                )
                await authenticate(transport, self.bookie, self.version, provider)
        except BaseException:
            transport.close()
            raise
        return transport

    async def _serve(self, transport: Transport) -> None:
        self._transport = transport
        self.was_connected = True
        self._settled.set()
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                nonlocal failure
                try:
                    await self._run_sender(transport)
                except (OSError, trio.ClosedResourceError) as error:
                    failure = error
                    nursery.cancel_scope.cancel()

            nursery.start_soon(send)
            try:
                await self._receive(transport)
            except (OSError, trio.ClosedResourceError, LedgerError) as error:
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _receive(self, transport: Transport) -> None:
        buffer = ReceiveBuffer()
        take = self._responses.take_v3 if self.version == 3 else self._responses.take_v2
        while True:
            await transport.wait_readable()
            try:
                count = transport.recv_into(buffer.space())
            except BlockingIOError:
                continue
            if count == 0:
                raise BookieUnavailable(f"bookie {self.bookie} closed the connection")
            self._receives += 1
            self._bytes_received += count
            buffer.received(count)
            take(buffer)

    # ---- end

    def _fail(self, error: LedgerError) -> None:
        """Fails all calls, notifies all sinks and ends `run`. Only the first failure counts."""
        if self.error is not None:
            return
        self.error = error
        self._settled.set()
        self._outbox.clear()
        self._outbox_bytes = 0
        self._calls.fail_all(lambda: lost(error))
        sinks = list(self.sinks.values())
        self.sinks.clear()
        for sink in sinks:
            sink.lost(self.bookie, error)
        self._scope.cancel()

    def close(self, reason: LedgerError) -> None:
        """Ends the connection; everything that waits fails with BookieUnavailable for `reason`."""
        self._fail(reason)

    def statistics(self) -> ConnectionStatistics:
        return ConnectionStatistics(
            sends=self._sends,
            receives=self._receives,
            bytes_sent=self._bytes_sent,
            bytes_received=self._bytes_received,
            outbox_bytes=self._outbox_bytes,
            calls_waiting=self._calls.waiting,
        )


def lost(error: LedgerError) -> LedgerError:
    """Returns a new error to raise for a connection that ended by `error`."""
    kind = Unauthorized if isinstance(error, Unauthorized) else BookieUnavailable
    return kind(str(error))


def version_for(body: RequestBody) -> int:
    """Returns the wire version in which a request is sent, unless all are sent over v3."""
    if isinstance(body, ReadRequest):
        # v2 has no request id: the response to a plain read of the same entry would be taken for
        # that of the fencing read, before the fence is durable.
        is_long_poll = body.previous_lac is not None or body.is_piggyback
        return 3 if is_long_poll or body.is_fencing else 2
    if isinstance(body, BatchReadRequest):
        return 2
    if isinstance(body, AddRequest):
        # Nor does v2 distinguish a recovery's add from that of a writer of this client.
        return 3 if body.is_deferred_sync or body.is_recovery else 2
    return 3
