"""The authentication of one connection: the messages of AUTH, or a certificate, up to a proof.

An attempt that takes too long, or too many messages, costs the connection. A peer must never learn
why it was refused; the log has the reason.
"""

from __future__ import annotations

import math
from typing import Final

import trio

from bookie.core.failed_attempts import address_of_peer
from bookie.core.sessions import Proof
from bookie.server.authentication import Authenticator, Unseen
from ledger.core.authentication import scram
from ledger.core.authentication.bearer import token_in
from ledger.core.authentication.digest_md5 import DigestMd5Server
from ledger.core.authentication.names import (
    ANONYMOUS,
    CERTIFICATE,
    DIGEST_MD5,
    TOKEN,
    check_user_name,
)
from ledger.core.authentication.scram import NO_RESOURCES, ScramServer, ScramVerifier
from ledger.errors import InvalidArgument, MetadataUnavailable, Unauthorized
from ledger.runtime.network import Transport

MESSAGES_MAX: Final = 16
"""Messages of one connection until it is authenticated; then it is closed."""
AUTHENTICATE_S_MAX: Final = 60.0
"""How long a peer may send other things than what authenticates it, the delays after failures
included; then it is closed."""


class AuthSession:
    """The authentication of one connection, which is encrypted if `is_encrypted` is set."""

    def __init__(self, authenticator: Authenticator, peer: str) -> None:
        self.is_encrypted = False
        self.user: str | None = None
        """The user, once it is known."""
        self.proof: Proof | None = None
        """What the user proved itself by; None until then, and for the user `anonymous`."""
        self.is_over = False
        """Whether the peer had its chances: the connection must be closed."""
        self._authenticator = authenticator
        self._peer = peer
        self._begun_at = trio.current_time()
        self._messages = 0
        self._is_certificate_tried = False
        self._exchange: _Exchange | None = None

    def admitted_user(self, transport: Transport) -> str | None:
        """Returns the user of a connection that begins with something else than AUTH: that of its
        certificate, or `anonymous`; None if it must authenticate. Raises Unauthorized if it had its
        chances."""
        if self.user is None and not self._messages:
            self.proof = self._proof_of_certificate(transport)
            if self.proof is not None:
                self.user = self.proof.user
            elif self._authenticator.anonymous_allowed:
                self.user = ANONYMOUS
        self._check_is_in_time()
        return self.user

    def _proof_of_certificate(self, transport: Transport) -> Proof | None:
        certificate = getattr(transport, "peer_certificate", None)
        authenticator = self._authenticator
        is_on = CERTIFICATE in authenticator.mechanisms
        if certificate is None or not is_on or self._is_certificate_tried:
            return None
        self._is_certificate_tried = True
        expires_at_s = certificate.expires_at_s or math.inf
        try:
            user = check_user_name(certificate.common_name)
        except InvalidArgument as error:
            authenticator.failed(self._peer, CERTIFICATE, "", Unauthorized(str(error)))
            return None
        authenticator.succeeded(self._peer, user)
        return Proof(user=user, mechanism=CERTIFICATE, expires_at_s=expires_at_s)

    async def answer(self, plugin: str, payload: bytes) -> bytes:
        """Returns the payload that answers a message; `proof` is set when that is the last.

        Raises Unauthorized if the peer is refused, and MetadataUnavailable if that is not known
        now. It may take seconds for a peer that has failed before.
        """
        authenticator, peer = self._authenticator, self._peer
        self._messages += 1
        mechanism = self._mechanism_of(plugin)
        authenticator.check_encrypted(peer, mechanism, is_encrypted=self.is_encrypted)
        exchange = self._exchange
        if exchange is None or exchange.mechanism != mechanism:
            await authenticator.admit(address_of_peer(peer))
            exchange = self._exchange = _EXCHANGES[mechanism](
                authenticator, mechanism, address_of_peer(peer)
            )
        try:
            reply = await exchange.answer(payload)
        except Unauthorized as error:
            self._exchange = None
            if not isinstance(error, Unseen):
                authenticator.failed(peer, mechanism, exchange.known_user, error)
            raise
        except MetadataUnavailable:
            self._exchange = None
            authenticator.counts.put_off += 1
            raise
        if exchange.proof is not None:
            self.user, self.proof, self._exchange = exchange.user, exchange.proof, None
            authenticator.succeeded(peer, exchange.user)
        return reply

    def _mechanism_of(self, plugin: str) -> str:
        """Returns the mechanism of a message. Raises Unauthorized if none is to be answered."""
        authenticator = self._authenticator
        self._check_is_in_time()
        if self._messages > MESSAGES_MAX:
            self._end(f"no success after {MESSAGES_MAX} messages")
        if self.user is not None:
            raise self._unseen(f"the connection is that of {self.user} already")
        mechanism = authenticator.mechanism_of(plugin)
        if mechanism is None:
            on = ", ".join(sorted(authenticator.mechanisms))
            raise self._unseen(f"plugin {plugin[:100]!r} is not on; on are {on}")
        return mechanism

    def _check_is_in_time(self) -> None:
        is_late = trio.current_time() - self._begun_at > AUTHENTICATE_S_MAX
        if is_late and self.user is None:
            self._end(f"no success within {AUTHENTICATE_S_MAX:g} s")

    def _end(self, why: str) -> None:
        self.is_over = True
        raise self._unseen(why)

    def _unseen(self, why: str) -> Unauthorized:
        error = Unauthorized(why)
        self._authenticator.unseen(self._peer, "", "", error)
        return error


