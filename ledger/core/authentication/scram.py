"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): each side proves that it knows a secret.

The server keeps a verifier, from which nobody can log in. There is no channel binding. A server
that knows no such user continues with a made-up verifier, so that it answers like any other until
it refuses the proof.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ledger.core.authentication.names import SCRAM_SHA_256, SCRAM_SHA_512
from ledger.core.authentication.saslprep import saslprep
from ledger.errors import BookieUnavailable, LedgerError, Unauthorized

HASHES: Final = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}
ITERATIONS: Final = 16_384
"""Of new users. It takes a client about 10 ms, once per cluster and process."""
ITERATIONS_MIN: Final = 4096
"""RFC 7677 demands as much; a client refuses a server that asks for less."""
ITERATIONS_MAX: Final = 400_000
"""A client computes for a quarter of a second at most, whatever a server asks of it."""
SALT_BYTES: Final = 16
MESSAGE_BYTES_MAX: Final = 2048
NO_RESOURCES: Final = b"e=no-resources"
"""The last message of a server that cannot look up users now."""

_ATTRIBUTE = re.compile(r"[A-Za-z]=[^,]*")
_NONCE = re.compile(r"[\x21-\x2b\x2d-\x7e]{1,256}")
_NUMBER = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ScramVerifier:
    """What a server keeps of a password. A client learns the salt and the iterations only."""

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Returns what takes the time: the password hashed `iterations` times. Raises
    InvalidArgument."""
    prepared = saslprep(password).encode()
    return hashlib.pbkdf2_hmac(HASHES[mechanism], prepared, salt, iterations)


def verifier_of(mechanism: str, password: str, salt: bytes, iterations: int) -> ScramVerifier:
    """Returns the verifier of a password. `salt` is random, of each password another. Raises
    InvalidArgument for a password that cannot be used."""
    salted = salted_password(mechanism, password, salt, iterations)
    client_key = _mac(mechanism, salted, b"Client Key")
    stored_key = hashlib.new(HASHES[mechanism], client_key).digest()
    return ScramVerifier(salt, iterations, stored_key, _mac(mechanism, salted, b"Server Key"))


def made_up_verifier(mechanism: str, user: str, secret: bytes) -> ScramVerifier:
    """Returns the verifier of a user that does not exist: always the same one, which no password
    fits. `secret` is known to the bookies of a cluster alone."""
    name = f"{mechanism}/{user}".encode()
    size = hashlib.new(HASHES[mechanism]).digest_size
    stored_key = hmac.digest(secret, b"stored/" + name, "sha512")[:size]
    salt = hmac.digest(secret, b"salt/" + name, "sha512")[:SALT_BYTES]
    return ScramVerifier(salt, ITERATIONS, stored_key, bytes(size))


def matches(mechanism: str, password: str, verifier: ScramVerifier) -> bool:
    """Returns whether this is the password, for a peer that has sent it. It takes as long as
    `verifier_of`. Raises InvalidArgument for a password that cannot be used."""
    found = verifier_of(mechanism, password, verifier.salt, verifier.iterations)
    return hmac.compare_digest(found.stored_key, verifier.stored_key)


SaltPassword = Callable[[bytes, int], bytes]
"""Returns the salted password for a salt and a number of iterations."""


class ScramClient:
    """A client's side of one exchange: `first`, `final`, `check`, in this order.

    `nonce` is random, at least 16 characters, printable and without commas. All methods raise
    Unauthorized for what this mechanism does not allow.
    """

    def __init__(self, mechanism: str, user: str, nonce: str, salted: SaltPassword) -> None:
        self._mechanism = mechanism
        self._nonce = nonce
        self._salted = salted
        self._first = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._server_signature = b""

    def first(self) -> bytes:
        """Returns the first message."""
        return f"n,,{self._first}".encode()

    def final(self, server_first: bytes) -> bytes:
        """Returns the proof that answers the server's challenge."""
        text = _text(server_first)
        if text.startswith("e="):
            raise _refusal(text)
        attributes = _attributes(text)
        nonce, salt, iterations = _challenge(attributes)
        if not nonce.startswith(self._nonce) or len(nonce) < len(self._nonce) + 8:
            raise Unauthorized("the bookie's nonce is not a new one behind that of the client")
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise Unauthorized(
                f"the bookie asks for {iterations} iterations, from {ITERATIONS_MIN} to "
                f"{ITERATIONS_MAX} are allowed"
            )
        salted = self._salted(salt, iterations)
        client_key = _mac(self._mechanism, salted, b"Client Key")
        stored_key = hashlib.new(HASHES[self._mechanism], client_key).digest()
        unproven = f"c=biws,r={nonce}"
        message = f"{self._first},{text},{unproven}".encode()
        proof = _xor(client_key, _mac(self._mechanism, stored_key, message))
        server_key = _mac(self._mechanism, salted, b"Server Key")
        self._server_signature = _mac(self._mechanism, server_key, message)
        return f"{unproven},p={b64encode(proof).decode()}".encode()

    def check(self, server_final: bytes) -> None:
        """Returns if the server has proved that it knows this user's verifier."""
        text = _text(server_final)
        if text.startswith("e="):
            raise _refusal(text)
        attributes = _attributes(text)
        if attributes[0][0] != "v":
            raise Unauthorized("the bookie's last message is no proof")
        if not self._server_signature or not hmac.compare_digest(
            _decoded(attributes[0][1]), self._server_signature
        ):
            raise Unauthorized("the bookie does not know this user: it is not the one it claims")


