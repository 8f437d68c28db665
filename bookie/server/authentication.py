"""Authenticates peers in AUTH exchanges: who they are, and how long those wait that fail.

A peer must never learn why it was refused, nor whether a user exists; the log has the reason, once
per failure that was looked at. Nothing is remembered of a peer but its connection and, in fixed
memory, its failures. What is permitted to whom is not decided here.
"""

from __future__ import annotations

import logging
import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import trio

from bookie.authentication_settings import AuthenticationSettings
from bookie.core.failed_attempts import FailedAttempts, address_of_peer
from bookie.server.audit import AuditLog
from ledger.core.authentication import scram
from ledger.core.authentication.bearer import token_in
from ledger.core.authentication.digest_md5 import DigestMd5Server
from ledger.core.authentication.names import (
    ANONYMOUS,
    CERTIFICATE,
    DIGEST_MD5,
    PLUGINS,
    TOKEN,
    check_user_name,
)
from ledger.core.authentication.scram import NO_RESOURCES, ScramServer, ScramVerifier
from ledger.errors import InvalidArgument, MetadataCorrupt, MetadataUnavailable, Unauthorized
from ledger.metastore.base import MetadataStore
from ledger.metastore.users import SECRET_BYTES, User, UserStore
from ledger.runtime.logs import OF_PEER
from ledger.runtime.network import Transport

_log = logging.getLogger(__name__)

USERS_CACHED_MAX: Final = 10_000
USER_FRESH_S: Final = 2.0
"""A user is read again after this time: a deleted one is refused then."""
_LOOKUPS_MAX: Final = 8
"""Users that are read from the metadata at the same time: peers that are not authenticated yet must
not be a load on it."""
_MESSAGES_MAX: Final = 16
"""Messages of one connection until it is authenticated."""
_NONCE_BITS: Final = 144


class TokenVerifier(Protocol):
    """Decides what a token proves."""

    def user_of(self, token: str) -> str:
        """Returns the user. Raises Unauthorized, with the reason for a log."""
        ...


class Users:
    """The users of the cluster, as this bookie knows them."""

    def __init__(self, store: UserStore, now: Callable[[], float] = trio.current_time) -> None:
        self._store = store
        self._now = now
        self._known: OrderedDict[str, tuple[float, User | None]] = OrderedDict()
        self._lookups = trio.CapacityLimiter(_LOOKUPS_MAX)

    async def read(self, name: str) -> User | None:
        """Returns a user, None if there is none; while the metadata store is out of reach, what was
        known last. Raises MetadataUnavailable if nothing is known."""
        read_at, user = self._known.get(name, (float("-inf"), None))
        if self._now() - read_at <= USER_FRESH_S:
            return user
        try:
            async with self._lookups:
                user = await self._store.read(name)
        except MetadataUnavailable:
            if name not in self._known:
                raise
            return user
        except MetadataCorrupt as error:
            _log.error("user refused user=%s cause=%s", name, error, extra=OF_PEER)
            user = None
        self._known[name] = (self._now(), user)
        self._known.move_to_end(name)
        while len(self._known) > USERS_CACHED_MAX:
            self._known.popitem(last=False)
        return user


@dataclass(slots=True)
class AuthenticationCounts:
    """How the attempts of all peers ended, since the start."""

    succeeded: int = 0
    failed: int = 0
    unseen: int = 0
    """Attempts that were refused without a look, because of failures before."""
    put_off: int = 0
    """Attempts for which the metadata store was needed and out of reach."""


