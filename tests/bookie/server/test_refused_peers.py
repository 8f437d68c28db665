"""Each way to be refused: the bookie's log and audit log say which it was, and so does the client.

Certificates of bookies are refused by clients; an alert is what the bookie learns of it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio

from bookie.server import tokens
from bookie.server.auth_session import MESSAGES_MAX
from ledger.core.authentication.digest_md5 import DigestMd5Client
from ledger.core.authentication.names import DIGEST_MD5, SCRAM_SHA_256, TOKEN
from ledger.credentials import Credentials, Secret
from ledger.errors import BookieUnavailable, LedgerError, Status, Unauthorized
from ledger.metastore.memory import MemoryStore
from ledger.metastore.users import UserStore
from ledger.proto import bookkeeper_protocol_pb2 as pb
from ledger.wire import v3
from ledger.wire.messages import (
    AuthRequest,
    ErrorResponse,
    GetBookieInfoRequest,
    ReadRequest,
    Response,
)
from tests.bookie.server.permitted_cluster import until
from tests.bookie.server.test_audit import lines_of
from tests.bookie.server.test_authentication import (
    ANN,
    VERSIONS,
    guarded,
    log_in,
    raw,
    scram_client,
)
from tests.bookie.server.test_server import add
from tests.bookie.server.test_tls import encrypted_cluster, options
from tests.bookie.server.test_tokens import AUDIENCE, ED, OTHER, public, token, unsigned
from tests.certificates import Authority
from tests.real_cluster import RealCluster


@dataclass
class World:
    """A bookie that requires TLS, certificates of clients or authentication."""

    cluster: RealCluster
    authority: Authority
    audit: Path
    caplog: pytest.LogCaptureFixture

    async def refused(
        self, given: dict[str, Any], says: str, *, kind: type[LedgerError] = BookieUnavailable
    ) -> None:
        """Checks that a client with these options gets an error with this text."""
        bookie = self.cluster.bookies[0].bookie_id
        async with self.cluster.client(**given) as client:
            with pytest.raises(kind, match=says):
                await client.pool.call(bookie, GetBookieInfoRequest(3), timeout_s=60)

    async def shows(self, line: str, action: str = "authenticate", **audited: str) -> None:
        """Checks one line of the bookie's log, and the last one of its audit log."""
        with trio.fail_after(20):
            await until(lambda: line in self.caplog.text)
            await until(lambda: self.audit.exists() and audited.items() <= self._last(action))
        assert len([one for one in self.caplog.messages if line in one]) == 1

    def _last(self, action: str) -> Any:
        found = [one for one in lines_of(self.audit) if one["action"] == action]
        return (found[-1] if found else {}).items()


@asynccontextmanager
async def world(
    directory: Path, caplog: pytest.LogCaptureFixture, **settings: Any
) -> AsyncIterator[World]:
    caplog.set_level("WARNING")
    authority = Authority(directory)
    audit = directory / "audit.log"
    settings["audit_file"] = str(audit)
    async with encrypted_cluster(authority, **settings) as cluster:
        async with MemoryStore(cluster.tree, lambda: 0) as store:
            await UserStore(store).create(ANN)
        yield World(cluster, authority, audit, caplog)


HANDSHAKE = "tls handshake failed peer=127.0.0.1"


@dataclass
class Certificate:
    """A certificate that is refused, and how."""

    server_error: str
    """What the client says of it as that of a bookie."""
    alert: str
    """What the client lets the bookie know."""
    client_line: str
    """What the bookie says of it as that of a client; "" if it is accepted."""
    client_error: str = ""
    begins_days: float = -1.0
    ends_days: float = 365.0
    host: str = "127.0.0.1"
    is_of_another: bool = False
    """Of an authority that is not, or no longer, in the file of authorities."""
    is_self_signed: bool = False