class ScramServer:
    """A server's side of one exchange: `user`, `challenge`, `verify`, in this order.

    All methods raise Unauthorized, with the reason for a log.
    """

    def __init__(self, mechanism: str) -> None:
        self._mechanism = mechanism
        self._gs2 = ""
        self._first = ""
        self._challenge = ""
        self._nonce = ""
        self._verifier: ScramVerifier | None = None

    def user(self, client_first: bytes) -> str:
        """Returns the user as which the client logs in."""
        text = _text(client_first)
        if not text.startswith(("n,", "y,")):
            raise Unauthorized("the client asks for channel binding, or speaks another mechanism")
        authzid, comma, first = text[2:].partition(",")
        attributes = _attributes(first)
        if not comma or len(attributes) < 2 or [attributes[0][0], attributes[1][0]] != ["n", "r"]:
            raise Unauthorized("the first message has no name and nonce")
        name = _unescaped(attributes[0][1])
        if authzid and (authzid[:2] != "a=" or _unescaped(authzid[2:]) != name):
            raise Unauthorized("the client wants to act as another user than it logs in as")
        self._nonce = attributes[1][1]
        if not _NONCE.fullmatch(self._nonce):
            raise Unauthorized("the nonce has characters that are not allowed")
        self._gs2, self._first = f"{text[:2]}{authzid},", first
        return name

    def challenge(self, verifier: ScramVerifier, nonce: str) -> bytes:
        """Returns the answer to the first message. `nonce` is as for `ScramClient`."""
        if not self._first:
            raise Unauthorized("the messages are in the wrong order")
        self._verifier = verifier
        self._nonce += nonce
        salt = b64encode(verifier.salt).decode()
        self._challenge = f"r={self._nonce},s={salt},i={verifier.iterations}"
        return self._challenge.encode()

    def verify(self, client_final: bytes) -> bytes:
        """Returns the server's own proof, if the client's is right."""
        verifier, self._verifier = self._verifier, None
        if verifier is None:
            raise Unauthorized("the messages are in the wrong order")
        text = _text(client_final)
        unproven, _, proof_text = text.rpartition(",p=")
        attributes = _attributes(unproven)
        if [name for name, _ in attributes[:2]] != ["c", "r"]:
            raise Unauthorized("the last message has no binding, nonce and proof")
        if _decoded(attributes[0][1]) != self._gs2.encode():
            raise Unauthorized("the channel binding differs from that of the first message")
        if not hmac.compare_digest(attributes[1][1].encode(), self._nonce.encode()):
            raise Unauthorized("the nonce is that of another exchange")
        message = f"{self._first},{self._challenge},{unproven}".encode()
        signature = _mac(self._mechanism, verifier.stored_key, message)
        proof = _decoded(proof_text)
        if len(proof) != len(signature):
            raise Unauthorized("the proof has a wrong length")
        found = hashlib.new(HASHES[self._mechanism], _xor(proof, signature)).digest()
        if not hmac.compare_digest(found, verifier.stored_key):
            raise Unauthorized("wrong password, or no such user")
        server_signature = _mac(self._mechanism, verifier.server_key, message)
        return b"v=" + b64encode(server_signature)


def _challenge(attributes: list[tuple[str, str]]) -> tuple[str, bytes, int]:
    """Returns nonce, salt and iterations of a server's first message."""
    if [name for name, _ in attributes[:3]] != ["r", "s", "i"]:
        raise Unauthorized("the bookie's challenge has no nonce, salt and iterations")
    nonce, salt, iterations = (value for _, value in attributes[:3])
    if not _NUMBER.fullmatch(iterations):
        raise Unauthorized("the bookie's number of iterations is none")
    decoded = _decoded(salt)
    if not decoded:
        raise Unauthorized("the bookie's salt is empty")
    return nonce, decoded, int(iterations)


def _refusal(text: str) -> LedgerError:
    if text == NO_RESOURCES.decode():
        return BookieUnavailable("the bookie cannot look up users now")
    return Unauthorized("the bookie reports an error instead of a proof")


def _mac(mechanism: str, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, HASHES[mechanism])


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise Unauthorized(f"a message of {len(message)} bytes, at most {MESSAGE_BYTES_MAX}")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise Unauthorized("a message is not UTF-8") from None


def _attributes(text: str) -> list[tuple[str, str]]:
    """Returns names and values. An extension that must be understood is refused."""
    parts = text.split(",")
    if not all(_ATTRIBUTE.fullmatch(part) for part in parts) or parts[0].startswith("m="):
        raise Unauthorized("a message is not one of SCRAM, or has an unknown extension")
    return [(part[0], part[2:]) for part in parts]


def _unescaped(name: str) -> str:
    if re.search(r"=(?!2C|3D)", name):
        raise Unauthorized("a name has '=' that is not escaped")
    return name.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, ValueError):
        raise Unauthorized("a value is not Base64") from None
