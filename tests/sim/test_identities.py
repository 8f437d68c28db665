"""Nobody is served by what is gone, and nothing acknowledged is lost, while users change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from bookie.server.audit import ConnectionAudit
from bookie.server.sessions import SessionWatch
from bookie.server.users import ReadUser, Users
from ledger.errors import Unauthorized
from ledger.metastore.users import User
from tests.effort import seeds
from tests.sim.identities import SimTokens, run_identities
from tests.sim.model import Violation


@pytest.mark.parametrize("seed", seeds(ci=1, night=100))
def test_nobody_is_served_by_what_is_gone(seed: int) -> None:
    found = run_identities(seed)
    assert found.seen["served"] > 50, "these runs prove nothing"
    assert sum(found.refused.values()) > 5
    assert sum(found.acknowledged.values()) > 100


async def follows_nothing(self: SessionWatch) -> None:
    """Hears of no change."""
    await trio.sleep_forever()


def keeps_the_first(self: Users, name: str, user: User | None, generation: int) -> ReadUser:
    """Believes what it has read first."""
    known = self._known.get(name)
    first = user if known is None or known.user is None else known.user
    kept = self._known[name] = ReadUser(first, generation, self._now())
    return kept


async def expires_nothing(self: SessionWatch) -> None:
    """Looks at no clock."""
    await trio.sleep_forever()


def records_few(self: ConnectionAudit, user: str, mechanism: str) -> None:
    """Records no success by a token."""
    if mechanism != "TOKEN":
        self._log.record("authenticate", "ok", user=user, peer=self._peer, mechanism=mechanism)


def says_too_much(self: SimTokens, token: str) -> Any:
    """Names the token in the reason."""
    raise Unauthorized(f"the token {token} has expired")


BUGS: dict[str, tuple[type, str, Callable[..., Any]]] = {
    "changes of users are not followed": (SessionWatch, "_follow", follows_nothing),
    "users are never read again": (Users, "_keep", keeps_the_first),
    "tokens do not end sessions": (SessionWatch, "_expire", expires_nothing),
    "successes of tokens are not audited": (ConnectionAudit, "authenticated", records_few),
    "a reason has a secret": (SimTokens, "verify", says_too_much),
}


_LONG = ("tokens do not end sessions", "a reason has a secret")


@pytest.mark.parametrize(
    "bug",
    [pytest.param(one, marks=[pytest.mark.slow] if one in _LONG else []) for one in BUGS],
)
def test_a_bookie_that_is_too_trusting_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*BUGS[bug])
    for seed in range(5):
        try:
            run_identities(seed)
        except Violation:
            return
    pytest.fail(f"5 seeds did not notice: {bug}")
