"""Authenticates peers in AUTH exchanges: who they are, and how long those wait that fail.

A peer must never learn why it was refused, nor whether a user exists; the log has the reason, once
per failure that was looked at. Nothing is remembered of a peer but its connection and, in fixed
memory, its failures. What is permitted to whom is not decided here.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import trio

from bookie.authentication_settings import AuthenticationSettings
from bookie.core.failed_attempts import FailedAttempts, address_of_peer
from bookie.server.audit import AuditLog
from bookie.server.users import ReadUser, Users
from ledger.core.authentication import scram
from ledger.core.authentication.names import NOT_IN_CLEAR, PLUGINS, check_user_name
from ledger.core.authentication.scram import ScramVerifier
from ledger.errors import InvalidArgument, Unauthorized
from ledger.metastore.base import MetadataStore
from ledger.metastore.users import SECRET_BYTES, UserStore
from ledger.runtime.logs import OF_PEER

_log = logging.getLogger(__name__)

_NONCE_BITS: Final = 144
_DIGEST_MD5_SECRET_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class VerifiedToken:
    """What a token proves."""

    user: str
    expires_at_s: float
    """In seconds since 1970."""


class TokenVerifier(Protocol):
    """Decides what a token proves."""

    def verify(self, token: str) -> VerifiedToken:
        """Returns what it proves. Raises Unauthorized, with the reason for a log."""
        ...


@dataclass(slots=True)
class AuthenticationCounts:
    """How the attempts of all peers ended, since the start."""

    succeeded: int = 0
    failed: int = 0
    unseen: int = 0
    """Attempts that were refused without a look, because of failures before."""
    put_off: int = 0
    """Attempts for which the metadata store was needed and out of reach."""
    ended: int = 0
    """Sessions that ended with what they rested on."""


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
        now_ms: the wall clock, by which tokens and certificates expire.
        secrets_in_clear_allowed: whether an unencrypted connection may carry what a listener on the
            network could use: tokens, DIGEST-MD5, and passwords over HTTP.
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
        now_ms: Callable[[], int],
        audit: AuditLog | None = None,
        secrets_in_clear_allowed: bool = False,
    ) -> None:
        self.audit = audit
        self.mechanisms = mechanisms
        self.anonymous_allowed = anonymous_allowed
        self.tokens = tokens
        self.counts = AuthenticationCounts()
        self.attempts = FailedAttempts()
        self.users = users
        self.now_ms = now_ms
        self._allows_clear = secrets_in_clear_allowed
        self._cluster_secret = cluster_secret
        self._rng = rng
        self._by_plugin = {PLUGINS[one]: one for one in mechanisms if one in PLUGINS}

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
            self.unseen(address, "", user, unseen)
            raise unseen
        if wait_s:
            await trio.sleep(wait_s)

    def failed(self, peer: str, mechanism: str, user: str, error: Unauthorized) -> None:
        """Records and logs a failure. `user` is "" or a name that a user can have."""
        self.counts.failed += 1
        self.attempts.failed(trio.current_time(), address_of_peer(peer), user)
        self._record(peer, mechanism, user, error)
        _log.warning(
            "authentication failed peer=%s mechanism=%s user=%s cause=%s",
            peer,
            mechanism,
            user or "?",
            error,
            extra=OF_PEER,
        )

    def check_encrypted(self, peer: str, mechanism: str, *, is_encrypted: bool) -> None:
        """Raises Unauthorized for what must not come in clear; it was not looked at."""
        if is_encrypted or self._allows_clear or mechanism not in NOT_IN_CLEAR:
            return
        error = NotEncrypted(
            f"{mechanism} came over a connection that is not encrypted, where a listener can take "
            "it. Cure: TLS, or secrets_in_clear_allowed"
        )
        self.unseen(peer, mechanism, "", error)
        raise error

    def unseen(self, peer: str, mechanism: str, user: str, error: Unauthorized) -> None:
        """Records and logs a refusal of what was not looked at."""
        _log.warning("authentication refused peer=%s cause=%s", peer, error, extra=OF_PEER)
        self._record(peer, mechanism, user, error)

    def _record(self, peer: str, mechanism: str, user: str, error: Unauthorized) -> None:
        if self.audit is not None:
            known = {"user": user, "mechanism": mechanism, "cause": str(error)}
            given = {name: value for name, value in known.items() if value}
            self.audit.refused("authenticate", "refused", peer=peer, address="", **given)

    def succeeded(self, peer: str, user: str) -> None:
        self.counts.succeeded += 1
        self.attempts.succeeded(address_of_peer(peer), user)

    async def _read(self, name: str) -> ReadUser:
        """Returns a user, None also for a name that no user can have. Raises
        MetadataUnavailable."""
        try:
            return await self.users.read(check_user_name(name))
        except InvalidArgument:
            return ReadUser(None, self.users.generation, 0.0)

    async def verifier(self, mechanism: str, name: str) -> tuple[ScramVerifier, int]:
        """Returns what recognises the password of a user, of a made-up one if there is none; and
        the generation of users when it was read."""
        found = await self._read(name)
        made_up = scram.made_up_verifier(mechanism, name, self._cluster_secret)
        user = found.user
        return (
            made_up if user is None else user.verifiers.get(mechanism, made_up),
            found.generation,
        )

    async def digest_md5_secret(self, name: str) -> tuple[bytes, int]:
        """Returns the secret of a user for DIGEST-MD5, a random one if there is none, which nobody
        can know; and the generation of users when it was read."""
        found = await self._read(name)
        nobody, user = self._rng.randbytes(_DIGEST_MD5_SECRET_BYTES), found.user
        secret = nobody if user is None or user.digest_md5 is None else user.digest_md5
        return secret, found.generation


class NotEncrypted(Unauthorized):
    """A secret came in clear. The peer may know why."""


class Unseen(Unauthorized):
    """An attempt is refused without a look at it."""


async def open_authenticator(
    settings: AuthenticationSettings,
    store: MetadataStore,
    rng: random.Random,
    tokens: TokenVerifier | None,
    now_ms: Callable[[], int],
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
        now_ms=now_ms,
        audit=audit,
        secrets_in_clear_allowed=settings.secrets_in_clear_allowed,
    )