class Authenticator:
    """Authenticates the peers of one bookie.

    Args:
        mechanisms: those that are on, by their names.
        anonymous_allowed: whether a peer without credentials is served, as the user `anonymous`.
        users: who may log in with a password.
        cluster_secret: from which a user that does not exist is made up.
        tokens: what decides on tokens; None without that mechanism.
        rng: draws nonces: in production a `random.SystemRandom`.
        audit: where failures are recorded.
    """

    def __init__(
        self,
        *,
        mechanisms: frozenset[str],
        anonymous_allowed: bool,
        users: Users,
        cluster_secret: bytes,
        tokens: TokenVerifier | None,
        rng: random.Random,
        audit: AuditLog | None = None,
    ) -> None:
        self._audit = audit
        self.mechanisms = mechanisms
        self.anonymous_allowed = anonymous_allowed
        self.tokens = tokens
        self.counts = AuthenticationCounts()
        self.attempts = FailedAttempts()
        self._users = users
        self._cluster_secret = cluster_secret
        self._rng = rng
        self._by_plugin = {PLUGINS[one]: one for one in mechanisms if one in PLUGINS}

    def session(self, peer: str) -> AuthSession:
        """Returns the authentication of a new connection."""
        return AuthSession(self, peer)

    def mechanism_of(self, plugin: str) -> str | None:
        """Returns the mechanism that a plugin name means, None if it is not on."""
        return self._by_plugin.get(plugin)

    def nonce(self) -> str:
        return f"{self._rng.getrandbits(_NONCE_BITS):0{_NONCE_BITS // 4}x}"

    async def admit(self, address: str, user: str = "") -> None:
        """Returns when an attempt may be looked at. Raises Unseen if that is too far away."""
        wait_s = self.attempts.wait_s(trio.current_time(), address, user)
        if wait_s is None:
            self.counts.unseen += 1
            unseen = Unseen(f"too many failures of {user or 'this address'} before")
            self.refused(address, "", user, unseen)
            raise unseen
        if wait_s:
            await trio.sleep(wait_s)

    def failed(self, peer: str, mechanism: str, user: str, error: Unauthorized) -> None:
        """Records and logs a failure. `user` is "" or a name that a user can have."""
        self.counts.failed += 1
        self.attempts.failed(trio.current_time(), address_of_peer(peer), user)
        self.refused(peer, mechanism, user, error)
        _log.warning(
            "authentication failed peer=%s mechanism=%s user=%s cause=%s",
            peer,
            mechanism,
            user or "?",
            error,
            extra=OF_PEER,
        )

    def refused(self, peer: str, mechanism: str, user: str, error: Unauthorized) -> None:
        """Records a refusal for the audit log. `user` is "" or a name that a user can have."""
        if self._audit is not None:
            known = {"user": user, "mechanism": mechanism, "cause": str(error)}
            given = {name: value for name, value in known.items() if value}
            self._audit.refused("authenticate", "refused", peer=peer, address="", **given)

    def succeeded(self, peer: str, user: str) -> None:
        self.counts.succeeded += 1
        self.attempts.succeeded(address_of_peer(peer), user)

    async def user(self, name: str) -> User | None:
        """Returns a user, None also for a name that no user can have. Raises
        MetadataUnavailable."""
        try:
            return await self._users.read(check_user_name(name))
        except InvalidArgument:
            return None

    async def verifier(self, mechanism: str, name: str) -> ScramVerifier:
        """Returns what recognises the password of a user: of a made-up one if there is none."""
        user = await self.user(name)
        made_up = scram.made_up_verifier(mechanism, name, self._cluster_secret)
        return made_up if user is None else user.verifiers.get(mechanism, made_up)

    async def digest_md5_secret(self, name: str) -> bytes:
        """Returns the secret of a user for DIGEST-MD5; another one if there is none."""
        user = await self.user(name)
        nobody = self._cluster_secret[:16]
        return nobody if user is None or user.digest_md5 is None else user.digest_md5


class Unseen(Unauthorized):
    """An attempt is refused without a look at it."""


