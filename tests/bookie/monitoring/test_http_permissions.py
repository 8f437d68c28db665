"""Permissions over HTTP: each path and method, as each kind of user, over a real socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bookie.core.operations import HTTP_OPERATIONS, HttpOperation
from bookie.monitoring.http_app import BookieHttp
from ledger.core.permissions import Grant, Role
from ledger.metastore.memory import MemoryStore
from ledger.metastore.permissions import Permissions
from tests.bookie.monitoring.test_http import Answer, Client, served
from tests.bookie.server.permitted_cluster import named_users_over_http, until
from tests.real_cluster import RealCluster, now_ms

pytestmark = pytest.mark.usefixtures(named_users_over_http.__name__)

GRANTS = (
    Grant("operator", Role.OPERATE),
    Grant("admin", Role.ADMIN),
    Grant("tenant", Role.MANAGE, "*"),
    Grant("ledgers", Role.LEDGER),
)
USERS = (None, "stranger", "tenant", "ledgers", "operator", "admin")


@asynccontextmanager
async def permitted(tmp_path: Path, **settings: Any) -> AsyncIterator[tuple[RealCluster, Client]]:
    async with (
        served(tmp_path, **{"permissions": True, **settings}) as (cluster, client),
        MemoryStore(cluster.tree, now_ms) as store,
    ):
        control = cluster.bookies[0].access
        await Permissions(store).grant(GRANTS)
        await until(lambda: control is None or control.has_role("admin", Role.ADMIN))
        yield cluster, client


async def ask(client: Client, one: HttpOperation, user: str | None, method: str = "") -> Answer:
    named = "" if user is None else f"X-User: {user}\r\n"
    head = f"{method or one.method} {one.path} HTTP/1.1\r\nHost: localhost\r\n{named}"
    return Answer(await client.send(f"{head}Content-Length: 4\r\n\r\nnope".encode()))


@pytest.mark.parametrize("user", USERS)
async def test_each_request_is_allowed_or_refused_as_the_table_says(
    tmp_path: Path, user: str | None
) -> None:
    has = {"operator": {Role.OPERATE}, "admin": {Role.OPERATE, Role.ADMIN}}.get(user or "", set())
    refusal = 401 if user is None else 403
    async with permitted(tmp_path) as (cluster, client):
        for one in HTTP_OPERATIONS:
            answer = await ask(client, one, user)
            if one.needs is None or one.needs in has:
                # The body is no JSON, so that nothing is changed: 400, or 409 before it is read.
                assert answer.status not in (401, 403), (one, answer.body)
                continue
            assert answer.status == refusal, (one, answer.body)
            assert set(answer.json) == {"error"}
            assert one.needs.value in answer.json["error"]
            if user is None:
                assert answer.headers["www-authenticate"] == "Bearer"
            if one.method == "GET":
                assert (await ask(client, one, user, "HEAD")).status == refusal
        assert not cluster.bookies[0].disk_monitor.gate.is_read_only


@pytest.mark.parametrize(
    "path", ["/metrics/", "//metrics", "/./metrics", "/%6detrics", "/metrics?a=b", "/METRICS"]
)
async def test_no_spelling_of_a_path_avoids_the_check(tmp_path: Path, path: str) -> None:
    async with permitted(tmp_path) as (_, client):
        answer = await client.ask(path)
        assert answer.status in (307, 401, 404)
        assert b"ledgerstream_bookie" not in answer.body


async def test_a_right_over_http_ends_when_it_is_revoked(tmp_path: Path) -> None:
    metrics = HTTP_OPERATIONS[3]
    async with permitted(tmp_path) as (cluster, client):
        assert (await ask(client, metrics, "operator")).status == 200
        control = cluster.bookies[0].access
        assert control is not None
        async with MemoryStore(cluster.tree, now_ms) as store:
            await Permissions(store).revoke(GRANTS)
        await until(lambda: not control.has_role("operator", Role.OPERATE))
        assert (await ask(client, metrics, "operator")).status == 403


async def test_without_permissions_everything_is_open(tmp_path: Path) -> None:
    async with permitted(tmp_path, permissions=False) as (_, client):
        for one in HTTP_OPERATIONS:
            assert (await ask(client, one, None)).status not in (401, 403)


async def test_a_route_without_a_row_fails_when_the_application_is_made(tmp_path: Path) -> None:
    async def handler(_: Request) -> Response:
        raise AssertionError("it is never served")

    async with served(tmp_path) as (cluster, _):
        http = BookieHttp.__new__(BookieHttp)
        http._bookie = cluster.bookies[0]
        with pytest.raises(KeyError, match="/api/v1/new"):
            http._permitted(Route("/api/v1/new", handler))


async def test_the_refusal_names_the_cure(tmp_path: Path) -> None:
    async with permitted(tmp_path) as (_, client):
        answer = await ask(client, HTTP_OPERATIONS[3], "tenant")
        assert json.loads(answer.body)["error"].endswith(
            "ledgerstream permission grant tenant --role operate"
        )