CERTIFICATES = {
    "expired": Certificate(
        "certificate has expired",
        "alert certificate expired",
        "certificate has expired",
        "certificate expired",
        begins_days=-9,
        ends_days=-1,
    ),
    "not yet valid": Certificate(
        "certificate is not yet valid",
        "alert bad certificate",
        "certificate is not yet valid",
        "bad certificate",
        begins_days=1,
        ends_days=9,
    ),
    "wrong host": Certificate(
        "IP address mismatch, certificate is not valid for '127.0.0.1'",
        "alert bad certificate",
        "",
        host="127.0.0.2",
    ),
    "removed authority": Certificate(
        "unable to get local issuer certificate",
        "alert unknown ca",
        "unable to get local issuer certificate",
        "unknown ca",
        is_of_another=True,
    ),
    "self-signed": Certificate(
        "self-signed certificate",
        "alert unknown ca",
        "self-signed certificate",
        "unknown ca",
        is_self_signed=True,
    ),
}


def issue(one: Certificate, authority: Authority, name: str) -> tuple[Path, Path]:
    if one.is_self_signed:
        return authority.issue(name, one.host, is_self_signed=True)
    issuer = Authority(authority.directory, "another") if one.is_of_another else authority
    return issuer.issue(name, one.host, begins_days=one.begins_days, ends_days=one.ends_days)


@pytest.mark.parametrize("kind", CERTIFICATES)
async def test_a_bookie_with_a_certificate_that_is_not_accepted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    one = CERTIFICATES[kind]
    async with world(tmp_path, caplog) as here:
        issue(one, here.authority, "bookie")
        await here.refused(options(here.authority), f"no TLS with bookie .*{one.server_error}")
        await here.shows(HANDSHAKE, mechanism="TLS", outcome="refused")
        assert one.alert in caplog.text
        assert one.alert in lines_of(here.audit)[-1]["cause"]


@pytest.mark.parametrize("kind", [kind for kind in CERTIFICATES if kind != "wrong host"])
async def test_a_client_with_a_certificate_that_is_not_accepted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    one = CERTIFICATES[kind]
    required: dict[str, Any] = {
        "tls_client_certificate": "required",
        "tls_ca_file": str(tmp_path / "authority.pem"),
    }
    async with world(tmp_path, caplog, **required) as here:
        certificate, key = issue(one, here.authority, "client")
        own = {"tls_certificate_file": str(certificate), "tls_key_file": str(key)}
        await here.refused(options(here.authority, **own), one.client_error)
        why = f"its certificate is not accepted: {one.client_line}"
        await here.shows(HANDSHAKE, mechanism="TLS", cause=why)
        assert f"cause={why}" in caplog.text


