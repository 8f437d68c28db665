"""Which peers are admitted over a real socket, by v2 and v3, and what all others are answered."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from bookie.server.auth_session import MESSAGES_MAX
from bookie.server.connection import Connection
from ledger.connection.authentication import AuthSource, auth_source
from ledger.connection.connection import BookieConnection
from ledger.core.authentication.digest_md5 import DigestMd5Client, user_secret
from ledger.core.authentication.names import DIGEST_MD5, SCRAM_SHA_256, SCRAM_SHA_512
from ledger.core.authentication.scram import ScramClient, salted_password, verifier_of
from ledger.credentials import Credentials, Secret
from ledger.errors import Status, Unauthorized
from ledger.metastore.memory import MemoryStore
from ledger.metastore.users import User, UserStore
from ledger.options import ClientOptions
from ledger.runtime.network import TcpNetwork
from ledger.wire import v2, v3
from ledger.wire.messages import (
    AddResponse,
    AuthRequest,
    AuthResponse,
    BatchReadRequest,
    ErrorResponse,
    ForceLedgerRequest,
    GetBookieInfoRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    ReadResponse,
    Request,
    RequestBody,
    StartTlsRequest,
    StartTlsResponse,
    WriteLacRequest,
)
from tests.bookie.server.test_server import KEY, SETTINGS, add
from tests.real_cluster import RealCluster, real_cluster

MECHANISMS = (SCRAM_SHA_256, SCRAM_SHA_512)
VERIFIERS = {one: verifier_of(one, "swordfish", b"salt", 4096) for one in MECHANISMS}
ANN = User(
    name="ann",
    created_ms=1,
    changed_ms=1,
    verifiers=VERIFIERS,
    digest_md5=user_secret("ann", "swordfish"),
)
PASSWORD = Credentials(user="ann", password=Secret("swordfish"))


@asynccontextmanager
async def guarded(directory: Path, *mechanisms: str, **settings: Any) -> AsyncIterator[RealCluster]:
    """A bookie that knows the user ann."""
    wanted: dict[str, Any] = {
        **SETTINGS,
        "authentication_mechanisms": mechanisms or MECHANISMS,
        "secrets_in_clear_allowed": DIGEST_MD5 in mechanisms,
        **settings,
    }
    async with real_cluster(directory, 1, **wanted) as cluster:
        async with MemoryStore(cluster.tree, lambda: 0) as store:
            await UserStore(store).create(ANN)
        yield cluster


def source(credentials: Credentials, seed: int = 1) -> AuthSource:
    options = ClientOptions(credentials=credentials, secrets_in_clear_allowed=True)
    return auth_source(None, options, random.Random(seed))


@contextmanager
def unwrapped() -> Iterator[None]:
    """Raises the error inside the groups of nurseries."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


@asynccontextmanager
async def connected(
    cluster: RealCluster, version: int, auth: AuthSource | None = None
) -> AsyncIterator[BookieConnection]:
    async def resolve(_: str) -> tuple[str, int]:
        return cluster.bookies[0].address

    connection = BookieConnection("b", version, outbox_bytes_max=1 << 20, auth=auth)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run, TcpNetwork(), resolve, 5.0)
        try:
            await connection.wait_connected()
            yield connection
        finally:
            nursery.cancel_scope.cancel()


def server_side(cluster: RealCluster) -> Connection:
    """The bookie's side of its only connection."""
    server = cluster.bookies[0].server
    assert server is not None
    (connection,) = server._connections.values()
    return connection


VERSIONS = pytest.mark.parametrize("version", [2, 3])


@VERSIONS
@pytest.mark.parametrize("mechanism", [*MECHANISMS, DIGEST_MD5])
async def test_a_user_with_its_password_is_served(
    tmp_path: Path, version: int, mechanism: str
) -> None:
    who = Credentials(user="ann", password=Secret("swordfish"), mechanism=mechanism)
    async with (
        guarded(tmp_path, mechanism) as cluster,
        connected(cluster, version, source(who)) as peer,
    ):
        answer = await peer.call(add(7, 0), 5)
        assert answer.status is Status.OK
        assert server_side(cluster).principal == "ann"


