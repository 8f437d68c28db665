"""A client that is given newer credentials continues: sessions end, and no append fails."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from bookie.config import BookieConfig
from bookie.server.authentication import VerifiedToken
from bookie.testing import SimCluster, Simulation, run_simulated, small_config
from ledger.errors import Unauthorized
from ledger.metastore.users import UserStore
from ledger.options import ClientOptions
from tests.bookie.server.test_authentication import ANN
from tests.bookie.server.test_sessions import changed

VALID_S = 12.0


class TimedTokens:
    """Believes tokens that are the virtual time when they expire."""

    wall_s = 0.0
    """The wall clock when virtual time began."""

    def verify(self, token: str) -> VerifiedToken:
        if float(token) <= trio.current_time():
            raise Unauthorized("the token has expired")
        return VerifiedToken("job", self.wall_s + float(token))


def written(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


Renew = Callable[[SimCluster, Path], Awaitable[None]]


async def renew_tokens(_: SimCluster, file: Path) -> None:
    while True:
        written(file, f'token = "{trio.current_time() + VALID_S:.3f}"')
        await trio.sleep(VALID_S * 0.75)


async def renew_passwords(cluster: SimCluster, file: Path) -> None:
    users = UserStore(cluster.metadata.connect("operator"))
    await users.create(changed(ANN, "0"))
    number = 0
    while True:
        written(file, f'user = "ann"\npassword = "{number}"')
        await users.change(changed(ANN, str(number)))
        await trio.sleep(10)
        number += 1


@pytest.mark.parametrize(
    ("mechanism", "renew", "wire_version"),
    [("TOKEN", renew_tokens, 2), ("SCRAM-SHA-256", renew_passwords, 3)],
)
def test_no_append_fails_while_credentials_are_renewed(
    tmp_path: Path, monkeypatch: Any, mechanism: str, renew: Renew, wire_version: int
) -> None:
    tokens = TimedTokens()
    monkeypatch.setattr("bookie.bookie.tokens_of", lambda _: tokens)
    monkeypatch.setattr("bookie.testing.cluster.CLOCK_SKEW_MS_MAX", 0)
    file = tmp_path / "credentials.toml"
    ended = 0

    def configure(name: str, chance: random.Random) -> BookieConfig:
        given: dict[str, Any] = {"token_keys_file": "x", "token_audience": "x"}
        return dataclasses.replace(
            small_config(name, chance),
            authentication_mechanisms=(mechanism,),
            secrets_in_clear_allowed=True,
            **(given if mechanism == "TOKEN" else {}),
        )

    async def scenario(simulation: Simulation) -> int:
        nonlocal ended
        tokens.wall_s = simulation.now_ms(0) / 1000
        async with (
            SimCluster(simulation, bookies=3, config=configure) as cluster,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(renew, cluster, file)
            while not file.exists():  # noqa: ASYNC110
                await trio.sleep(0.1)
            options = ClientOptions(
                credentials_file=str(file),
                secrets_in_clear_allowed=True,
                wire_version=wire_version,
            )
            async with (
                cluster.client("writer", options) as client,
                client.create_ledger() as writer,
            ):
                number = 0
                while trio.current_time() < 35:
                    assert await writer.append(b"%d" % number) == number
                    if number % 10 == 1:
                        opened = client.open_ledger(writer.ledger_id, recover=False)
                        async with opened as reader:
                            (entry,) = await reader.read(number // 2, number // 2)
                        assert bytes(entry.payload) == b"%d" % (number // 2)
                    number += 1
                    await trio.sleep(0.1)
            ended = sum(
                node.bookie.server.statistics().sessions_ended
                for node in cluster._nodes.values()
                if node.bookie is not None and node.bookie.server is not None
            )
            nursery.cancel_scope.cancel()
        return number

    assert run_simulated(scenario, 1) > 200
    assert ended >= 9
