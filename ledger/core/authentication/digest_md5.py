"""DIGEST-MD5 (RFC 2831), as Apache BookKeeper's plugin `sasl` speaks it: protocol and realm
"bookkeeper", integrity and privacy off.

It is here for Apache's clients, which know nothing else: MD5 is weak, and with what a server keeps
of a user anybody can log in as that user.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final

from ledger.errors import Unauthorized

REALM: Final = "bookkeeper"
DIGEST_URI: Final = "bookkeeper/bookkeeper"
MESSAGE_BYTES_MAX: Final = 4096
_DIRECTIVE = re.compile(
    r'\s*([A-Za-z-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s",;]+))\s*(?:,|$)', re.DOTALL
)


def user_secret(user: str, password: str, realm: str = REALM) -> bytes:
    """Returns what a server keeps of a user: it is as good as the password for this mechanism."""
    return hashlib.md5(_joined(user, realm, password), usedforsecurity=False).digest()


class DigestMd5Server:
    """A server's side of one exchange: `challenge`, `user`, `verify`, in this order. `nonce` is
    random and printable. All methods raise Unauthorized, with the reason for a log."""

    def __init__(self, nonce: str, *, realm: str = REALM, digest_uri: str = DIGEST_URI) -> None:
        self._nonce = nonce
        self._realm = realm
        self._digest_uri = digest_uri
        self._answer: dict[str, str] = {}

    def challenge(self) -> bytes:
        """Returns the first message, which the server sends."""
        return (
            f'realm="{self._realm}",nonce="{self._nonce}",qop="auth",charset=utf-8,'
            "algorithm=md5-sess"
        ).encode()

    def user(self, response: bytes) -> str:
        """Returns the user as which the client logs in."""
        answer = _directives(response)
        expected = {
            "realm": self._realm,
            "nonce": self._nonce,
            "nc": "00000001",
            "digest-uri": self._digest_uri,
        }
        for name, value in expected.items():
            if not hmac.compare_digest(answer.get(name, "").encode(), value.encode()):
                raise Unauthorized(f"{name} is not that of this exchange")
        if answer.get("qop", "auth") != "auth" or not answer.get("cnonce"):
            raise Unauthorized("the client asks for integrity or privacy, or has no nonce")
        user = answer.get("username", "")
        if answer.get("authzid", user) != user:
            raise Unauthorized("the client wants to act as another user than it logs in as")
        self._answer = answer
        return user

    def verify(self, secret: bytes) -> bytes:
        """Returns the server's own proof, if the client's is right. `secret` is the user's, or any
        16 bytes if there is no such user."""
        answer, self._answer = self._answer, {}
        if not answer:
            raise Unauthorized("the messages are in the wrong order")
        expected = _response(secret, answer, f"AUTHENTICATE:{self._digest_uri}")
        if not hmac.compare_digest(answer.get("response", "").encode(), expected.encode()):
            raise Unauthorized("wrong password, or no such user")
        return f"rspauth={_response(secret, answer, f':{self._digest_uri}')}".encode()


class DigestMd5Client:
    """A client's side of one exchange: `respond`, `check`, in this order. `cnonce` is random. All
    methods raise Unauthorized for what this mechanism does not allow."""

    def __init__(
        self, user: str, password: str, cnonce: str, *, digest_uri: str = DIGEST_URI
    ) -> None:
        self._user = user
        self._password = password
        self._cnonce = cnonce
        self._digest_uri = digest_uri
        self._rspauth = ""

    def respond(self, challenge: bytes) -> bytes:
        """Returns the proof that answers the server's challenge."""
        asked = _directives(challenge)
        if asked.get("algorithm") != "md5-sess" or not asked.get("nonce"):
            raise Unauthorized("the bookie's challenge is not one of DIGEST-MD5")
        if "auth" not in asked.get("qop", "auth").split(","):
            raise Unauthorized("the bookie asks for integrity or privacy, use TLS instead")
        realm = asked.get("realm", "")
        answer = {
            "username": self._user,
            "nonce": asked["nonce"],
            "nc": "00000001",
            "cnonce": self._cnonce,
            "qop": "auth",
        }
        secret = user_secret(self._user, self._password, realm)
        response = _response(secret, answer, f"AUTHENTICATE:{self._digest_uri}")
        self._rspauth = _response(secret, answer, f":{self._digest_uri}")
        return (
            f"charset=utf-8,username={_quoted(self._user)},realm={_quoted(realm)},"
            f"nonce={_quoted(asked['nonce'])},nc=00000001,cnonce={_quoted(self._cnonce)},"
            f"digest-uri={_quoted(self._digest_uri)},response={response},qop=auth"
        ).encode()

    def check(self, proof: bytes) -> None:
        """Returns if the server has proved that it knows this user's secret."""
        rspauth = _directives(proof).get("rspauth", "")
        if not self._rspauth or not hmac.compare_digest(rspauth.encode(), self._rspauth.encode()):
            raise Unauthorized("the bookie does not know this user: it is not the one it claims")


def _response(secret: bytes, answer: dict[str, str], a2: str) -> str:
    a1 = secret + f":{answer['nonce']}:{answer['cnonce']}".encode()
    if "authzid" in answer:
        a1 += f":{answer['authzid']}".encode()
    middle = f"{answer['nonce']}:{answer['nc']}:{answer['cnonce']}:auth"
    return _hex(f"{_hex(a1)}:{middle}:{_hex(a2.encode())}".encode())


def _hex(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _joined(user: str, realm: str, password: str) -> bytes:
    """Returns the text that is hashed: each part in ISO 8859-1 if it has no other characters."""
    parts = []
    for part in (user, realm, password):
        try:
            parts.append(part.encode("latin-1"))
        except UnicodeEncodeError:
            parts.append(part.encode())
    return b":".join(parts)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _directives(message: bytes) -> dict[str, str]:
    """Returns names and values; each name may occur once."""
    if len(message) > MESSAGE_BYTES_MAX:
        raise Unauthorized(f"a message of {len(message)} bytes, at most {MESSAGE_BYTES_MAX}")
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise Unauthorized("a message is not UTF-8") from None
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _DIRECTIVE.match(text, at)
        if match is None or match[1].lower() in found:
            raise Unauthorized("a message is not one of DIGEST-MD5")
        value = match[3] if match[2] is None else re.sub(r"\\(.)", r"\1", match[2], flags=re.DOTALL)
        found[match[1].lower()] = value
        at = match.end()
    if found.get("charset", "utf-8").lower() != "utf-8":
        raise Unauthorized("the only character set is UTF-8")
    return found
