"""Tokens: which are believed, and for what reason all others are not."""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from bookie.server.tokens import JwtVerifier
from ledger.errors import InvalidArgument, Unauthorized

ED = ed25519.Ed25519PrivateKey.generate()
OTHER = ed25519.Ed25519PrivateKey.generate()
P256 = ec.generate_private_key(ec.SECP256R1())
RSA = rsa.generate_private_key(65537, 2048)
AUDIENCE = "bookies"


def public(key: Any) -> bytes:
    data: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return data


def private(key: Any) -> bytes:
    data: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return data


def claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    found = {"sub": "ann", "aud": AUDIENCE, "exp": now + 600, "iss": "us", **changes}
    return {name: value for name, value in found.items() if value is not None}


def token(key: Any = ED, algorithm: str = "EdDSA", kid: str | None = None, **changes: Any) -> str:
    headers = None if kid is None else {"kid": kid}
    return jwt.encode(claims(**changes), key, algorithm=algorithm, headers=headers)


def verifier(path: Path, *, issuer: str = "", user_claim: str = "sub") -> JwtVerifier:
    return JwtVerifier(str(path), audience=AUDIENCE, issuer=issuer, user_claim=user_claim)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.pem"
    path.write_bytes(public(ED) + public(P256) + public(RSA))
    return path


def test_a_token_proves_its_user(keys: Path) -> None:
    tokens = verifier(keys, issuer="us")
    assert tokens.verify(token()).user == "ann"
    assert tokens.verify(token(P256, "ES256")).user == "ann"
    for algorithm in ("RS256", "PS512"):
        assert tokens.verify(token(RSA, algorithm, aud=["x", AUDIENCE])).user == "ann"
    assert verifier(keys, user_claim="name").verify(token(name="system:job")).user == "system:job"
    assert (
        verifier(keys).verify(token(exp=int(time.time()) - 10)).user == "ann"
    )  # within the leeway


def unsigned(algorithm: str, signature: bytes = b"") -> str:
    def part(document: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(document).encode()).rstrip(b"=").decode()

    last = base64.urlsafe_b64encode(signature).rstrip(b"=").decode()
    return f"{part({'alg': algorithm, 'typ': 'JWT'})}.{part(claims())}.{last}"


def signed_with_the_public_key_as_a_secret() -> str:
    import hashlib
    import hmac

    body = unsigned("HS256").rstrip(".")
    signature = hmac.new(public(RSA), body.encode(), hashlib.sha256).digest()
    return f"{body}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


REFUSED: dict[str, tuple[Any, str]] = {
    "expired": (lambda: token(exp=int(time.time()) - 60), "has expired"),
    "not yet": (lambda: token(nbf=int(time.time()) + 600), "not valid yet"),
    "audience": (lambda: token(aud="others"), "for another audience"),
    "no audience": (lambda: token(aud=None), "lacks a claim"),
    "no expiry": (lambda: token(exp=None), "lacks a claim"),
    "no user": (lambda: token(sub=None), "lacks a claim"),
    "issuer": (lambda: token(iss="them"), "of another issuer"),
    "no issuer": (lambda: token(iss=None), "lacks a claim"),
    "other key": (lambda: token(OTHER), "signed by another key"),
    "none": (lambda: unsigned("none"), "algorithm fits none of the keys"),
    "None": (lambda: unsigned("None"), "algorithm fits none of the keys"),
    "empty": (lambda: unsigned("EdDSA"), "signed by another key"),
    "confused": (signed_with_the_public_key_as_a_secret, "algorithm fits none of the keys"),
    "claims": (lambda: token()[:-90], "no JWT|another key"),
    "garbage": (lambda: "garbage", "no JWT"),
    "nothing": (lambda: "", "no JWT"),
    "odd user": (lambda: token(sub="a/b"), "no name that a user can have"),
    "anonymous": (lambda: token(sub="anonymous"), "no name that a user can have"),
    "number": (lambda: token(sub=None, name=7), "lacks a claim"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_all_others_are_refused_with_the_reason(keys: Path, kind: str) -> None:
    make, why = REFUSED[kind]
    given = make()
    with pytest.raises(Unauthorized, match=why) as caught:
        verifier(keys, issuer="us").verify(given)
    assert all(part not in str(caught.value) for part in given.split(".") if len(part) > 10)


def test_an_extension_that_must_be_understood_is_refused(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwt, "get_unverified_header", lambda _: {"alg": "EdDSA", "crit": ["x"]})
    with pytest.raises(Unauthorized, match="an extension that must be understood"):
        verifier(keys).verify(token())


NESTED = base64.urlsafe_b64encode(b"[" * 9000).decode().rstrip("=") + ".e30.AA"


@pytest.mark.parametrize("raised", [None, RecursionError, OverflowError, TypeError, KeyError])
def test_no_token_raises_anything_else(
    keys: Path, monkeypatch: pytest.MonkeyPatch, raised: type[Exception] | None
) -> None:
    """PyJWT 2.8 raises RecursionError for nested arrays, and others for odd claims."""
    tokens = verifier(keys)
    if raised is not None:

        def fail(_: str) -> None:
            raise raised("as it was")

        monkeypatch.setattr(jwt, "get_unverified_header", fail)
    with pytest.raises(Unauthorized, match=r"^it is no JWT$"):
        tokens.verify(NESTED)


@pytest.mark.parametrize("expires_at_s", [1e308, 10**400, 1 << 63])
def test_an_expiry_beyond_all_clocks_is_a_number_that_clocks_can_be_compared_with(
    keys: Path, expires_at_s: float
) -> None:
    found = verifier(keys).verify(token(exp=expires_at_s))
    assert found.user == "ann"
    assert 1e12 < found.expires_at_s - time.time() < 2e12


def jwks(**keys: Any) -> bytes:
    documents = []
    for name, key in keys.items():
        algorithm = "OKP" if key in (ED, OTHER) else "RSA"
        kind = jwt.algorithms.OKPAlgorithm if algorithm == "OKP" else jwt.algorithms.RSAAlgorithm
        document = json.loads(kind.to_jwk(key.public_key()))
        documents.append({**document, "kid": name, "use": "sig"})
    return json.dumps({"keys": documents}).encode()


def test_a_set_of_keys_is_searched_by_key_id(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(jwks(one=ED, two=OTHER, three=RSA))
    tokens = verifier(path)
    assert tokens.verify(token(ED, kid="one")).user == "ann"
    assert tokens.verify(token(OTHER, kid="two")).user == "ann"
    assert tokens.verify(token(OTHER)).user == "ann"
    assert tokens.verify(token(RSA, "RS256", kid="three")).user == "ann"
    with pytest.raises(Unauthorized, match="signed by another key"):
        tokens.verify(token(OTHER, kid="one"))
    with pytest.raises(Unauthorized, match="names a key that is not known"):
        tokens.verify(token(ED, kid="four"))


def test_keys_of_unknown_kinds_in_a_set_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unknown = [{"kty": "AKP", "kid": "new"}, {"kty": "EC", "crv": "secp256k1", "kid": "odd"}]
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [*unknown, *json.loads(jwks(one=ED))["keys"]]}))
    assert verifier(path).verify(token(ED, kid="one")).user == "ann"
    with pytest.raises(Unauthorized, match="names a key that is not known"):
        verifier(path).verify(token(ED, kid="new"))
    assert "a key of an unknown kind is left out" in caplog.text
    assert "kty='EC' crv='secp256k1'" in caplog.text


