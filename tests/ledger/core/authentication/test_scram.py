"""SCRAM against the vectors of the RFCs, a naive twin, and peers that do not keep to it."""

from __future__ import annotations

import base64
import hashlib
import hmac
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.authentication import scram
from ledger.core.authentication.names import SCRAM_SHA_256, SCRAM_SHA_512
from ledger.core.authentication.scram import (
    ScramClient,
    ScramServer,
    made_up_verifier,
    matches,
    salted_password,
    verifier_of,
)
from ledger.errors import BookieUnavailable, InvalidArgument, Unauthorized

CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
# RFC 7677, section 3.
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
CHALLENGE = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
PROOF = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
BOTH = pytest.mark.parametrize("mechanism", [SCRAM_SHA_256, SCRAM_SHA_512])


def client_of(
    password: str = "pencil", mechanism: str = SCRAM_SHA_256, user: str = "user"
) -> ScramClient:
    return ScramClient(mechanism, user, CLIENT_NONCE, partial(salted_password, mechanism, password))


def test_the_vector_of_rfc_7677() -> None:
    client, server = client_of(), ScramServer(SCRAM_SHA_256)
    assert client.first() == FIRST
    assert server.user(FIRST) == "user"
    verifier = verifier_of(SCRAM_SHA_256, "pencil", SALT, 4096)
    assert server.challenge(verifier, SERVER_NONCE) == CHALLENGE
    assert client.final(CHALLENGE) == FINAL
    assert server.verify(FINAL) == PROOF
    client.check(PROOF)