class _Exchange:
    """One attempt by one mechanism."""

    def __init__(self, authenticator: Authenticator, mechanism: str, address: str) -> None:
        self.mechanism = mechanism
        self.user = ""
        self.proof: Proof | None = None
        self._authenticator = authenticator
        self._address = address

    def _proved(self, secret: object, generation: int) -> None:
        self.proof = Proof(
            user=self.user, mechanism=self.mechanism, secret=secret, generation=generation
        )

    @property
    def known_user(self) -> str:
        """The user, or "" for a name that no user can have: nothing else of it is remembered."""
        try:
            return check_user_name(self.user)
        except InvalidArgument:
            return ""

    async def admit(self) -> None:
        """Returns when this user's proof may be looked at. There is no await between that and
        the record of the outcome, so that attempts in parallel wait for each other."""
        await self._authenticator.admit(self._address, self.known_user)

    async def answer(self, payload: bytes) -> bytes:
        raise NotImplementedError


class _ScramExchange(_Exchange):
    _server: ScramServer | None = None
    _read: tuple[ScramVerifier, int]

    async def answer(self, payload: bytes) -> bytes:
        server = self._server
        if server is None:
            self._server = server = ScramServer(self.mechanism)
            self.user = server.user(payload)
            self._read = await self._authenticator.verifier(self.mechanism, self.user)
            return server.challenge(self._read[0], self._authenticator.nonce())
        await self.admit()
        reply = server.verify(payload)
        self._proved(*self._read)
        return reply


class _DigestMd5Exchange(_Exchange):
    _server: DigestMd5Server | None = None

    async def answer(self, payload: bytes) -> bytes:
        server = self._server
        if server is None:
            if payload:
                raise Unauthorized("the first message of DIGEST-MD5 is empty")
            self._server = server = DigestMd5Server(self._authenticator.nonce())
            return server.challenge()
        self.user = server.user(payload)
        secret, generation = await self._authenticator.digest_md5_secret(self.user)
        await self.admit()
        reply = server.verify(secret)
        self._proved(secret, generation)
        return reply


class _TokenExchange(_Exchange):
    async def answer(self, payload: bytes) -> bytes:
        tokens = self._authenticator.tokens
        assert tokens is not None
        found = tokens.verify(token_in(payload))
        self.user = found.user
        self.proof = Proof(
            user=found.user, mechanism=self.mechanism, expires_at_s=found.expires_at_s
        )
        return b""


_EXCHANGES: Final[dict[str, type[_Exchange]]] = {
    **dict.fromkeys(scram.HASHES, _ScramExchange),
    DIGEST_MD5: _DigestMd5Exchange,
    TOKEN: _TokenExchange,
}


def answer_when_unknown(plugin: str) -> bytes | None:
    """Returns the payload that says that users cannot be looked up now; None if the mechanism has
    none, and the connection is closed instead."""
    return NO_RESOURCES if plugin in scram.HASHES else None
