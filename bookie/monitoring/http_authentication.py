"""Authenticates HTTP requests: bearer tokens, and passwords of users by Basic.

A request without credentials sees nothing but the health of the bookie, unless anonymous clients
are allowed. The user is in the scope of a request, as `principal`; what is permitted to whom is not
decided here. A failure costs the peer what it costs at the bookie's own port.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Collection
from typing import Final

import trio
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from bookie.core.failed_attempts import address_of_peer
from bookie.monitoring.http_bodies import EscapedJson
from bookie.server.authentication import Authenticator, NotEncrypted, TokenVerifier, Unseen
from ledger.core.authentication import scram
from ledger.core.authentication.bearer import bearer_message, token_in
from ledger.core.authentication.names import ANONYMOUS, BASIC, TOKEN, check_user_name
from ledger.errors import InvalidArgument, MetadataUnavailable, Unauthorized

OPEN_PATHS: Final = frozenset({"/heartbeat", "/healthz", "/api/v1/bookie/is_ready"})
"""What a load balancer asks, and which names nothing."""


class Authenticated:
    """Middleware that admits requests with the credentials of a user.

    `find` returns the bookie's authenticator, None while the bookie does not serve yet: then no
    request is admitted. `mechanisms` are those of its settings.
    """

    def __init__(
        self, app: ASGIApp, mechanisms: Collection[str], find: Callable[[], Authenticator | None]
    ) -> None:
        self._app = app
        self._find = find
        self._scram = next((one for one in scram.HASHES if one in mechanisms), None)
        self._schemes = [
            *(["Bearer"] if TOKEN in mechanisms else []),
            *(['Basic realm="bookie", charset="UTF-8"'] if self._scram else []),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        host, port = scope.get("client") or ("", 0)
        authenticator = self._find()
        if authenticator is None:
            starting = EscapedJson({"error": "the bookie does not serve yet"}, 503)
            await starting(scope, receive, send)
            return
        try:
            is_encrypted = scope["scheme"] == "https"
            scope["principal"] = await self._user(
                authenticator, given, f"{host}:{port}", is_encrypted=is_encrypted
            )
        except NotEncrypted as error:
            await self._refusal(str(error))(scope, receive, send)
        except Unauthorized:
            await self._refusal("the credentials are missing or wrong")(scope, receive, send)
        except MetadataUnavailable:
            busy = EscapedJson({"error": "users cannot be looked up now"}, 503)
            await busy(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, why: str) -> Response:
        response = EscapedJson({"error": why}, 401)
        for scheme in self._schemes:
            response.headers.append("WWW-Authenticate", scheme)
        return response

    async def _user(
        self, authenticator: Authenticator, given: list[bytes], peer: str, *, is_encrypted: bool
    ) -> str:
        if not given:
            if authenticator.anonymous_allowed:
                return ANONYMOUS
            raise Unauthorized("no credentials")
        scheme, _, value = given[0].partition(b" ")
        mechanism = {b"bearer": TOKEN, b"basic": BASIC}.get(scheme.lower(), "")
        authenticator.check_encrypted(peer, mechanism, is_encrypted=is_encrypted)
        if len(given) == 1 and mechanism == TOKEN and authenticator.tokens is not None:
            return await _user_of_token(authenticator, authenticator.tokens, value.strip(), peer)
        if len(given) == 1 and mechanism == BASIC and self._scram is not None:
            return await _user_of_password(authenticator, self._scram, value.strip(), peer)
        # The header is not quoted: without a scheme it may be a token.
        on = ", ".join(one.partition(" ")[0] for one in self._schemes) or "none"
        error = Unauthorized(f"the Authorization is not one of a scheme that is on; on are {on}")
        authenticator.unseen(peer, mechanism, "", error)
        raise error


async def _user_of_token(
    authenticator: Authenticator, tokens: TokenVerifier, value: bytes, peer: str
) -> str:
    await authenticator.admit(address_of_peer(peer))
    try:
        token = token_in(bearer_message(value.decode("latin-1")))
        user = tokens.verify(token).user
    except Unauthorized as error:
        authenticator.failed(peer, TOKEN, "", error)
        raise
    authenticator.succeeded(peer, user)
    return user


async def _user_of_password(
    authenticator: Authenticator, mechanism: str, value: bytes, peer: str
) -> str:
    user, address = "", address_of_peer(peer)
    await authenticator.admit(address)
    try:
        user, password = _pair(value)
        verifier, _ = await authenticator.verifier(mechanism, user)
        await authenticator.admit(address, user)
        # It takes 10 ms on purpose, which the bookie's loop must not wait for.
        if not await trio.to_thread.run_sync(scram.matches, mechanism, password, verifier):
            raise Unauthorized("wrong password, or no such user")
    except Unseen:
        raise
    except (Unauthorized, InvalidArgument) as error:
        refused = Unauthorized(str(error))
        authenticator.failed(peer, BASIC, user, refused)
        raise refused from None
    authenticator.succeeded(peer, user)
    return user


def _pair(value: bytes) -> tuple[str, str]:
    """Returns user and password. Raises Unauthorized, InvalidArgument."""
    try:
        user, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise Unauthorized("the header is not one of Basic") from None
    if not colon:
        raise Unauthorized("the header is not one of Basic")
    return check_user_name(user), password