def test_the_vector_of_rfc_5802(monkeypatch: pytest.MonkeyPatch) -> None:
    """With SHA-1, which is no mechanism of ours: the same steps with another hash."""
    monkeypatch.setitem(scram.HASHES, "SCRAM-SHA-1", "sha1")
    salt = base64.b64decode("QSXCR+Q6sek8bf92")
    client = ScramClient(
        "SCRAM-SHA-1",
        "user",
        "fyko+d2lbbFgONRv9qkxdawL",
        partial(salted_password, "SCRAM-SHA-1", "pencil"),
    )
    server = ScramServer("SCRAM-SHA-1")
    assert server.user(client.first()) == "user"
    verifier = verifier_of("SCRAM-SHA-1", "pencil", salt, 4096)
    challenge = server.challenge(verifier, "3rfcNHYJY1ZVvWVs7j")
    assert challenge == (b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096")
    final = client.final(challenge)
    assert final.endswith(b",p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=")
    proof = server.verify(final)
    assert proof == b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ="
    client.check(proof)


def naive_proof(mechanism: str, password: str, message: bytes, salt: bytes, count: int) -> bytes:
    """The client's proof, written down from RFC 5802 without regard to anything else."""
    name = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
    block = hmac.new(password.encode(), salt + b"\0\0\0\1", name).digest()
    total = int.from_bytes(block, "big")
    for _ in range(count - 1):
        block = hmac.new(password.encode(), block, name).digest()
        total ^= int.from_bytes(block, "big")
    salted = total.to_bytes(len(block), "big")
    client_key = hmac.new(salted, b"Client Key", name).digest()
    stored = hashlib.new(name, client_key).digest()
    signature = hmac.new(stored, message, name).digest()
    return bytes(a ^ b for a, b in zip(client_key, signature, strict=True))


@BOTH
def test_the_proof_is_that_of_a_naive_twin(mechanism: str) -> None:
    client, server = client_of("correct horse", mechanism), ScramServer(mechanism)
    server.user(client.first())
    challenge = server.challenge(verifier_of(mechanism, "correct horse", b"salt", 4096), "x" * 20)
    final = client.final(challenge)
    unproven, _, proof = final.rpartition(b",p=")
    message = client.first()[3:] + b"," + challenge + b"," + unproven
    assert base64.b64decode(proof) == naive_proof(
        mechanism, "correct horse", message, b"salt", 4096
    )
    client.check(server.verify(final))


@BOTH
@pytest.mark.parametrize("user", ["user", "a=b,c", "ünal"])
def test_a_wrong_password_is_refused_and_names_are_escaped(mechanism: str, user: str) -> None:
    for password, is_right in (("pencil", True), ("pencils", False)):
        client, server = client_of(password, mechanism, user), ScramServer(mechanism)
        assert server.user(client.first()) == user
        final = client.final(
            server.challenge(verifier_of(mechanism, "pencil", SALT, 4096), SERVER_NONCE)
        )
        if is_right:
            client.check(server.verify(final))
        else:
            with pytest.raises(Unauthorized, match="wrong password, or no such user"):
                server.verify(final)


@BOTH
def test_an_unknown_user_meets_the_same_exchange_and_never_gets_in(mechanism: str) -> None:
    verifier = made_up_verifier(mechanism, "nobody", b"secret of the cluster")
    real = verifier_of(mechanism, "pencil", bytes(scram.SALT_BYTES), scram.ITERATIONS)
    assert verifier == made_up_verifier(mechanism, "nobody", b"secret of the cluster")
    assert verifier.salt != made_up_verifier(mechanism, "anyone", b"secret of the cluster").salt
    assert verifier.salt != made_up_verifier(mechanism, "nobody", b"another secret").salt
    assert [len(verifier.salt), len(verifier.stored_key), len(verifier.server_key)] == [
        len(real.salt),
        len(real.stored_key),
        len(real.server_key),
    ]
    client, server = client_of("pencil", mechanism), ScramServer(mechanism)
    server.user(client.first())
    final = client.final(server.challenge(verifier, SERVER_NONCE))
    with pytest.raises(Unauthorized, match="wrong password, or no such user"):
        server.verify(final)


def test_a_replayed_proof_is_refused() -> None:
    verifier = verifier_of(SCRAM_SHA_256, "pencil", SALT, 4096)
    server = ScramServer(SCRAM_SHA_256)
    server.user(FIRST)
    server.challenge(verifier, SERVER_NONCE)
    server.verify(FINAL)
    with pytest.raises(Unauthorized, match="wrong order"):
        server.verify(FINAL)
    later = ScramServer(SCRAM_SHA_256)
    later.user(FIRST)
    later.challenge(verifier, "another nonce of 20 b")
    with pytest.raises(Unauthorized, match="the nonce is that of another exchange"):
        later.verify(FINAL)


def test_a_server_has_an_order() -> None:
    server = ScramServer(SCRAM_SHA_256)
    with pytest.raises(Unauthorized, match="wrong order"):
        server.verify(FINAL)
    with pytest.raises(Unauthorized, match="wrong order"):
        server.challenge(verifier_of(SCRAM_SHA_256, "pencil", SALT, 4096), SERVER_NONCE)


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (b"", "channel binding"),
        (b"p=tls-unique,,n=user,r=abc", "channel binding"),
        (b"n,,n=user", "no name and nonce"),
        (b"n,n=user,r=abc", "no name and nonce|another user"),
        (b"n,,r=abc,n=user", "no name and nonce"),
        (b"n,a=admin,n=user,r=abc", "another user"),
        (b"n,,m=x,n=user,r=abc", "unknown extension"),
        (b"n,,n=us=er,r=abc", "not escaped"),
        (b"n,,n=user,r=", "characters that are not allowed"),
        (b"n,,n=user,r=\x00bc", "characters that are not allowed"),
        (b"n,,n=user,r=\xff", "not UTF-8"),
        (b"n,,n=user,r=" + b"a" * 257, "characters that are not allowed"),
        (b"n,,n=user,r=" + b"a" * 3000, "a message of 3012 bytes"),
    ],
)
def test_first_messages_that_are_none(first: bytes, why: str) -> None:
    with pytest.raises(Unauthorized, match=why):
        ScramServer(SCRAM_SHA_256).user(first)


@pytest.mark.parametrize(
    ("final", "why"),
    [
        (b"", "not one of SCRAM"),
        (FINAL[:-60], "not Base64|wrong length|no binding|not one of SCRAM"),
        (FINAL.replace(b"biws", b"eSws"), "channel binding differs"),
        (FINAL.replace(b"c=biws,", b""), "no binding"),
        (FINAL.replace(b",p=dHzb", b",p=dHz"), "not Base64"),
        (FINAL.replace(b",p=dHzb", b",p="), "wrong length"),
        (FINAL.replace(b",p=dHzb", b",p=dHzc"), "wrong password"),
        (FINAL.replace(b"k0,", b"k1,"), "another exchange"),
    ],
)
def test_last_messages_that_are_wrong(final: bytes, why: str) -> None:
    server = ScramServer(SCRAM_SHA_256)
    server.user(FIRST)
    server.challenge(verifier_of(SCRAM_SHA_256, "pencil", SALT, 4096), SERVER_NONCE)
    with pytest.raises(Unauthorized, match=why):
        server.verify(final)


