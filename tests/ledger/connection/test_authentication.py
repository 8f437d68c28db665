"""Authentication comes first on every connection, and succeeds or ends in a clear refusal."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ledger.connection.authentication import AUTH_DISABLED_PLUGIN
from ledger.errors import RetryableError, Status, Unauthorized
from ledger.wire.messages import AuthRequest, AuthResponse, Request, ResponseBody
from tests.ledger.scripted_bookie import Hangup, ScriptedCluster, scripted_cluster

ROUNDS = [b"who?", b"which?", b"welcome"]


class Friend:
    """An auth provider that answers each challenge with its reversed bytes."""

    plugin = "test.Friend"

    def __init__(self, first: bytes = b"hello") -> None:
        self.first = first
        self.challenges: list[bytes] = []

    def begin(self, bookie: str) -> Friend:
        return self

    def first_payload(self) -> bytes:
        return self.first

    def answer(self, challenge: bytes) -> bytes | None:
        self.challenges.append(challenge)
        if challenge == b"go away":
            raise Unauthorized("it does not know us")
        if challenge == b"surprise":
            raise ValueError("a secret")
        return None if challenge == b"welcome" else challenge[::-1]


def asks(on_first: Callable[[Request], ResponseBody]) -> Callable[[Request], ResponseBody | None]:
    def script(request: Request) -> ResponseBody | None:
        return on_first(request) if isinstance(request.body, AuthRequest) else None

    return script


def three_rounds() -> Callable[[Request], ResponseBody]:
    """Returns a script of one authentication; no second connection may begin another."""
    left = list(ROUNDS)
    due = [b"hello", b"?ohw", b"?hcihw"]

    def answer(request: Request) -> ResponseBody:
        assert isinstance(request.body, AuthRequest)
        assert request.body.plugin == Friend.plugin
        assert request.body.payload == due.pop(0)
        return AuthResponse(Status.OK, Friend.plugin, left.pop(0))

    return answer


def set_script(cluster: ScriptedCluster, script: Callable[[Request], ResponseBody | None]) -> None:
    for bookie in cluster.bookies.values():
        bookie.script = script


@pytest.mark.parametrize("wire_version", [2, 3])
async def test_nothing_is_sent_before_the_last_round(wire_version: int) -> None:
    friend = Friend()
    async with (
        scripted_cluster(1) as cluster,
        cluster.client(auth=friend, wire_version=wire_version, lac_linger_ms=60_000) as client,
    ):
        bookie = cluster.bookie("b0")
        bookie.script = asks(three_rounds())
        async with client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as writer:
            writer.append_nowait(b"before there is a connection")
            await writer.append(b"and after")
        kinds = [type(r.body).__name__ for r in bookie.requests]
        assert kinds[:5] == ["AuthRequest"] * 3 + ["AddRequest"] * 2
        assert {r.version for r in bookie.requests} == {wire_version}
        assert friend.challenges == ROUNDS


async def test_every_connection_begins_with_authentication() -> None:
    async with scripted_cluster() as cluster, cluster.client(auth=Friend()) as client:
        set_script(cluster, asks(lambda r: AuthResponse(Status.OK, Friend.plugin, b"welcome")))
        async with client.create_ledger() as writer:
            await writer.append_many([b"%d" % i for i in range(300)])
        async with client.open_ledger(writer.ledger_id) as reader:
            await reader.read(0, 299)
        for bookie in cluster.bookies.values():
            auths = sum(isinstance(r.body, AuthRequest) for r in bookie.requests)
            assert auths == bookie.connections
        assert sum(b.connections for b in cluster.bookies.values()) > 3


async def test_a_bookie_without_authentication_accepts_the_client() -> None:
    friend = Friend()
    async with scripted_cluster() as cluster, cluster.client(auth=friend) as client:
        set_script(cluster, asks(lambda r: AuthResponse(Status.OK, AUTH_DISABLED_PLUGIN, b"")))
        async with client.create_ledger() as writer:
            await writer.append(b"x")
    assert friend.challenges == []


def refused(request: Request) -> ResponseBody:
    return AuthResponse(Status.UNAUTHORIZED, Friend.plugin, b"")


def hung_up(request: Request) -> ResponseBody:
    raise Hangup


def refused_as_apache(request: Request) -> ResponseBody:
    """Refuses as Apache does: v2 has no code for a refusal."""
    return refused(request) if request.version == 3 else hung_up(request)


def rejects(request: Request) -> ResponseBody:
    return AuthResponse(Status.OK, Friend.plugin, b"go away")


def sends_a_surprise(request: Request) -> ResponseBody:
    return AuthResponse(Status.OK, Friend.plugin, b"surprise")


def asks_forever(request: Request) -> ResponseBody:
    return AuthResponse(Status.OK, Friend.plugin, b"more")


@pytest.mark.parametrize(
    ("wire_version", "answer", "why"),
    [
        (3, refused, "UNAUTHORIZED"),
        (2, refused_as_apache, "closed the connection|UNAUTHORIZED"),
        (2, rejects, "does not know us"),
        (3, rejects, "does not know us"),
        (2, sends_a_surprise, "by plugin 'test.Friend': the AuthProvider failed with ValueError"),
        (2, asks_forever, "no end after 32 rounds"),
    ],
)
async def test_a_refusal_names_bookie_plugin_and_cure(
    wire_version: int, answer: Callable[[Request], ResponseBody], why: str
) -> None:
    secret = b"do not show this"
    async with (
        scripted_cluster() as cluster,
        cluster.client(
            auth=Friend(secret), wire_version=wire_version, ensemble_change_timeout_s=0.3
        ) as client,
    ):
        set_script(cluster, asks(answer))
        writer = await client.create_ledger()
        with pytest.raises(Unauthorized, match=why) as caught:
            await writer.append(b"x")
        said = str(caught.value)
        assert secret.decode() not in said
        assert "a secret" not in said
        if answer not in (rejects, sends_a_surprise):
            assert "by plugin 'test.Friend'" in said
            assert "Cure" in said
        with pytest.raises(Unauthorized, match=why):
            await client.open_ledger(writer.ledger_id)


async def test_a_bookie_that_dies_during_authentication_has_not_refused_it() -> None:
    async with (
        scripted_cluster() as cluster,
        cluster.client(auth=Friend(), wire_version=3, ensemble_change_timeout_s=0.3) as client,
    ):
        set_script(cluster, asks(hung_up))
        writer = await client.create_ledger()
        with pytest.raises(RetryableError):
            await writer.append(b"x")
