"""Saying who we are to a bookie that asks: the AUTH exchange, first thing on a connection.

Apache's plugins are pairs of a name and a conversation in bytes; ours is the client's side. A
bookie that asks for nothing says so and counts us in. Never goes on after a refusal, and never
shows a payload in an error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from ledger.errors import (
    BookieUnavailable,
    LedgerError,
    RemoteProtocolError,
    Status,
    Unauthorized,
)
from ledger.runtime.network import Transport
from ledger.wire import v2, v3
from ledger.wire.connection import ReceiveBuffer
from ledger.wire.messages import AuthRequest, AuthResponse, ErrorResponse, Request

AUTH_DISABLED_PLUGIN = "AuthDisabledPlugin"
"""Plugin name in the answer of a bookie that asks nobody who he is."""

_ROUNDS_MAX = 32

Result = TypeVar("Result")


class AuthExchange(Protocol):
    """One conversation with one bookie, over one connection."""

    def first_payload(self) -> bytes:
        """What to say first; may be empty."""
        ...

    def answer(self, challenge: bytes) -> bytes | None:
        """What to say to the bookie's `challenge`; None once it has let us in.

        Raises Unauthorized to stop: the bookie refused, or is not to be trusted.
        """
        ...


class AuthProvider(Protocol):
    """Who we are, as a plugin of Apache's understands it. Given to `LedgerClient`."""

    @property
    def plugin(self) -> str:
        """The name of the bookies' plugin (`getPluginName` there), e.g. "sasl"."""
        ...

    def begin(self, bookie: str) -> AuthExchange:
        """A new conversation with `bookie`. Called once per connection."""
        ...


async def authenticate(
    transport: Transport, bookie: str, version: int, provider: AuthProvider
) -> None:
    """Returns when `bookie` takes requests over `transport`, which carries nothing else yet.

    Raises Unauthorized if it refuses us; RemoteProtocolError, BookieUnavailable, OSError. The
    caller bounds the time.
    """
    wire = _Wire(transport, bookie, version, provider.plugin)
    exchange = wire.ask_ours(partial(provider.begin, bookie))
    payload = wire.ask_ours(exchange.first_payload)
    for _ in range(_ROUNDS_MAX):
        answer = await wire.say(AuthRequest(provider.plugin, payload))
        if answer.plugin == AUTH_DISABLED_PLUGIN:
            return
        reply = wire.ask_ours(partial(exchange.answer, answer.payload))
        if reply is None:
            return
        payload = reply
    raise wire.refused(f"no end after {_ROUNDS_MAX} rounds")


class _Wire:
    def __init__(self, transport: Transport, bookie: str, version: int, plugin: str) -> None:
        self._transport = transport
        self._bookie = bookie
        self._version = version
        self._plugin = plugin
        self._buffer = ReceiveBuffer()
        self._rounds = 0

    def refused(self, why: str) -> LedgerError:
        return Unauthorized(
            f"bookie {self._bookie} refused to authenticate us by plugin {self._plugin!r}: {why}. "
            "Cure: the plugin and the credentials it is configured with"
        )

    def ask_ours(self, step: Callable[[], Result]) -> Result:
        """A step of the provider, whose own failure must not end the client."""
        try:
            return step()
        except LedgerError:
            raise
        except Exception as error:
            # The type alone: the text might tell a secret.
            raise Unauthorized(
                f"cannot authenticate to bookie {self._bookie} by plugin {self._plugin!r}: the "
                f"AuthProvider failed with {type(error).__name__}"
            ) from error

    def _ended(self, why: str) -> LedgerError:
        """v2 has no code for a refusal: the connection is closed instead."""
        if self._version == 3:
            return BookieUnavailable(f"bookie {self._bookie}, while it authenticates us: {why}")
        return self.refused(why)

    async def say(self, request: AuthRequest) -> AuthResponse:
        self._rounds += 1
        codec = v3 if self._version == 3 else v2
        message = Request(self._version, self._rounds, request)
        await self._send(memoryview(codec.encode_request(message)))
        answer = codec.decode_response(await self._receive()).body
        if isinstance(answer, AuthResponse | ErrorResponse) and answer.status is not Status.OK:
            raise self.refused(answer.status.name)
        if not isinstance(answer, AuthResponse):
            raise RemoteProtocolError(
                f"bookie {self._bookie} answered AUTH with {type(answer).__name__}"
            )
        return answer

    async def _send(self, data: memoryview) -> None:
        while data:
            try:
                data = data[self._transport.send(data) :]
            except BlockingIOError:
                await self._transport.wait_writable()

    async def _receive(self) -> memoryview:
        buffer = self._buffer
        while (frame := buffer.next_frame()) is None:
            await self._transport.wait_readable()
            try:
                count = self._transport.recv_into(buffer.space())
            except BlockingIOError:
                continue
            except OSError as error:
                raise self._ended(f"it broke the connection ({error})") from error
            if count == 0:
                raise self._ended("it closed the connection")
            buffer.received(count)
        if buffer.start != buffer.end:
            raise RemoteProtocolError(
                f"bookie {self._bookie} said more than AUTH was answered with"
            )
        return frame
