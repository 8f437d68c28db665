"""DIGEST-MD5 against the examples of RFC 2831, and peers that do not keep to it."""

from __future__ import annotations

import hashlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.authentication.digest_md5 import DigestMd5Client, DigestMd5Server, user_secret
from ledger.errors import Unauthorized

# RFC 2831, section 4: IMAP and ACAP.
EXAMPLES = [
    (
        "imap/elwood.innosoft.com",
        "OA6MG9tEQGm2hh",
        "OA6MHXh6VqTrRk",
        "d388dad90d4bbd760a152321f2143af7",
        "ea40f60335c427b5527b84dbabcdfffd",
    ),
    (
        "acap/elwood.innosoft.com",
        "OA9BSXrbuRhWay",
        "OA9BSuZWMSpW8m",
        "6084c6db3fede7352c551284490fd0fc",
        "2f0b3d7c3c2e486600ef710726aa2eae",
    ),
]
REALM = "elwood.innosoft.com"


@pytest.mark.parametrize(("uri", "nonce", "cnonce", "response", "rspauth"), EXAMPLES)
def test_the_examples_of_rfc_2831(
    uri: str, nonce: str, cnonce: str, response: str, rspauth: str
) -> None:
    challenge = (
        f'realm="{REALM}",nonce="{nonce}",qop="auth",algorithm=md5-sess,charset=utf-8'
    ).encode()
    client = DigestMd5Client("chris", "secret", cnonce, digest_uri=uri)
    answer = client.respond(challenge)
    assert f"response={response}".encode() in answer
    server = DigestMd5Server(nonce, realm=REALM, digest_uri=uri)
    assert server.user(answer) == "chris"
    proof = server.verify(user_secret("chris", "secret", REALM))
    assert proof == f"rspauth={rspauth}".encode()
    client.check(proof)


def java_answer(nonce: str, secret_of: str = "swordfish", authzid: str = "fred") -> bytes:
    """The form in which the JDK's client answers: it names the user twice."""

    def md5(data: bytes) -> str:
        return hashlib.md5(data).hexdigest()

    a1 = hashlib.md5(f"fred:bookkeeper:{secret_of}".encode()).digest()
    a1 += f":{nonce}:cn+/=:{authzid}".encode()
    ha2 = md5(b"AUTHENTICATE:bookkeeper/bookkeeper")
    response = md5(f"{md5(a1)}:{nonce}:00000001:cn+/=:auth:{ha2}".encode())
    return (
        f'charset=utf-8,username="fred",realm="bookkeeper",nonce="{nonce}",nc=00000001,'
        f'cnonce="cn+/=",digest-uri="bookkeeper/bookkeeper",maxbuf=65536,'
        f'response={response},qop=auth,authzid="{authzid}"'
    ).encode()


def test_a_client_of_the_jdk_is_understood() -> None:
    server = DigestMd5Server("n1")
    assert server.challenge() == (
        b'realm="bookkeeper",nonce="n1",qop="auth",charset=utf-8,algorithm=md5-sess'
    )
    assert server.user(java_answer("n1")) == "fred"
    assert server.verify(user_secret("fred", "swordfish")).startswith(b"rspauth=")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (java_answer("n2"), "nonce is not that of this exchange"),
        (java_answer("n1", authzid="admin"), "another user"),
        (java_answer("n1").replace(b"nc=00000001", b"nc=00000002"), "nc is not"),
        (java_answer("n1").replace(b"bookkeeper/book", b"imap/book"), "digest-uri is not"),
        (java_answer("n1").replace(b'realm="book', b'realm="look'), "realm is not"),
        (java_answer("n1").replace(b"qop=auth", b"qop=auth-conf"), "integrity or privacy"),
        (java_answer("n1").replace(b"utf-8", b"latin-1"), "UTF-8"),
        (java_answer("n1") + b',nonce="n1"', "not one of DIGEST-MD5"),
        (java_answer("n1")[:-1], "not one of DIGEST-MD5"),
        (b"", "realm is not"),
        (b"=", "not one of DIGEST-MD5"),
        (b"\xff", "not UTF-8"),
        (b"a" * 5000, "5000 bytes"),
    ],
)
def test_answers_that_are_wrong(answer: bytes, why: str) -> None:
    with pytest.raises(Unauthorized, match=why):
        DigestMd5Server("n1").user(answer)


def test_a_wrong_password_and_an_answer_out_of_order_are_refused() -> None:
    server = DigestMd5Server("n1")
    with pytest.raises(Unauthorized, match="wrong order"):
        server.verify(user_secret("fred", "swordfish"))
    server.user(java_answer("n1", "haddock"))
    with pytest.raises(Unauthorized, match="wrong password, or no such user"):
        server.verify(user_secret("fred", "swordfish"))
    with pytest.raises(Unauthorized, match="wrong order"):
        server.verify(user_secret("fred", "haddock"))


@pytest.mark.parametrize(
    ("challenge", "why"),
    [
        (b'nonce="n"', "not one of DIGEST-MD5"),
        (b"algorithm=md5-sess", "not one of DIGEST-MD5"),
        (b'nonce="n",algorithm=md5-sess,qop="auth-conf"', "integrity or privacy"),
    ],
)
def test_challenges_that_are_wrong(challenge: bytes, why: str) -> None:
    client = DigestMd5Client("fred", "swordfish", "c")
    with pytest.raises(Unauthorized, match=why):
        client.respond(challenge)
    with pytest.raises(Unauthorized, match="does not know this user"):
        client.check(b"rspauth=0")


def test_a_user_with_odd_characters_gets_in() -> None:
    for user, password in (('a"b\\c', "x,y"), ("ünal", "ß"), ("ann", "日本")):
        client, server = DigestMd5Client(user, password, "c" * 8), DigestMd5Server("n1")
        assert server.user(client.respond(server.challenge())) == user
        client.check(server.verify(user_secret(user, password)))


@given(st.binary(max_size=300) | st.text(max_size=100).map(str.encode))
def test_no_bytes_of_a_peer_cause_another_error(message: bytes) -> None:
    server, client = DigestMd5Server("n1"), DigestMd5Client("fred", "swordfish", "c")
    for step in (server.user, lambda _: server.verify(bytes(16)), client.respond, client.check):
        with suppress(Unauthorized):
            step(message)
