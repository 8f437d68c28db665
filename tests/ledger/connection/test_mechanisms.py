"""Where a client's credentials come from, and that they are read again for each connection."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from ledger.connection.authentication import auth_source
from ledger.connection.mechanisms import CredentialsProvider
from ledger.core.authentication.names import SCRAM_SHA_256
from ledger.core.authentication.scram import ScramServer, verifier_of
from ledger.credentials import Credentials, Secret
from ledger.errors import InvalidArgument, Unauthorized
from ledger.options import ClientOptions
from tests.ledger.connection.test_authentication import Friend

PASSWORD = Credentials(user="ann", password=Secret("swordfish"))


def rng() -> random.Random:
    return random.Random(1)


def written(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def test_a_client_without_credentials_does_not_authenticate() -> None:
    friend = Friend()
    assert auth_source(None, ClientOptions(), rng())() is None
    assert auth_source(friend, ClientOptions(), rng())() is friend


def test_there_is_one_identity(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="give auth=, or credentials in the options"):
        auth_source(Friend(), ClientOptions(credentials=PASSWORD), rng())
    with pytest.raises(InvalidArgument, match="give credentials or credentials_file, not both"):
        ClientOptions(credentials=PASSWORD, credentials_file="x")
    with pytest.raises(InvalidArgument, match="none cannot be read"):
        auth_source(None, ClientOptions(credentials_file=str(tmp_path / "none")), rng())


def test_a_file_is_read_again_for_each_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "credentials"
    file = written(path, 'token = "first"')
    source = auth_source(None, ClientOptions(credentials_file=file, tls="direct"), rng())

    def sent() -> bytes:
        provider = source()
        assert provider is not None
        return provider.begin("b").first_payload()

    assert b"first" in sent()
    written(path, 'token = "second"')
    assert b"second" in sent()
    path.unlink()
    assert b"second" in sent()
    assert "credentials not read again, those from before are used" in caplog.text
    assert "second" not in caplog.text
    written(path, 'user = "ann"\npassword = "x"')
    provider = source()
    assert provider is not None
    assert provider.plugin == SCRAM_SHA_256
    assert source() is provider


@pytest.mark.parametrize("kind", ["TOKEN", "DIGEST-MD5"])
def test_what_a_listener_could_use_is_not_sent_in_clear(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    secret = Credentials(user="ann", password=Secret("x"), mechanism="DIGEST-MD5")
    text = 'user = "ann"\npassword = "x"\nmechanism = "DIGEST-MD5"'
    if kind == "TOKEN":
        secret, text = Credentials(token=Secret("a.b")), 'token = "a.b"'
    why = f"credentials of the kind {kind} are not sent over connections that are not encrypted"
    with pytest.raises(InvalidArgument, match=f"{why}.* Cure: tls = start_tls"):
        auth_source(None, ClientOptions(credentials=secret), rng())
    for options in ({"tls": "start_tls"}, {"secrets_in_clear_allowed": True}):
        assert auth_source(None, ClientOptions(credentials=secret, **options), rng())() is not None
    # Nor when a file comes to have one: the password from before is used.
    path = tmp_path / "credentials"
    source = auth_source(
        None, ClientOptions(credentials_file=written(path, 'user = "ann"\npassword = "x"')), rng()
    )
    written(path, text)
    provider = source()
    assert provider is not None
    assert provider.plugin == SCRAM_SHA_256
    assert why in caplog.text


def test_a_file_may_allow_secrets_in_clear(tmp_path: Path) -> None:
    text = 'token = "a.b"\nsecrets_in_clear_allowed = true'
    options = ClientOptions.from_file(written(tmp_path / "credentials", text))
    assert auth_source(None, options, rng())() is not None


def test_a_password_is_hashed_once_for_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []
    real = hashlib.pbkdf2_hmac

    def counted(name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        hashed.append(iterations)
        return real(name, password, salt, iterations)

    verifier = verifier_of(SCRAM_SHA_256, "swordfish", b"salt", 4096)
    monkeypatch.setattr(hashlib, "pbkdf2_hmac", counted)
    provider = CredentialsProvider(PASSWORD, rng())
    nonces = set()
    for bookie in ("a", "b", "c"):
        exchange, server = provider.begin(bookie), ScramServer(SCRAM_SHA_256)
        first = exchange.first_payload()
        nonces.add(first)
        assert server.user(first) == "ann"
        final = exchange.answer(server.challenge(verifier, "x" * 20))
        assert final is not None
        assert exchange.answer(server.verify(final)) is None
    assert hashed == [4096]
    assert len(nonces) == 3


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "DIGEST-MD5"])
def test_a_bookie_that_knows_nothing_is_not_trusted(mechanism: str) -> None:
    who = Credentials(user="ann", password=Secret("swordfish"), mechanism=mechanism)
    exchange = CredentialsProvider(who, rng()).begin("b")
    assert b"swordfish" not in exchange.first_payload()
    with pytest.raises(Unauthorized, match=r"not one of (SCRAM|DIGEST-MD5)"):
        exchange.answer(b"")
    token = CredentialsProvider(Credentials(token=Secret("a.b")), rng()).begin("b")
    token.first_payload()
    with pytest.raises(Unauthorized, match="does not accept the token"):
        token.answer(b"e")