@pytest.mark.parametrize(
    ("challenge", "why"),
    [
        (CHALLENGE.replace(b"i=4096", b"i=4095"), "4095 iterations"),
        (CHALLENGE.replace(b"i=4096", b"i=999999999"), "999999999 iterations"),
        (CHALLENGE.replace(b"i=4096", b"i=0"), "is none"),
        (CHALLENGE.replace(b"i=4096", b"i=9999999999"), "is none"),
        (CHALLENGE.replace(b"r=rOp", b"r=xOp"), "not a new one"),
        (b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "not a new one"),
        (CHALLENGE.replace(b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s="), "salt is empty"),
        (CHALLENGE.replace(b"s=", b"s=!"), "not Base64"),
        (b"m=x," + CHALLENGE, "unknown extension"),
        (b"v=abcd", "no nonce, salt"),
        (b"e=unknown-user", "reports an error"),
    ],
)
def test_a_client_answers_no_wrong_challenge(challenge: bytes, why: str) -> None:
    client = client_of()
    client.first()
    with pytest.raises(Unauthorized, match=why):
        client.final(challenge)


def test_a_server_that_cannot_look_up_users_has_refused_nobody() -> None:
    with pytest.raises(BookieUnavailable, match="cannot look up users now"):
        client_of().final(scram.NO_RESOURCES)


@pytest.mark.parametrize(
    "last", [b"v=" + base64.b64encode(bytes(32)), b"v=", b"", b"r=abc", b"v=!", b"e=other-error"]
)
def test_a_bookie_that_does_not_know_the_user_is_not_trusted(last: bytes) -> None:
    client = client_of()
    with pytest.raises(Unauthorized):
        client.check(b"v=")
    client.final(CHALLENGE)
    with pytest.raises(Unauthorized):
        client.check(last)


@given(messages=st.lists(st.binary(max_size=200) | st.text(max_size=60).map(str.encode)))
def test_no_bytes_of_a_peer_cause_another_error(messages: list[bytes]) -> None:
    verifier = made_up_verifier(SCRAM_SHA_256, "user", b"s")
    for message in messages:
        server = ScramServer(SCRAM_SHA_256)
        client = ScramClient(SCRAM_SHA_256, "user", CLIENT_NONCE, lambda salt, n: bytes(32))
        with suppress(Unauthorized):
            server.user(message)
        with suppress(Unauthorized):
            server.challenge(verifier, SERVER_NONCE)
        for step in (server.verify, client.final, client.check):
            with suppress(Unauthorized):
                step(message)


def test_mutated_messages_never_let_in() -> None:
    verifier = verifier_of(SCRAM_SHA_256, "pencil", SALT, 4096)
    for at in range(len(FINAL)):
        for change in (1, 0x20, 0x80):
            server = ScramServer(SCRAM_SHA_256)
            server.user(FIRST)
            server.challenge(verifier, SERVER_NONCE)
            mutated = bytearray(FINAL)
            mutated[at] ^= change
            try:
                server.verify(bytes(mutated))
            except Unauthorized:
                continue
            proof = base64.b64decode(bytes(mutated).rpartition(b",p=")[2])
            assert proof == base64.b64decode(FINAL.rpartition(b",p=")[2])  # unused bits of Base64


@BOTH
def test_a_password_that_was_sent_is_compared(mechanism: str) -> None:
    verifier = verifier_of(mechanism, "Ⅸ pencils", SALT, 4096)
    assert matches(mechanism, "IX pencils", verifier)
    assert not matches(mechanism, "ix pencils", verifier)
    with pytest.raises(InvalidArgument, match="the password is empty"):
        matches(mechanism, "", verifier)


def test_nothing_secret_is_in_a_repr() -> None:
    verifier = verifier_of(SCRAM_SHA_256, "pencil", SALT, 4096)
    assert "key" not in repr(verifier)
    assert "pencil" not in repr(client_of())
