"""A real cluster with permissions: users who name themselves, ledgers with and without namespaces.

Who a peer is, is decided by authentication; here a peer says its name in an AUTH request, and is
believed. The bookie's own code reads `Connection.principal` in both cases.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from starlette.types import ASGIApp, Receive, Scope, Send

from bookie.monitoring import http_app
from bookie.monitoring.http_app import BookieHttp
from bookie.server import server
from bookie.server.connection import Connection
from ledger.connection.connection import BookieConnection
from ledger.core.authentication.names import ANONYMOUS
from ledger.core.entry import DigestType
from ledger.core.metadata import Fragment, LedgerMetadata
from ledger.core.permissions import STREAM_TAG, Grant
from ledger.metastore.ledgers import LedgerStore
from ledger.metastore.memory import MemoryStore
from ledger.metastore.permissions import Permissions
from ledger.runtime.network import TcpNetwork
from ledger.wire.messages import AuthRequest, Request
from tests.real_cluster import SMALL, RealCluster, now_ms, real_cluster

SETTINGS = SMALL | {"garbage_interval_ms": 3_600_000, "permissions": True}


class NamedConnection(Connection):
    """A connection whose peer is the user that it names in its AUTH request."""

    def _dispatch(self, request: Request) -> None:
        if isinstance(request.body, AuthRequest):
            self._identity.user = request.body.payload.decode()
        super()._dispatch(request)


@pytest.fixture
def named_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets peers name themselves."""
    monkeypatch.setattr(server, "Connection", NamedConnection)


@pytest.fixture
def named_users_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    """Believes the header X-User, where authentication would find out who it is."""
    make = BookieHttp.app

    def app(self: BookieHttp, *, is_loopback: bool) -> ASGIApp:
        inner = make(self, is_loopback=is_loopback)

        async def named(scope: Scope, receive: Receive, send: Send) -> None:
            user = dict(scope.get("headers", ())).get(b"x-user")
            if user is not None:
                scope[http_app.PRINCIPAL] = user.decode()
            await inner(scope, receive, send)

        return named

    monkeypatch.setattr(BookieHttp, "app", app)


class Named:
    """The identity of a client that names itself: an AuthProvider."""

    plugin = "named-by-the-test"

    def __init__(self, user: str) -> None:
        self._user = user

    def begin(self, _: str) -> Named:
        return self

    def first_payload(self) -> bytes:
        return self._user.encode()

    def answer(self, _: bytes) -> None:
        return None


@asynccontextmanager
async def connection_of(
    cluster: RealCluster, user: str, version: int, bookie: int = 0
) -> AsyncIterator[BookieConnection]:
    """A connection of a user to a bookie; an anonymous one does not authenticate."""

    async def resolve(_: str) -> tuple[str, int]:
        return cluster.bookies[bookie].address

    named = None if user == ANONYMOUS else Named(user)
    connection = BookieConnection("b", version, outbox_bytes_max=1 << 20, auth=lambda: named)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run, TcpNetwork(), resolve, 5.0)
        await connection.wait_connected()
        yield connection
        nursery.cancel_scope.cancel()


async def until(holds: Callable[[], bool]) -> None:
    """Returns when `holds` does, which other tasks of the process bring about."""
    with trio.fail_after(30):
        while not holds():  # noqa: ASYNC110
            await trio.sleep(0.001)


def metadata_of(ledger_id: int, namespace: str | None) -> LedgerMetadata:
    """Returns the metadata of a ledger of a namespace, or of none."""
    return LedgerMetadata(
        ledger_id=ledger_id, ensemble_size=1, write_quorum=1, ack_quorum=1,
        fragments=(Fragment(0, ("b:3181",)),), digest_type=DigestType.CRC32C,
        custom={} if namespace is None else {STREAM_TAG: f"{namespace}/s".encode()},
    )  # fmt: skip


@asynccontextmanager
async def permitted_cluster(
    directory: Path,
    grants: Iterable[Grant],
    ledgers: Mapping[int, str | None],
    bookies: int = 1,
    **settings: Any,
) -> AsyncIterator[tuple[RealCluster, Permissions]]:
    """A cluster that enforces `grants`, and whose metadata has `ledgers` with their namespaces."""
    async with (
        real_cluster(directory, 0, **SETTINGS | settings) as cluster,
        MemoryStore(cluster.tree, now_ms) as store,
    ):
        await Permissions(store).grant(grants)
        for number in range(bookies):
            await cluster.start(number)
        for ledger_id, namespace in ledgers.items():
            await LedgerStore(store).create(metadata_of(ledger_id, namespace))
        yield cluster, Permissions(store)
