"""Failures cost a peer time, nobody else any, and a bookie no memory: in virtual time."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from bookie.server.auth_session import AUTHENTICATE_S_MAX
from bookie.server.authentication import Authenticator
from bookie.server.users import USER_FRESH_S, USERS_CACHED_MAX, Users
from bookie.testing.scheduler import run_simulated
from ledger.core.authentication import scram
from ledger.core.authentication.names import SCRAM_SHA_256
from ledger.credentials import Credentials, Secret
from ledger.errors import BookieUnavailable, MetadataUnavailable, Unauthorized
from ledger.metastore.users import User, UserStore
from ledger.wire import v3
from ledger.wire.messages import (
    AuthRequest,
    ReadLacRequest,
    Request,
    RequestBody,
    StartTlsRequest,
)
from tests.bookie.server.simulated_server import SimulatedServer, run_server, send_all
from tests.bookie.server.test_authentication import (
    ANN,
    MECHANISMS,
    PASSWORD,
    VERIFIERS,
    source,
    unwrapped,
)
from tests.bookie.server.test_server import SETTINGS
from tests.real_cluster import real_cluster


def authenticator(*mechanisms: str, store: Any = None) -> Authenticator:
    return Authenticator(
        mechanisms=frozenset(mechanisms or MECHANISMS),
        anonymous_allowed=False,
        users=Users(store or cast("UserStore", Outage())),
        cluster_secret=b"secret",
        tokens=None,
        rng=random.Random(3),
        now_ms=lambda: 0,
    )


async def attempt(bookie: SimulatedServer, name: str, password: str, user: str = "ann") -> bool:
    """Returns whether a client at the address `name` gets in."""
    who = source(Credentials(user=user, password=Secret(password)))
    try:
        with unwrapped():
            async with bookie.peer(name, 3, who):
                return True
    except (Unauthorized, BookieUnavailable):
        return False


def test_each_failure_costs_the_peer_more_time_and_nobody_else_any() -> None:
    async def scenario(bookie: SimulatedServer) -> list[float]:
        took = []
        for _ in range(5):
            began_at = trio.current_time()
            assert not await attempt(bookie, "mallory", "guess")
            took.append(trio.current_time() - began_at)
        began_at = trio.current_time()
        assert await attempt(bookie, "home of ann", "swordfish")
        assert await attempt(bookie, "mallory", "guess", user="bob") is False
        assert trio.current_time() - began_at < 0.2
        return took

    took = run_server(scenario, authenticator=authenticator())
    assert [round(seconds * 2) / 2 for seconds in took] == [0, 0, 0, 0.5, 1]


def test_attempts_in_parallel_are_looked_at_one_after_the_other() -> None:
    guarding = authenticator()

    async def scenario(bookie: SimulatedServer) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(attempt, bookie, "mallory", f"guess {number}")

    run_server(scenario, authenticator=guarding)
    assert guarding.counts.failed <= 12
    assert guarding.counts.failed + guarding.counts.unseen <= 200
    assert len(guarding.attempts) == 2


def test_a_flood_of_failures_takes_no_more_memory() -> None:
    guarding = authenticator()

    async def main(_: object) -> None:
        for number in range(30_000):
            guarding.failed(f"10.{number >> 8}.{number & 255}.1:9", "x", "ann", Unauthorized("no"))

    run_simulated(main, 1, time_limit_s=100)
    assert len(guarding.attempts) == 10_000


class Outage:
    """A store of users that can be reached or not."""

    def __init__(self) -> None:
        self.is_up = True
        self.users = {"ann": ANN}
        self.reads = 0

    async def read(self, name: str) -> User | None:
        self.reads += 1
        if not self.is_up:
            raise MetadataUnavailable("out of reach")
        return self.users.get(name)

    async def watch(self) -> AsyncGenerator[object, None]:
        yield None
        await trio.sleep_forever()


@pytest.mark.parametrize("version", [2, 3])
def test_without_the_metadata_known_users_get_in_and_others_are_not_refused(version: int) -> None:
    store = Outage()
    guarding = authenticator(store=store)

    async def scenario(bookie: SimulatedServer) -> None:
        async with bookie.peer("ann", version, source(PASSWORD)):
            pass
        await trio.sleep(USER_FRESH_S * 100)
        store.is_up = False
        async with bookie.peer("ann", version, source(PASSWORD)):
            pass
        bob = Credentials(user="bob", password=Secret("x"))
        with pytest.raises(BookieUnavailable, match="cannot look up users now"), unwrapped():
            async with bookie.peer("bob", version, source(bob)):
                pass

    run_server(scenario, authenticator=guarding)
    assert guarding.counts.put_off == 1
    assert guarding.counts.failed == 0


def test_a_deleted_user_is_refused_soon_and_users_cost_few_reads() -> None:
    store = Outage()

    async def scenario(bookie: SimulatedServer) -> None:
        for _ in range(50):
            assert await attempt(bookie, "ann", "swordfish")
        assert store.reads <= 4
        del store.users["ann"]
        await trio.sleep(USER_FRESH_S + 1)
        assert not await attempt(bookie, "ann", "swordfish")

    run_server(scenario, authenticator=authenticator(store=store))


def test_names_that_are_guessed_take_no_more_memory() -> None:
    users = Users(Outage())  # type: ignore[arg-type]

    async def main(_: object) -> None:
        for number in range(USERS_CACHED_MAX + 500):
            assert (await users.read(f"user{number}")).user is None

    run_simulated(main, 1, time_limit_s=100)
    assert len(users._known) == USERS_CACHED_MAX


async def test_the_secret_of_the_cluster_is_the_same_at_all_bookies(tmp_path: Path) -> None:
    secrets = []
    settings: dict[str, Any] = {**SETTINGS, "authentication_mechanisms": MECHANISMS}
    async with real_cluster(tmp_path, 2, **settings) as cluster:
        for bookie in cluster.bookies.values():
            assert bookie.server is not None
            assert bookie.server.authenticator is not None
            secrets.append(bookie.server.authenticator._cluster_secret)
    assert secrets[0] == secrets[1]
    assert len(secrets[0]) == 32


async def test_an_unknown_user_causes_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The made-up verifier is computed for every user, so that the time says nothing."""
    computed: list[str] = []
    real = scram.made_up_verifier

    def counted(mechanism: str, user: str, secret: bytes) -> scram.ScramVerifier:
        computed.append(user)
        return real(mechanism, user, secret)

    monkeypatch.setattr(scram, "made_up_verifier", counted)
    guarding = authenticator()
    found = [await guarding.verifier(SCRAM_SHA_256, name) for name in ("ann", "nobody", "a b")]
    assert computed == ["ann", "nobody", "a b"]
    assert found[0][0] == VERIFIERS[SCRAM_SHA_256]