class AuthSession:
    """The authentication of one connection. `user` is None until it is proved."""

    def __init__(self, authenticator: Authenticator, peer: str) -> None:
        self._authenticator = authenticator
        self._peer = peer
        self._messages = 0
        self._exchange: _Exchange | None = None
        self.user: str | None = None
        self.mechanism = ""
        """By which it was proved."""

    def admitted_user(self, transport: Transport) -> str | None:
        """Returns the user of a connection that begins with something else than AUTH: that of its
        certificate, or `anonymous`; None if it must authenticate."""
        if self.user is None and not self._messages:
            self.user = self._user_of_certificate(transport)
            if self.user is None and self._authenticator.anonymous_allowed:
                self.user = ANONYMOUS
        return self.user

    def _user_of_certificate(self, transport: Transport) -> str | None:
        certificate = getattr(transport, "peer_certificate", None)
        if certificate is None or CERTIFICATE not in self._authenticator.mechanisms:
            return None
        try:
            user = check_user_name(certificate.common_name)
        except InvalidArgument as error:
            self._authenticator.failed(self._peer, CERTIFICATE, "", Unauthorized(str(error)))
            return None
        self._authenticator.succeeded(self._peer, user)
        self.mechanism = CERTIFICATE
        return user

    async def answer(self, plugin: str, payload: bytes) -> bytes:
        """Returns the payload that answers a message; `user` is set when that is the last.

        Raises Unauthorized if the peer is refused, and MetadataUnavailable if that is not known
        now. It may take seconds for a peer that has failed before.
        """
        authenticator, peer = self._authenticator, self._peer
        self._messages += 1
        try:
            mechanism = self._mechanism_of(plugin)
        except Unauthorized as error:
            authenticator.refused(peer, "", "", error)
            raise
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
        if exchange.is_done:
            self.user, self.mechanism = exchange.user, mechanism
            authenticator.succeeded(peer, exchange.user)
        return reply

    def _mechanism_of(self, plugin: str) -> str:
        """Returns the mechanism of a message. Raises Unauthorized if none is to be answered."""
        authenticator = self._authenticator
        if self.user is not None:
            raise Unauthorized(f"the connection is that of {self.user} already")
        mechanism = authenticator.mechanism_of(plugin)
        if mechanism is None:
            on = ", ".join(sorted(authenticator.mechanisms))
            raise Unauthorized(f"plugin {plugin[:100]!r} is not on; on are {on}")
        if self._messages > _MESSAGES_MAX:
            raise Unauthorized(f"no success after {_MESSAGES_MAX} messages")
        return mechanism


class _Exchange:
    """One attempt by one mechanism."""

    def __init__(self, authenticator: Authenticator, mechanism: str, address: str) -> None:
        self.mechanism = mechanism
        self.user = ""
        self.is_done = False
        self._authenticator = authenticator
        self._address = address

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

    async def answer(self, payload: bytes) -> bytes:
        server = self._server
        if server is None:
            self._server = server = ScramServer(self.mechanism)
            self.user = server.user(payload)
            verifier = await self._authenticator.verifier(self.mechanism, self.user)
            return server.challenge(verifier, self._authenticator.nonce())
        await self.admit()
        proof = server.verify(payload)
        self.is_done = True
        return proof


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
        secret = await self._authenticator.digest_md5_secret(self.user)
        await self.admit()
        proof = server.verify(secret)
        self.is_done = True
        return proof


class _TokenExchange(_Exchange):
    async def answer(self, payload: bytes) -> bytes:
        tokens = self._authenticator.tokens
        assert tokens is not None
        self.user = tokens.user_of(token_in(payload))
        self.is_done = True
        return b""


_EXCHANGES: Final[dict[str, type[_Exchange]]] = {
    **dict.fromkeys(scram.HASHES, _ScramExchange),
    DIGEST_MD5: _DigestMd5Exchange,
    TOKEN: _TokenExchange,
}


async def open_authenticator(
    settings: AuthenticationSettings,
    store: MetadataStore,
    rng: random.Random,
    tokens: TokenVerifier | None,
    audit: AuditLog | None = None,
) -> Authenticator | None:
    """Returns the authenticator of a bookie with these settings, None if it serves every client.
    Raises MetadataUnavailable, MetadataCorrupt."""
    if not settings.is_authentication_on:
        return None
    users = UserStore(store)
    return Authenticator(
        mechanisms=frozenset(settings.authentication_mechanisms),
        anonymous_allowed=settings.anonymous_allowed,
        users=Users(users),
        cluster_secret=await users.cluster_secret(rng.randbytes(SECRET_BYTES)),
        tokens=tokens,
        rng=rng,
        audit=audit,
    )


def answer_when_unknown(plugin: str) -> bytes | None:
    """Returns the payload that says that users cannot be looked up now; None if the mechanism has
    none, and the connection is closed instead."""
    return NO_RESOURCES if plugin in scram.HASHES else None