def test_a_file_that_every_user_can_change_is_refused(keys: Path) -> None:
    keys.chmod(0o646)
    with pytest.raises(InvalidArgument, match=r"mode 0646: every user .* trusted.* chmod o-w"):
        verifier(keys)


def test_keys_are_replaced_while_the_bookie_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.pem"
    path.write_bytes(public(ED))
    tokens = verifier(path)
    (tmp_path / "new").write_bytes(public(OTHER))
    os.replace(tmp_path / "new", path)
    assert tokens.verify(token(OTHER)).user == "ann"
    with pytest.raises(Unauthorized, match="signed by another key"):
        tokens.verify(token(ED))
    (tmp_path / "new").write_bytes(b"nothing")
    os.replace(tmp_path / "new", path)
    assert tokens.verify(token(OTHER)).user == "ann"
    path.unlink()
    assert tokens.verify(token(OTHER)).user == "ann"
    assert "keys of tokens not read again, those from before hold" in caplog.text


SYMMETRIC = {"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}
BAD_FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "has 0 public keys"),
    "no set": (b"{}", "is no JSON Web Key Set: KeyError"),
    "broken": (b'{"keys":', "is no JSON Web Key Set"),
    "odd": (b'{"keys": [{"kty": 7}, 7]}', "is no JSON Web Key Set"),
    "no kind": (b'{"keys": [{"kid": "x"}]}', "is no JSON Web Key Set"),
    "unknown": (b'{"keys": [{"kty": "x"}]}', "has 0 public keys"),
    "symmetric": (json.dumps(SYMMETRIC).encode(), "has a symmetric key"),
    "private": (private(ED), "has a private key"),
    "no key": (b"-----BEGIN PUBLIC KEY-----\n!\n-----END PUBLIC KEY-----\n", "is no key"),
    "short": (public(rsa.generate_private_key(65537, 1024)), "cannot be used"),
    "curve": (public(ec.generate_private_key(ec.SECP256K1())), "cannot be used"),
    "long": (b" " * (1 << 21), "has more than"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_file_without_usable_keys_is_an_error_at_once(tmp_path: Path, kind: str) -> None:
    data, why = BAD_FILES[kind]
    path = tmp_path / "keys"
    path.write_bytes(data)
    with pytest.raises(InvalidArgument, match=why):
        verifier(path)


def test_a_missing_file_or_library_is_named(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidArgument, match=r"cannot read .*: No such file"):
        verifier(tmp_path / "none")
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(InvalidArgument, match=r"pip install 'ledgerstream\[security\]'"):
        verifier(keys)