FOR_EVER: dict[str, list[RequestBody]] = {
    "start tls": [StartTlsRequest()],
    "auth": [AuthRequest(SCRAM_SHA_256, b"n,,n=ann,r=abcdefghijklmnop")],
    "refused": [ReadLacRequest(7)],
    "all": [StartTlsRequest(), AuthRequest("another", b""), ReadLacRequest(7)],
    "nothing more": [],
}


@pytest.mark.parametrize("kind", FOR_EVER)
def test_a_peer_that_never_succeeds_is_disconnected(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it sends, and however slowly; until then it may be replaced by any other peer."""

    async def scenario(bookie: SimulatedServer) -> tuple[float, int]:
        transport = await bookie.network.of("mallory").connect("bookie", 3181)
        begun_at, sent = trio.current_time(), 0
        await send_all(transport, v3.encode_request(Request(3, 0, AuthRequest("another", b""))))
        space = memoryview(bytearray(1000))
        with trio.fail_after(200):
            while True:
                for body in FOR_EVER[kind]:
                    sent += 1
                    frame = v3.encode_request(Request(3, sent, body))
                    with contextlib.suppress(OSError):
                        await send_all(transport, frame)
                try:
                    await transport.wait_readable()
                    if not transport.recv_into(space):
                        break
                except BlockingIOError:
                    continue
                except (OSError, trio.ClosedResourceError):
                    break
                seen = bookie.server.statistics()
                assert seen.connections_unproven == seen.connections
                await trio.sleep(2)
        return trio.current_time() - begun_at, sent

    took_s, sent = run_server(scenario, authenticator=authenticator())
    assert took_s <= AUTHENTICATE_S_MAX + 5
    assert sent <= 100
    assert "closed peer=mallory" in caplog.text
