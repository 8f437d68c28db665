"""Authenticates a client to a bookie: the AUTH exchange, before anything else on a connection.

One of Apache's plugins is a name and an exchange of byte strings; this is the client's side. A
bookie without authentication says so and accepts the client. It must never continue after a
refusal, and never show a payload in an error.
"""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from ledger.connection.single_frames import receive_frame, send_frame
from ledger.errors import (
    BookieUnavailable,
    InvalidArgument,
    LedgerError,
    RemoteProtocolError,
    Status,
    Unauthorized,
)
from ledger.options import ClientOptions
from ledger.runtime.network import Transport
from ledger.runtime.tls import cause_of
from ledger.wire import v2, v3
from ledger.wire.connection import ReceiveBuffer
from ledger.wire.messages import AuthRequest, AuthResponse, ErrorResponse, Request

AUTH_DISABLED_PLUGIN = "AuthDisabledPlugin"
"""Plugin name in the answer of a bookie that authenticates no clients."""

_ROUNDS_MAX = 32

Result = TypeVar("Result")


class AuthExchange(Protocol):
    """One exchange with one bookie, over one connection."""

    def first_payload(self) -> bytes:
        """Returns the payload to send first; it may be empty."""
        ...

    def answer(self, challenge: bytes) -> bytes | None:
        """Returns the payload that answers the bookie's `challenge`; None once it has accepted us.

        Raises Unauthorized to stop: the bookie refused, or cannot be trusted.
        """
        ...


class AuthProvider(Protocol):
    """The client's identity, for one of Apache's plugins. Given to `LedgerClient`."""

    @property
    def plugin(self) -> str:
        """The name of the bookies' plugin (`getPluginName` there), e.g. "sasl"."""
        ...

    def begin(self, bookie: str) -> AuthExchange:
        """Begins an exchange with `bookie`. Called once per connection."""
        ...


AuthSource = Callable[[], AuthProvider | None]
"""Returns who the client is, for one connection; None: it does not authenticate."""


def auth_source(
    auth: AuthProvider | None, options: ClientOptions, rng: random.Random
) -> AuthSource:
    """Returns who the client is: what its caller provides, or what its options say.

    `rng` draws nonces: in production a `random.SystemRandom`. Raises InvalidArgument if both are
    given, or if a file of credentials cannot be used.
    """
    if options.credentials is None and not options.credentials_file:
        return lambda: auth
    if auth is not None:
        raise InvalidArgument("give auth=, or credentials in the options, not both")
    # Most clients have no use for the mechanisms, and a start should not wait for them.
    from ledger.connection.mechanisms import OwnCredentials

    return OwnCredentials(options, rng)


async def authenticate(
    transport: Transport, bookie: str, version: int, provider: AuthProvider
) -> None:
    """Returns when `bookie` accepts requests over `transport`, which carries nothing else yet.

    Raises Unauthorized if it refuses the client; RemoteProtocolError, BookieUnavailable, OSError.
    The caller bounds the time.
    """
    user = getattr(provider, "user", "")
    wire = _Wire(transport, bookie, version, provider.plugin, user)
    exchange = wire.call_provider(partial(provider.begin, bookie))
    payload = wire.call_provider(exchange.first_payload)
    for _ in range(_ROUNDS_MAX):
        answer = await wire.exchange(AuthRequest(provider.plugin, payload))
        if answer.plugin == AUTH_DISABLED_PLUGIN:
            return
        reply = wire.call_provider(partial(exchange.answer, answer.payload))
        if reply is None:
            return
        payload = reply
    raise wire.refused(f"no end after {_ROUNDS_MAX} rounds")


class _Wire:
    """Sends and receives the AUTH messages of one connection."""

    def __init__(
        self, transport: Transport, bookie: str, version: int, plugin: str, user: str
    ) -> None:
        self._transport = transport
        self._bookie = bookie
        self._version = version
        self._plugin = plugin
        self._user = user
        self._buffer = ReceiveBuffer()
        self._rounds = 0
        self._is_tls_error_due = True

    def refused(self, why: str) -> LedgerError:
        user = f"user {self._user!r}" if self._user else "us"
        is_encrypted = self._transport.peer_certificate is not None
        tls = "" if is_encrypted else "; `tls`, if it requires TLS: this connection has none"
        return Unauthorized(
            f"bookie {self._bookie} refused to authenticate {user} by plugin {self._plugin!r}: "
            f"{why}. Cure: the credentials, if the user's password or token is another one{tls}; "
            "else the plugin, which the bookie must have"
        )

    def call_provider(self, step: Callable[[], Result]) -> Result:
        """Calls the provider, whose own failure must not end the client."""
        try:
            return step()
        except Unauthorized as error:
            raise self.refused(str(error)) from error
        except LedgerError:
            raise
        except Exception as error:
            # The type alone: the text might contain a secret.
            raise Unauthorized(
                f"cannot authenticate to bookie {self._bookie} by plugin {self._plugin!r}: the "
                f"AuthProvider failed with {type(error).__name__}"
            ) from error

    def _ended(self, why: str) -> LedgerError:
        """A closed connection is a refusal in v2, which has no status code for one."""
        if self._version == 3:
            return BookieUnavailable(f"bookie {self._bookie}, while it authenticates us: {why}")
        return self.refused(why)

    async def exchange(self, request: AuthRequest) -> AuthResponse:
        self._rounds += 1
        codec = v3 if self._version == 3 else v2
        message = Request(self._version, self._rounds, request)
        await send_frame(self._transport, codec.encode_request(message))
        answer = codec.decode_response(await self._receive()).body
        if isinstance(answer, AuthResponse | ErrorResponse) and answer.status is not Status.OK:
            raise self.refused(answer.status.name)
        if not isinstance(answer, AuthResponse):
            raise RemoteProtocolError(
                f"bookie {self._bookie} answered AUTH with {type(answer).__name__}"
            )
        return answer

    async def _receive(self) -> memoryview:
        frame = await self._receive_any()
        if self._is_tls_error_due and v3.is_start_tls_error(frame):
            self._is_tls_error_due = False
            frame = await self._receive_any()
        if self._buffer.start != self._buffer.end:
            raise RemoteProtocolError(f"bookie {self._bookie} sent more than its answer to AUTH")
        return frame

    async def _receive_any(self) -> memoryview:
        try:
            frame = await receive_frame(self._transport, self._buffer)
        except ssl.SSLError as error:
            # Of TLS 1.3 the client learns only now that its certificate is not accepted.
            raise BookieUnavailable(
                f"bookie {self._bookie} ended TLS before it authenticated us: {cause_of(error)}. "
                "Cure: if it asks for certificates, one of an authority that it knows"
            ) from error
        except OSError as error:
            raise self._ended(f"it broke the connection ({error})") from error
        if frame is None:
            raise self._ended("it closed the connection")
        return frame