@pytest.mark.parametrize("mechanism", [*MECHANISMS, DIGEST_MD5])
async def test_all_others_are_refused_alike(
    tmp_path: Path, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = [("ann", "h4ddock"), ("bob", "h4ddock"), ("a/b c", "h4ddock"), ("anonymous", "h4ddock")]
    refusal = r"bookie b refused to authenticate us.* Cure"
    async with guarded(tmp_path, mechanism) as cluster:
        for version in (2, 3):
            for user, password in wrong:
                who = Credentials(user=user, password=Secret(password), mechanism=mechanism)
                with pytest.raises(Unauthorized, match=refusal) as caught, unwrapped():
                    async with connected(cluster, version, source(who)):
                        pass
                assert "no such user" not in str(caught.value)
        server = cluster.bookies[0].server
        assert server is not None
        assert server.statistics().authentications_failed == 8
    for named in ("ann", "bob", "?"):
        assert f"mechanism={mechanism} user={named} cause=wrong password, or no" in caplog.text
    assert "h4ddock" not in caplog.text


class Raw:
    """A peer that sends any request, and sees the responses or the end of the connection."""

    def __init__(self, stream: trio.SocketStream, version: int) -> None:
        self._stream = stream
        self._version = version
        self._codec = v3 if version == 3 else v2
        self._received = b""

    async def send(self, *bodies: RequestBody) -> None:
        frames = [
            self._codec.encode_request(Request(self._version, number, body))
            for number, body in enumerate(bodies)
        ]
        await self._stream.send_all(b"".join(frames))

    async def receive(self) -> Any:
        """Returns the body of the next response, None at the end of the connection."""
        while len(self._received) < 4 or len(self._received) < 4 + self._length:
            try:
                chunk = await self._stream.receive_some()
            except trio.BrokenResourceError:
                return None
            if not chunk:
                return None
            self._received += chunk
        end = 4 + self._length
        frame, self._received = self._received[4:end], self._received[end:]
        return self._codec.decode_response(frame).body

    @property
    def _length(self) -> int:
        return int.from_bytes(self._received[:4], "big")

    async def ask(self, body: RequestBody) -> Any:
        await self.send(body)
        return await self.receive()


@asynccontextmanager
async def raw(cluster: RealCluster, version: int) -> AsyncIterator[Raw]:
    with trio.fail_after(20):
        async with await trio.open_tcp_stream(*cluster.bookies[0].address) as stream:
            yield Raw(stream, version)


def scram_client(password: str = "swordfish", nonce: str = "n" * 20) -> ScramClient:
    return ScramClient(
        SCRAM_SHA_256, "ann", nonce, partial(salted_password, SCRAM_SHA_256, password)
    )


OTHERS: list[RequestBody] = [
    add(7, 0),
    add(7, 0, is_recovery=True),
    ReadRequest(7, 0),
    ReadRequest(7, -1, KEY, is_fencing=True),
]
ONLY_V3: list[RequestBody] = [
    ReadLacRequest(7),
    WriteLacRequest(7, 0, KEY, bytes(20)),
    ForceLedgerRequest(7),
    GetBookieInfoRequest(3),
    ListEntriesRequest(7),
    ReadRequest(7, 0, previous_lac=0, timeout_ms=10),
]


async def test_v3_answers_nothing_but_eua_before_authentication(tmp_path: Path) -> None:
    async with guarded(tmp_path) as cluster, raw(cluster, 3) as peer:
        for body in [*OTHERS, *ONLY_V3]:
            answer = await peer.ask(body)
            assert isinstance(answer, ErrorResponse)
            assert answer.status is Status.UNAUTHORIZED
        tls = await peer.ask(StartTlsRequest())
        assert isinstance(tls, StartTlsResponse | ErrorResponse)
        assert tls.status is Status.BAD_REQUEST
        assert_no_trace(cluster)


async def test_v2_refuses_adds_and_reads_and_closes_on_all_else(tmp_path: Path) -> None:
    async with guarded(tmp_path) as cluster:
        async with raw(cluster, 2) as peer:
            for body in OTHERS:
                answer = await peer.ask(body)
                assert isinstance(answer, AddResponse | ReadResponse)
                assert answer.status is Status.UNAUTHORIZED
            assert await peer.ask(BatchReadRequest(7, 0, 9, 999)) is None
        assert_no_trace(cluster)


def assert_no_trace(cluster: RealCluster) -> None:
    storage = cluster.bookies[0].storage
    assert storage is not None
    assert storage.state(7) is None


WRONG = [
    AuthRequest("sasl", b""),
    AuthRequest("", b""),
    AuthRequest("AuthDisabledPlugin", b""),
    AuthRequest("x" * 1000, b"y" * 100_000),
    AuthRequest(SCRAM_SHA_256, b""),
    AuthRequest(SCRAM_SHA_256, b"\xff" * 100),
    AuthRequest(SCRAM_SHA_256, b"n,,n=ann,r="),
    AuthRequest(SCRAM_SHA_256, b"y" * 100_000),
]


@VERSIONS
async def test_wrong_plugins_and_payloads_are_refused(tmp_path: Path, version: int) -> None:
    async with guarded(tmp_path) as cluster:
        for wrong in WRONG:
            async with raw(cluster, version) as peer:
                answer = await peer.ask(wrong)
                if version == 2:
                    assert answer is None
                    continue
                assert answer is not None
                assert answer.status is Status.UNAUTHORIZED
                refused = await peer.ask(add(7, 0))
                assert refused is not None
                assert refused.status is Status.UNAUTHORIZED
        assert_no_trace(cluster)


async def log_in(peer: Raw, client: ScramClient) -> list[bytes]:
    """Returns what was sent."""
    sent = [client.first()]
    challenge = await peer.ask(AuthRequest(SCRAM_SHA_256, sent[0]))
    assert isinstance(challenge, AuthResponse)
    sent.append(client.final(challenge.payload))
    proof = await peer.ask(AuthRequest(SCRAM_SHA_256, sent[1]))
    assert isinstance(proof, AuthResponse)
    assert proof.status is Status.OK
    client.check(proof.payload)
    return sent


@VERSIONS
async def test_a_replayed_exchange_lets_nobody_in(tmp_path: Path, version: int) -> None:
    async with guarded(tmp_path) as cluster:
        async with raw(cluster, version) as peer:
            sent = await log_in(peer, scram_client())
        async with raw(cluster, version) as attacker:
            await attacker.ask(AuthRequest(SCRAM_SHA_256, sent[0]))
            answer = await attacker.ask(AuthRequest(SCRAM_SHA_256, sent[1]))
            assert answer is None or answer.status is Status.UNAUTHORIZED
            if version == 3:
                refused = await attacker.ask(add(7, 0))
                assert refused is not None
                assert refused.status is Status.UNAUTHORIZED
        async with raw(cluster, version) as attacker:
            answer = await attacker.ask(AuthRequest(SCRAM_SHA_256, sent[1]))
            assert answer is None or answer.status is Status.UNAUTHORIZED
        assert_no_trace(cluster)


async def test_requests_behind_an_auth_wait_for_its_outcome(tmp_path: Path) -> None:
    """All in one piece: what is sent behind the last message is carried out, and not before."""
    async with guarded(tmp_path) as cluster, raw(cluster, 3) as peer:
        client = scram_client()
        await peer.send(AuthRequest(SCRAM_SHA_256, client.first()), add(7, 0))
        challenge = await peer.receive()
        assert isinstance(challenge, AuthResponse)
        refused = await peer.receive()
        assert refused is not None
        assert refused.status is Status.UNAUTHORIZED
        final = client.final(challenge.payload)
        await peer.send(AuthRequest(SCRAM_SHA_256, final), add(7, 0), ReadRequest(7, 0))
        answers = [await peer.receive() for _ in range(3)]
        assert [answer.status for answer in answers if answer is not None] == [Status.OK] * 3


@VERSIONS
async def test_a_message_behind_the_end_is_answered_as_by_apache(
    tmp_path: Path, version: int
) -> None:
    """Java's client of DIGEST-MD5 sends an empty message when it is authenticated already."""
    async with guarded(tmp_path, DIGEST_MD5) as cluster, raw(cluster, version) as peer:
        client = DigestMd5Client("ann", "swordfish", "cnonce")
        challenge = await peer.ask(AuthRequest("sasl", b""))
        assert isinstance(challenge, AuthResponse)
        proof = await peer.ask(AuthRequest("sasl", client.respond(challenge.payload)))
        assert isinstance(proof, AuthResponse)
        client.check(proof.payload)
        more = await peer.ask(AuthRequest("sasl", b""))
        assert more == AuthResponse(Status.OK, "AuthDisabledPlugin", b"")
        added = await peer.ask(add(7, 0))
        assert added is not None
        assert added.status is Status.OK


async def test_a_connection_ends_after_so_many_messages_without_success(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded(tmp_path) as cluster, raw(cluster, 3) as peer:
        for _ in range(MESSAGES_MAX):
            answer = await peer.ask(AuthRequest("another", b""))
            assert answer.status is Status.UNAUTHORIZED
        assert await peer.ask(AuthRequest(SCRAM_SHA_256, scram_client().first())) is None
    assert f"cause=no success after {MESSAGES_MAX} messages" in caplog.text


@VERSIONS
async def test_an_anonymous_peer_stays_anonymous(tmp_path: Path, version: int) -> None:
    async with guarded(tmp_path, anonymous_allowed=True) as cluster:
        async with raw(cluster, version) as peer:
            for entry_id in range(5):
                added = await peer.ask(add(7, entry_id))
                assert added is not None
                assert added.status is Status.OK
            assert server_side(cluster).principal == "anonymous"
            late = await peer.ask(AuthRequest(SCRAM_SHA_256, scram_client().first()))
            assert late is None or late.status is Status.UNAUTHORIZED
        async with connected(cluster, version, source(PASSWORD)) as known:
            assert (await known.call(ReadRequest(7, 0), 5)).status is Status.OK