async def test_a_client_whose_offer_to_encrypt_was_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A program between them answers for the bookie, and passes the rest on in clear."""
    async with world(tmp_path, caplog, tls_required=True) as here:
        async with raw(here.cluster, 3) as peer:  # what such a client would send next
            answer = await peer.ask(AuthRequest(SCRAM_SHA_256, scram_client().first()))
            assert answer == ErrorResponse(Status.UNAUTHORIZED, pb.AUTH)
        why = "is not encrypted, and this bookie requires TLS"
        await here.shows(f"cause=AuthRequest {why}", outcome="refused", cause=why)

        async def strip(stream: trio.SocketStream) -> None:
            request = v3.decode_request((await stream.receive_some())[4:])
            refusal = ErrorResponse(Status.BAD_REQUEST, pb.START_TLS)
            await stream.send_all(v3.encode_response(Response(3, request.txn_id, refusal)))
            await stream.receive_some()

        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, strip, listeners)
            port = listeners[0].socket.getsockname()[1]
            async with here.cluster.client(**options(here.authority)) as client:
                says = r"does not start TLS \(BAD_REQUEST\), and this client requires it"
                with pytest.raises(BookieUnavailable, match=says):
                    await client.pool.wait_connected(f"127.0.0.1:{port}", 2)
            nursery.cancel_scope.cancel()


async def test_a_replayed_exchange(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"authentication_mechanisms": (SCRAM_SHA_256,)}
    async with world(tmp_path, caplog, **settings) as here:
        async with raw(here.cluster, 3) as peer:
            sent = await log_in(peer, scram_client())
        async with raw(here.cluster, 3) as attacker:
            await attacker.ask(AuthRequest(SCRAM_SHA_256, sent[0]))
            answer = await attacker.ask(AuthRequest(SCRAM_SHA_256, sent[1]))
            assert answer == ErrorResponse(Status.UNAUTHORIZED, pb.AUTH)
        why = "the nonce is that of another exchange"
        await here.shows(f"user=ann cause={why}", user="ann", cause=why, outcome="refused")


TOKENS: dict[str, tuple[Callable[[], str], str]] = {
    "expired": (lambda: token(exp=int(time.time()) - 2 * tokens.LEEWAY_S), "the token has expired"),
    "audience": (lambda: token(aud="others"), "the token is for another audience"),
    "none": (lambda: unsigned("none"), "the token's algorithm fits none of the keys"),
    "another key": (lambda: token(OTHER), "the token is signed by another key"),
}


@pytest.mark.parametrize("kind", TOKENS)
async def test_a_token_that_proves_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    make, why = TOKENS[kind]
    keys = tmp_path / "keys.pem"
    keys.write_bytes(public(ED))
    settings = {
        "authentication_mechanisms": (TOKEN,),
        "token_keys_file": str(keys),
        "token_audience": AUDIENCE,
    }
    async with world(tmp_path, caplog, **settings) as here:
        given = make()
        who = options(here.authority, credentials=Credentials(token=Secret(given)))
        says = "refused to authenticate us by plugin 'OAUTHBEARER'"
        await here.refused(who, says, kind=Unauthorized)
        line = f"mechanism=TOKEN user=? cause={why}"
        await here.shows(line, mechanism="TOKEN", cause=why, outcome="refused")
        written = caplog.text + here.audit.read_text()
        assert all(part not in written for part in given.split(".") if len(part) > 10)


async def test_secrets_in_clear(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"authentication_mechanisms": (SCRAM_SHA_256, "DIGEST-MD5")}
    async with world(tmp_path, caplog, **settings) as here, raw(here.cluster, 3) as peer:
        answer = await peer.ask(AuthRequest("sasl", b""))
        assert answer.status.name == "UNAUTHORIZED"
        why = "DIGEST-MD5 came over a connection that is not encrypted, where a listener can take"
        await here.shows(f"cause={why}", mechanism="DIGEST-MD5", outcome="refused")
        # SCRAM shows a listener nothing that it could use at once.
        await log_in(peer, scram_client())


@VERSIONS
async def test_an_exchange_behind_the_end_is_refused(
    tmp_path: Path, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded(tmp_path) as cluster, raw(cluster, version) as peer:
        sent = await log_in(peer, scram_client())
        assert (await peer.ask(add(7, 0))).status is Status.OK
        for message in sent if version == 3 else sent[:1]:
            again = await peer.ask(AuthRequest(SCRAM_SHA_256, message))
            assert again is None if version == 2 else again.status is Status.UNAUTHORIZED
        if version == 3:
            assert (await peer.ask(ReadRequest(7, 0))).status is Status.OK
            for _ in range(MESSAGES_MAX - len(sent) - 2):
                assert await peer.ask(AuthRequest(SCRAM_SHA_256, sent[0])) is not None
            assert await peer.ask(AuthRequest(SCRAM_SHA_256, sent[0])) is None
    assert "cause=the connection is that of ann already" in caplog.text


async def test_the_secret_of_the_cluster_is_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody logs in as a user that does not exist, but may have had grants."""
    async with guarded(tmp_path, DIGEST_MD5) as cluster, raw(cluster, 3) as peer:
        async with MemoryStore(cluster.tree, lambda: 0) as store:
            secret = (await UserStore(store).cluster_secret(b"unused"))[:16]
        monkeypatch.setattr("ledger.core.authentication.digest_md5.user_secret", lambda *_: secret)
        client = DigestMd5Client("bob", "any", "cnonce")
        challenge = await peer.ask(AuthRequest("sasl", b""))
        answer = await peer.ask(AuthRequest("sasl", client.respond(challenge.payload)))
        assert answer.status is Status.UNAUTHORIZED
