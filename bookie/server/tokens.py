"""Decides which user a token proves: a JWT that somebody else signed, with a public key known here.

The algorithm follows from the kind of the key and never from the token, so that neither `none` nor
a public key used as a shared secret can pass. PyJWT and cryptography are loaded with the first
object, since most bookies need neither.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bookie.authentication_settings import AuthenticationSettings
from bookie.server.authentication import VerifiedToken
from bookie.server.internal_errors import PROGRAMMING_ERRORS
from ledger.core.authentication.names import TOKEN, check_user_name
from ledger.credentials import check_not_writable_by_others
from ledger.errors import InvalidArgument, Unauthorized

if TYPE_CHECKING:
    import jwt

_log = logging.getLogger(__name__)

LEEWAY_S: Final = 30
"""Clocks of other machines may differ by this much."""
KEYS_MAX: Final = 100
_EXPIRES_S_MAX: Final = 1 << 40
"""A later expiry is never; claims may be numbers beyond what a clock can count."""
_NO_JWT: Final = "it is no JWT"
FILE_BYTES_MAX: Final = 1 << 20
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_RSA_BITS_MIN: Final = 2048
_OF_CURVE: Final = {"secp256r1": ("ES256",), "secp384r1": ("ES384",), "secp521r1": ("ES512",)}
_EDWARDS: Final = ("EdDSA",)
_CURVES_OF_KIND: Final = {
    "RSA": (),
    "EC": ("P-256", "P-384", "P-521"),
    "OKP": ("Ed25519", "Ed448"),
}
"""The curves of each kind of key in a set."""


@dataclass(frozen=True, slots=True)
class _Key:
    key_id: str | None
    algorithms: tuple[str, ...]
    key: Any


class JwtVerifier:
    """Verifies tokens with the keys of a file, which is read again when it has changed.

    Args:
        keys_file: public keys or certificates as PEM, or a JSON Web Key Set.
        audience: what a token must name in `aud`.
        issuer: what it must have in `iss`; "" is anything.
        user_claim: the claim that names the user.

    Raises InvalidArgument if the file has no keys that can be used, or a library is missing.
    """

    def __init__(self, keys_file: str, *, audience: str, issuer: str, user_claim: str) -> None:
        try:
            import jwt
        except ImportError as error:
            raise InvalidArgument(
                "authentication by TOKEN needs PyJWT and cryptography. Cure: pip install"
                " 'ledgerstream[security]'"
            ) from error
        self._jwt = jwt
        self._file = keys_file
        self._audience = audience
        self._issuer = issuer
        self._user_claim = user_claim
        self._version = _version_of(keys_file)
        self._keys = _read_keys(keys_file)

    def verify(self, token: str) -> VerifiedToken:
        """Returns what a token proves. Raises Unauthorized, with the reason for a log, which never
        has a part of the token."""
        self._read_again()
        try:
            header = self._jwt.get_unverified_header(token)
            claims = self._claims(token, header)
            expires_at_s = min(int(claims["exp"]), _EXPIRES_S_MAX) + LEEWAY_S
        except self._jwt.PyJWTError as error:
            raise Unauthorized(_reason(self._jwt, error)) from None
        except PROGRAMMING_ERRORS:
            # PyJWT 2.8 raises them for nested arrays and odd numbers. It is no bug of ours.
            raise Unauthorized(_NO_JWT) from None
        user = claims.get(self._user_claim)
        try:
            found = check_user_name(user if isinstance(user, str) else "")
        except InvalidArgument:
            raise Unauthorized(
                f"the token's claim {self._user_claim!r} is no name that a user can have"
            ) from None
        return VerifiedToken(found, expires_at_s)

    def _claims(self, token: str, header: dict[str, Any]) -> dict[str, Any]:
        if "crit" in header:  # PyJWT 2.8 does not look at it
            raise Unauthorized("the token has an extension that must be understood, and is not")
        algorithm, key_id = header.get("alg"), header.get("kid")
        keys = [one for one in self._keys if algorithm in one.algorithms]
        if not keys:
            raise Unauthorized("the token's algorithm fits none of the keys")
        keys = [one for one in keys if None in (key_id, one.key_id) or one.key_id == key_id]
        if not keys:
            raise Unauthorized("the token names a key that is not known")
        required = ["exp", "aud", self._user_claim, *(["iss"] if self._issuer else [])]
        for number, one in enumerate(keys, 1):
            try:
                claims: dict[str, Any] = self._jwt.decode(
                    token,
                    one.key,
                    algorithms=list(one.algorithms),
                    audience=self._audience,
                    issuer=self._issuer or None,
                    leeway=LEEWAY_S,
                    options={"require": required},
                )
            except self._jwt.InvalidSignatureError:
                if number == len(keys):
                    raise
            else:
                return claims
        raise AssertionError("the last key decides")

    def _read_again(self) -> None:
        """Reads the keys if the file has changed. If it cannot be read, those from before hold."""
        version = _version_of(self._file)
        if version is None or version == self._version:
            return
        self._version = version
        try:
            self._keys = _read_keys(self._file)
        except InvalidArgument as error:
            _log.error("keys of tokens not read again, those from before hold cause=%s", error)
        else:
            _log.info("keys of tokens read again file=%s keys=%d", self._file, len(self._keys))


def tokens_of(settings: AuthenticationSettings) -> JwtVerifier | None:
    """Returns what verifies tokens with these settings, None if they are not on. Raises
    InvalidArgument."""
    if TOKEN not in settings.authentication_mechanisms:
        return None
    return JwtVerifier(
        settings.token_keys_file,
        audience=settings.token_audience,
        issuer=settings.token_issuer,
        user_claim=settings.token_user_claim,
    )


def _reason(library: Any, error: jwt.PyJWTError) -> str:
    """Returns a reason without a part of the token."""
    reasons = {
        library.ExpiredSignatureError: "the token has expired",
        library.ImmatureSignatureError: "the token is not valid yet",
        library.InvalidIssuedAtError: "the token is not valid yet",
        library.InvalidAudienceError: "the token is for another audience",
        library.InvalidIssuerError: "the token is of another issuer",
        library.InvalidSignatureError: "the token is signed by another key",
        library.MissingRequiredClaimError: "the token lacks a claim that is required",
    }
    return next((text for kind, text in reasons.items() if isinstance(error, kind)), _NO_JWT)


def _version_of(file: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read_keys(file: str) -> list[_Key]:
    try:
        with open(file, "rb") as opened:
            check_not_writable_by_others(opened)
            data = opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidArgument(f"token_keys_file: cannot read {file}: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise InvalidArgument(f"token_keys_file {file} has more than {FILE_BYTES_MAX} bytes")
    is_json = data.lstrip().startswith(b"{")
    keys = _of_jwks(file, data) if is_json else _of_pem(file, data)
    if not 1 <= len(keys) <= KEYS_MAX:
        raise InvalidArgument(
            f"token_keys_file {file} has {len(keys)} public keys, must have 1 to {KEYS_MAX}"
        )
    return keys


def _of_jwks(file: str, data: bytes) -> list[_Key]:
    import jwt

    try:
        documents = json.loads(data)["keys"]
        keys = []
        for document in documents:
            if document.get("kty") == "oct":
                raise InvalidArgument(
                    f"token_keys_file {file} has a symmetric key, with which every bookie could "
                    "make tokens. Cure: sign by RSA, ECDSA or Ed25519, and give the public keys"
                )
            if document.get("use", "sig") != "sig" or not _is_understood(file, document):
                continue
            found = jwt.PyJWK(document)
            keys.append(_key_of(file, found.key, document.get("kid"), document.get("alg")))
    except (ValueError, KeyError, TypeError, AttributeError, jwt.PyJWTError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(
            f"token_keys_file {file} is no JSON Web Key Set: {type(error).__name__}"
        ) from None
    return keys


def _is_understood(file: str, document: dict[str, Any]) -> bool:
    """Returns whether the key is of a kind that is known here: others in a set are ignored, as RFC
    7517, section 5, has it, because issuers add kinds before all readers know them."""
    curves = _CURVES_OF_KIND.get(document["kty"])
    if curves is not None and (not curves or document.get("crv") in curves):
        return True
    _log.warning(
        "a key of an unknown kind is left out token_keys_file=%s kty=%.40r crv=%.40r",
        file,
        document["kty"],
        document.get("crv"),
    )
    return False


def _of_pem(file: str, data: bytes) -> list[_Key]:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    keys = []
    for block in data.split(b"-----BEGIN ")[1:]:
        pem = b"-----BEGIN " + block
        try:
            if block.startswith(b"CERTIFICATE-----"):
                key: Any = x509.load_pem_x509_certificate(pem).public_key()
            elif b"PRIVATE KEY-----" in block:
                raise InvalidArgument(
                    f"token_keys_file {file} has a private key, which a bookie needs not and must "
                    "not have. Cure: give the public key (openssl pkey -pubout)"
                )
            else:
                key = load_pem_public_key(pem)
        except ValueError as error:
            if isinstance(error, InvalidArgument):
                raise
            raise InvalidArgument(f"token_keys_file {file} has a block that is no key") from None
        keys.append(_key_of(file, key, None, None))
    return keys


def _key_of(file: str, key: Any, key_id: str | None, algorithm: str | None) -> _Key:
    """Returns the key with the algorithms that fit it, or the one that the set names."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    algorithms: tuple[str, ...] = ()
    if isinstance(key, RSAPublicKey) and key.key_size >= _RSA_BITS_MIN:
        algorithms = _RSA
    elif isinstance(key, EllipticCurvePublicKey):
        algorithms = _OF_CURVE.get(key.curve.name, ())
    elif isinstance(key, Ed25519PublicKey | Ed448PublicKey):
        algorithms = _EDWARDS
    if algorithm is not None:
        algorithms = tuple(one for one in algorithms if one == algorithm)
    if not algorithms:
        raise InvalidArgument(
            f"token_keys_file {file} has a key that cannot be used: it must be a public one of RSA "
            f"with at least {_RSA_BITS_MIN} bits, of a NIST curve, or Ed25519"
        )
    return _Key(key_id, algorithms, key)
