"""Tenants never get more than they were granted, nor less, while rights change and bookies die."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bookie.core.ledger_owner import LedgerOwner
from bookie.server.access import AccessControl, ConnectionAccess
from bookie.server.connection import Connection
from ledger.core.permissions import PermissionTable
from ledger.wire.messages import Request, ResponseBody
from tests.bookie.server.permitted_cluster import named_users
from tests.effort import seeds
from tests.sim.model import Violation
from tests.sim.tenants import run_tenants

pytestmark = pytest.mark.usefixtures(named_users.__name__)


@pytest.mark.parametrize("seed", seeds(ci=2, night=100))
def test_every_answer_is_that_of_a_table_in_force(seed: int) -> None:
    found = run_tenants(seed)
    assert min(found.seen.values()) > 20, "these runs prove nothing"
    assert len(found.seen) == 4
    assert len(found.tables) > 5


def keeps_decisions(self: ConnectionAccess, user: str) -> None:
    """Forgets nothing after the first call."""
    if self._generation < 0:
        self._generation, self._user = self._control.generation, user
        self._rights = self._control.rights_of(user)


def sends_as_it_is(self: Connection, request: Request, body: ResponseBody) -> ResponseBody:
    """Checks no deferred response."""
    return body


def follows_the_first(self: AccessControl, table: Any) -> None:
    """Follows no change."""
    if self._table is None:
        self._table = table if isinstance(table, PermissionTable) else PermissionTable()
        self.generation += 1


def knows_one_namespace(self: AccessControl, ledger_id: int) -> LedgerOwner | None:
    """Takes every ledger for one of `a`."""
    owner = self._owners.get(ledger_id)
    return None if owner is None else replace(owner, namespace="a")


BUGS: dict[str, tuple[type, str, Callable[..., Any]]] = {
    "connections keep what was decided": (ConnectionAccess, "refresh", keeps_decisions),
    "long polls are not checked again": (Connection, "_recheck", sends_as_it_is),
    "changes are not followed": (AccessControl, "_follow", follows_the_first),
    "namespaces are confused": (AccessControl, "owner_of", knows_one_namespace),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_bookie_that_lets_in_too_many_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*BUGS[bug])
    for seed in (2, 0, 1, 3, 4):  # the first one notices each
        try:
            run_tenants(seed)
        except Violation:
            return
    pytest.fail(f"5 seeds did not notice: {bug}")
