"""Which requests are answered over HTTP, and what is shown to everybody."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ledger.core.authentication.names import SCRAM_SHA_256
from ledger.metastore.memory import MemoryStore
from ledger.metastore.users import UserStore
from tests.bookie.monitoring.test_http import Answer, Client, served
from tests.bookie.server.test_authentication import ANN
from tests.bookie.server.test_tokens import AUDIENCE, ED, OTHER, public, token
from tests.real_cluster import RealCluster


@asynccontextmanager
async def guarded(directory: Path, **settings: Any) -> AsyncIterator[tuple[RealCluster, Client]]:
    keys = directory / "keys.pem"
    keys.write_bytes(public(ED))
    wanted = {
        "authentication_mechanisms": (SCRAM_SHA_256, "TOKEN"),
        "token_keys_file": str(keys),
        "token_audience": AUDIENCE,
        "secrets_in_clear_allowed": True,
    }
    async with served(directory, **wanted | settings) as (cluster, client):
        async with MemoryStore(cluster.tree, lambda: 0) as store:
            await UserStore(store).create(ANN)
        yield cluster, client


async def ask(client: Client, path: str, authorization: str | None, method: str = "GET") -> Answer:
    header = "" if authorization is None else f"Authorization: {authorization}\r\n"
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n{header}\r\n"
    return Answer(await client.send(head.encode()))


def basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


INFO = "/api/v1/bookie/info"


async def test_a_user_or_a_token_is_answered(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (_, client):
        for right in (basic("ann", "swordfish"), f"Bearer {token()}", f"bearer {token()}"):
            assert (await ask(client, INFO, right)).status == 200
            assert (await ask(client, "/metrics", right)).status == 200


async def test_secrets_in_clear_are_refused_unless_allowed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded(tmp_path, secrets_in_clear_allowed=False) as (_, client):
        for given, kind in ((basic("ann", "swordfish"), "Basic"), (f"Bearer {token()}", "TOKEN")):
            refused = await ask(client, INFO, given)
            assert refused.status == 401
            why = f"{kind} came over a connection that is not encrypted"
            assert refused.json["error"].startswith(why)
            assert "authentication refused peer=127.0.0.1" in caplog.text
            assert f"cause={why}, where a listener can take it. Cure: TLS" in caplog.text
    assert "swordfish" not in caplog.text


WRONG = [
    None,
    basic("ann", "haddock"),
    basic("bob", "swordfish"),
    basic("a/b", "x"),
    basic("ann", "")[:-2],
    "Basic !",
    "Basic",
    f"Bearer {token(OTHER)}",
    "Bearer",
    "Bearer a b",
    "Digest x",
    "",
]


async def test_a_scheme_that_is_not_on_is_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"authentication_mechanisms": (SCRAM_SHA_256,), "token_keys_file": "",
                "token_audience": ""}  # fmt: skip
    given = token()
    async with guarded(tmp_path, **settings) as (_, client):
        for wrong in (f"Bearer {given}", given, "Digest x"):
            caplog.clear()
            assert (await ask(client, INFO, wrong)).status == 401
            assert "authentication refused peer=127.0.0.1" in caplog.text
            why = "cause=the Authorization is not one of a scheme that is on; on are Basic"
            assert why in caplog.text
            assert given not in caplog.text


async def test_all_others_see_the_health_alone(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (_, client):
        for given in WRONG:
            refused = await ask(client, INFO, given)
            assert refused.status == 401
            assert refused.json == {"error": "the credentials are missing or wrong"}
            assert "www-authenticate" in refused.headers
        for path in ("/api/v1/bookie/gc", "/api/v1/bookie/state/readonly"):
            assert (await ask(client, path, None, "PUT")).status == 401
        for path in ("/heartbeat", "/healthz", "/api/v1/bookie/is_ready"):
            assert (await ask(client, path, None)).status == 200


async def test_anonymous_clients_may_be_allowed(tmp_path: Path) -> None:
    async with guarded(tmp_path, anonymous_allowed=True) as (_, client):
        assert (await ask(client, INFO, None)).status == 200
        assert (await ask(client, INFO, basic("ann", "haddock"))).status == 401


async def test_guessing_costs_time_here_too(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (cluster, client):
        server = cluster.bookies[0].server
        assert server is not None
        assert server.authenticator is not None
        attempts = server.authenticator.attempts
        for _ in range(3):
            await ask(client, INFO, basic("ann", "guess"))
        wait_s = attempts.wait_s(0, "127.0.0.1", "ann")
        assert wait_s is None or wait_s > 0
