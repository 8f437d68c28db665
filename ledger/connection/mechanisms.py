"""The client's side of the mechanisms that our bookies know, from the credentials in its options.

Credentials in a file are read again for each connection, so that a token or a password can be
replaced while the client runs. A file that cannot be read then is logged, and the credentials from
before are used. What a listener could use must never be sent in clear, unless the options say so.
"""

from __future__ import annotations

import logging
import random
from functools import lru_cache

from ledger.core.authentication.bearer import bearer_message
from ledger.core.authentication.digest_md5 import DigestMd5Client
from ledger.core.authentication.names import DIGEST_MD5, NOT_IN_CLEAR, PLUGINS, TOKEN
from ledger.core.authentication.scram import ScramClient, salted_password
from ledger.credentials import Credentials, read_credentials
from ledger.errors import InvalidArgument, Unauthorized
from ledger.options import ClientOptions

_log = logging.getLogger(__name__)

_NONCE_BITS = 144


class OwnCredentials:
    """The credentials in the options of one client: an `AuthSource`. `rng` draws nonces: in
    production a `random.SystemRandom`. Raises InvalidArgument for a file that cannot be used, and
    for credentials that must not be sent in clear."""

    def __init__(self, options: ClientOptions, rng: random.Random) -> None:
        self._file = options.credentials_file
        self._in_clear = options.tls == "off" and not options.secrets_in_clear_allowed
        self._rng = rng
        credentials = options.credentials or read_credentials(self._file)
        self._check_clear(credentials)
        self._provider = CredentialsProvider(credentials, rng)

    def __call__(self) -> CredentialsProvider:
        if self._file:
            try:
                credentials = read_credentials(self._file)
                self._check_clear(credentials)
            except InvalidArgument as error:
                _log.warning("credentials not read again, those from before are used: %s", error)
            else:
                if credentials != self._provider.credentials:
                    self._provider = CredentialsProvider(credentials, self._rng)
        return self._provider

    def _check_clear(self, credentials: Credentials) -> None:
        if self._in_clear and credentials.in_use in NOT_IN_CLEAR:
            raise InvalidArgument(
                f"credentials of the kind {credentials.in_use} are not sent over connections that "
                "are not encrypted: a listener could take them. Cure: tls = start_tls, SCRAM, or "
                "secrets_in_clear_allowed"
            )


class CredentialsProvider:
    """An `AuthProvider` with a password or a token."""

    def __init__(self, credentials: Credentials, rng: random.Random) -> None:
        self.credentials = credentials
        self._rng = rng
        self._mechanism = credentials.in_use
        # The same for all bookies of a cluster: a password is hashed once.
        self._salted = lru_cache(maxsize=4)(self._salt)

    def _salt(self, salt: bytes, iterations: int) -> bytes:
        return salted_password(self._mechanism, self._password, salt, iterations)

    @property
    def user(self) -> str:
        """The user, for errors; "" of a token."""
        return self.credentials.user

    @property
    def plugin(self) -> str:
        """The plugin of the bookies that knows this mechanism."""
        return PLUGINS[self._mechanism]

    def begin(self, bookie: str) -> _TokenExchange | _ScramExchange | _DigestMd5Exchange:
        """Begins an exchange; every bookie is met with the same credentials."""
        if self._mechanism == TOKEN:
            assert self.credentials.token is not None
            return _TokenExchange(self.credentials.token.reveal())
        nonce = f"{self._rng.getrandbits(_NONCE_BITS):0{_NONCE_BITS // 4}x}"
        user = self.credentials.user
        if self._mechanism == DIGEST_MD5:
            return _DigestMd5Exchange(DigestMd5Client(user, self._password, nonce))
        return _ScramExchange(ScramClient(self._mechanism, user, nonce, self._salted))

    @property
    def _password(self) -> str:
        assert self.credentials.password is not None
        return self.credentials.password.reveal()


class _TokenExchange:
    def __init__(self, token: str) -> None:
        self._token = token

    def first_payload(self) -> bytes:
        return bearer_message(self._token)

    def answer(self, challenge: bytes) -> bytes | None:
        if challenge:
            raise Unauthorized("the bookie does not accept the token")
        return None


class _ScramExchange:
    def __init__(self, client: ScramClient) -> None:
        self._client = client
        self._is_proved = False

    def first_payload(self) -> bytes:
        return self._client.first()

    def answer(self, challenge: bytes) -> bytes | None:
        if self._is_proved:
            self._client.check(challenge)
            return None
        self._is_proved = True
        return self._client.final(challenge)


class _DigestMd5Exchange:
    def __init__(self, client: DigestMd5Client) -> None:
        self._client = client
        self._is_proved = False

    def first_payload(self) -> bytes:
        return b""

    def answer(self, challenge: bytes) -> bytes | None:
        if self._is_proved:
            self._client.check(challenge)
            return None
        self._is_proved = True
        return self._client.respond(challenge)
