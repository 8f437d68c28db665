"""An authenticated connection ends with what it rests on, and costs nothing until then."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from bookie.core.sessions import Proof
from bookie.server.authentication import Authenticator, VerifiedToken
from bookie.server.users import USER_FRESH_S, Users
from bookie.testing.metastore import SimMetadata
from bookie.testing.scheduler import Simulation
from ledger.connection.authentication import AuthSource, auth_source
from ledger.connection.connection import BookieConnection
from ledger.core.authentication.names import DIGEST_MD5, SCRAM_SHA_256, TOKEN
from ledger.core.authentication.scram import verifier_of
from ledger.credentials import Credentials, Secret
from ledger.errors import BookieUnavailable, Status, Unauthorized
from ledger.metastore.users import User, UserStore, path_of
from ledger.options import ClientOptions
from tests.bookie.server.simulated_server import SimulatedServer, run_server
from tests.bookie.server.test_authentication import ANN, unwrapped
from tests.bookie.server.test_server import add

SOON_S = 3.0
"""Longest time until a session ends whose user was changed."""


def changed(user: User, password: str) -> User:
    verifiers = {one: verifier_of(one, password, b"other", 4096) for one in user.verifiers}
    return dataclasses.replace(user, verifiers=verifiers, digest_md5=None)


class NumberedTokens:
    """Believes tokens that are the time when they expire."""

    def verify(self, token: str) -> VerifiedToken:
        if float(token) <= trio.current_time():
            raise Unauthorized("the token has expired")
        return VerifiedToken("job", float(token))


class Guarded:
    """A bookie with a metadata store in virtual time, and its users."""

    def __init__(self, bookie: SimulatedServer, metadata: SimMetadata, counts: dict[str, int]):
        self.bookie = bookie
        self.metadata = metadata
        self.users = UserStore(metadata.connect("operator"))
        self.reads = counts
        self._peers = 0

    @asynccontextmanager
    async def session(
        self, password: str = "swordfish", *, user: str = "ann", mechanism: str = SCRAM_SHA_256
    ) -> AsyncIterator[BookieConnection]:
        who = Credentials(user=user, password=Secret(password), mechanism=mechanism)
        async with self.of(who) as peer:
            yield peer

    @asynccontextmanager
    async def of(self, who: Credentials) -> AsyncIterator[BookieConnection]:
        options = ClientOptions(credentials=who, secrets_in_clear_allowed=True)
        source: AuthSource = auth_source(None, options, random.Random(1))
        self._peers += 1
        async with self.bookie.peer(f"peer-{self._peers}", 3, source) as peer:
            assert (await peer.call(add(7, 0), 5)).status is Status.OK
            yield peer


def guarded(scenario: Callable[[Guarded], Awaitable[None]]) -> Authenticator:
    """Runs the scenario; returns the authenticator of its bookie."""
    made: list[Authenticator] = []
    counts = {"reads": 0, "watches": 0}

    class Counting(UserStore):
        async def read(self, name: str) -> User | None:
            counts["reads"] += 1
            return await super().read(name)

        def watch(self) -> Any:
            counts["watches"] += 1
            return super().watch()

    def make(simulation: Simulation) -> Authenticator:
        metadata = SimMetadata(simulation)
        worlds.append(metadata)
        made.append(
            Authenticator(
                mechanisms=frozenset({SCRAM_SHA_256, DIGEST_MD5, TOKEN}),
                anonymous_allowed=False,
                users=Users(Counting(metadata.connect("bookie"))),
                cluster_secret=b"secret" * 6,
                tokens=NumberedTokens(),
                rng=random.Random(3),
                now_ms=lambda: int(trio.current_time() * 1000),
                secrets_in_clear_allowed=True,
            )
        )
        return made[0]

    worlds: list[SimMetadata] = []

    async def with_users(bookie: SimulatedServer) -> None:
        world = Guarded(bookie, worlds[0], counts)
        await world.users.create(ANN)
        await trio.sleep(5)
        await scenario(world)

    run_server(with_users, authenticator=make)
    return made[0]


async def lasts(peer: BookieConnection) -> float:
    """Returns how long the connection lasts from now."""
    begun_at = trio.current_time()
    with trio.fail_after(100):
        while peer.error is None:  # noqa: ASYNC110
            await trio.sleep(0.1)
    return trio.current_time() - begun_at


@pytest.mark.parametrize("mechanism", [SCRAM_SHA_256, DIGEST_MD5])
@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_session_ends_when_its_user_is_deleted_or_gets_another_password(
    mechanism: str, is_deleted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: Guarded) -> None:
        await world.users.create(changed(dataclasses.replace(ANN, name="bob"), "tuna"))
        async with (
            world.session(mechanism=mechanism) as ann,
            world.session("tuna", user="bob") as bob,
        ):
            await trio.sleep(50)
            assert ann.error is None
            change = (
                world.users.delete("ann")
                if is_deleted
                else world.users.change(changed(ANN, "haddock"))
            )
            await change
            assert await lasts(ann) < SOON_S
            await trio.sleep(20)
            assert (await bob.call(add(8, 0), 5)).status is Status.OK
        with pytest.raises((Unauthorized, BookieUnavailable)), unwrapped():
            async with world.session(mechanism=mechanism):
                pass

    assert guarded(scenario).counts.ended == 1
    why = "user ann was deleted" if is_deleted else "the password of ann was changed"
    assert f"cause={why}" in caplog.text
    assert "connection closed peer=peer-1" in caplog.text


def test_an_acknowledgement_in_flight_arrives_before_the_session_ends() -> None:
    async def scenario(world: Guarded) -> None:
        async with world.session() as ann:
            answers: list[Any] = []
            for entry in range(1, 200):
                ann.post(add(7, entry), answers.append)
            await world.users.delete("ann")
            await lasts(ann)
            done = [one for one in answers if one is not None]
            assert all(one.status is Status.OK for one in done)
            assert len(done) >= 100

    guarded(scenario)


def test_a_change_between_the_look_at_a_user_and_its_proof_counts() -> None:
    """The password was read from the metadata before, and proved after the change."""

    async def scenario(world: Guarded) -> None:
        authenticator = world.bookie.server.authenticator
        assert authenticator is not None
        admit = authenticator.admit

        async def slow(address: str, user: str = "") -> None:
            await admit(address, user)
            if user:
                await world.users.delete("ann")
                await trio.sleep(USER_FRESH_S / 2)

        authenticator.admit = slow  # type: ignore[method-assign]
        async with world.bookie.peer(
            "peer",
            3,
            auth_source(
                None,
                ClientOptions(credentials=Credentials(user="ann", password=Secret("swordfish"))),
                random.Random(1),
            ),
        ) as ann:
            assert await lasts(ann) < SOON_S

    assert guarded(scenario).counts.succeeded == 1


def test_a_session_of_a_token_ends_when_the_token_expires() -> None:
    async def scenario(world: Guarded) -> None:
        now = trio.current_time()
        async with (
            world.of(Credentials(token=Secret(f"{now + 90:.1f}"))) as late,
            world.of(Credentials(token=Secret(f"{now + 20:.1f}"))) as soon,
            world.session() as ann,
        ):
            assert 19 < await lasts(soon) < 21.5
            assert late.error is None
            assert 68 < await lasts(late) < 71.5
            assert ann.error is None

    assert guarded(scenario).counts.ended == 2


def test_without_the_metadata_sessions_last_and_end_when_it_is_back() -> None:
    async def scenario(world: Guarded) -> None:
        token = Credentials(token=Secret(f"{trio.current_time() + 40:.1f}"))
        async with world.session() as ann, world.of(token) as job:
            world.metadata.cut_off("bookie")
            await world.users.delete("ann")
            await trio.sleep(100)
            assert ann.error is None
            assert job.error is not None
            world.metadata.heal()
            assert await lasts(ann) < SOON_S + 3  # until a bookie tries again

    assert guarded(scenario).counts.ended == 2


def test_a_user_that_is_damaged_loses_no_session(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: Guarded) -> None:
        async with world.session() as ann:
            await world.metadata.connect("vandal").put(path_of("ann"), b"{")
            await world.users.create(dataclasses.replace(ANN, name="bob"))
            await trio.sleep(10)
            assert ann.error is None

    assert guarded(scenario).counts.ended == 0
    assert "sessions continue user=ann cause=" in caplog.text


def test_nothing_is_read_while_nothing_changes_and_then_only_users_with_sessions() -> None:
    async def scenario(world: Guarded) -> None:
        for number in range(20):
            await world.users.create(dataclasses.replace(ANN, name=f"user{number}"))
        async with world.session() as ann, world.session(user="user1"):
            await trio.sleep(20)
            before = world.reads["reads"]
            await trio.sleep(1000)
            assert world.reads == {"reads": before, "watches": 1}
            await world.users.delete("user7")
            await trio.sleep(10)
            assert world.reads == {"reads": before + 2, "watches": 1}
            assert ann.error is None

    guarded(scenario)


def test_a_proof_shows_no_secret() -> None:
    proof = Proof(user="ann", mechanism=SCRAM_SHA_256, secret=b"key")
    assert "key" not in repr(proof)
    assert proof.expires_at_s == math.inf
