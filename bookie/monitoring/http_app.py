"""The HTTP interface of a bookie: metrics, health, Apache's admin paths, `bookie show`.

Request bodies are limited, errors are JSON with a cause. No request may change stored entries: a
PUT starts garbage collection, suspends compaction, makes the bookie read-only, or acts on
auto-recovery (`autorecovery_http`). With permissions, each route needs the role that its row in
`bookie.core.operations` names, on the cluster.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import logging
from collections.abc import Callable

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from bookie.core.compaction import CompactionKind
from bookie.core.operations import http_operation
from bookie.monitoring.autorecovery_http import AutoRecoveryHttp
from bookie.monitoring.http_audit import Audited
from bookie.monitoring.http_authentication import Authenticated
from bookie.monitoring.http_bodies import EscapedJson, Handler, json_object
from bookie.monitoring.prometheus import BookieMetrics
from bookie.monitoring.report import report, without_credentials
from bookie.monitoring.snapshot import Observer, ServerStatus
from bookie.server.authentication import Authenticator
from ledger.core.authentication.names import ANONYMOUS
from ledger.core.permissions import Role
from ledger.runtime.logs import OF_PEER

_log = logging.getLogger(__name__)

PRINCIPAL = "principal"
"""Key in the scope of a request: the name of its user, put there by authentication. Without it the
user is anonymous."""
_FILE_KINDS = ("journal", "entrylog", "index")


class BookieHttp:
    """The handlers of one bookie's HTTP server; `app` routes to them."""

    def __init__(self, observer: Observer, registry: CollectorRegistry) -> None:
        self._observer = observer
        self._bookie = observer.bookie
        self._metrics = BookieMetrics(observer, registry)

    def app(self, *, is_loopback: bool) -> ASGIApp:
        """Returns the application. With `is_loopback` the server listens on this machine only: then
        a request with another host name comes from a web page that was rebound to this address."""
        bookie = "/api/v1/bookie"
        routes = [
            Route("/heartbeat", self._heartbeat),
            Route("/healthz", self._healthz),
            Route("/metrics", self._show_metrics),
            Route(f"{bookie}/report", self._ready(self._report)),
            Route(f"{bookie}/state", self._state),
            Route(f"{bookie}/state/readonly", self._read_only),
            Route(f"{bookie}/state/readonly", self._ready(self._force), methods=["PUT"]),
            Route(f"{bookie}/is_ready", self._is_ready),
            Route(f"{bookie}/info", self._ready(self._info)),
            Route(f"{bookie}/gc", self._ready(self._garbage)),
            Route(f"{bookie}/gc", self._ready(self._collect_garbage), methods=["PUT"]),
            Route(f"{bookie}/gc_details", self._ready(self._garbage_details)),
            Route(f"{bookie}/gc/suspend_compaction", self._ready(self._suspended)),
            Route(f"{bookie}/gc/suspend_compaction", self._ready(self._suspend), methods=["PUT"]),
            Route(f"{bookie}/gc/resume_compaction", self._ready(self._suspended)),
            Route(f"{bookie}/gc/resume_compaction", self._ready(self._resume), methods=["PUT"]),
            Route(f"{bookie}/last_log_mark", self._ready(self._last_log_mark)),
            Route(f"{bookie}/list_disk_file", self._list_files),
            Route(f"{bookie}/expand_storage", self._expand_storage, methods=["PUT"]),
            Route("/api/v1/config/server_config", self._config),
            *AutoRecoveryHttp(self._bookie).routes(self._ready),
        ]
        app: ASGIApp = Starlette(
            routes=[self._permitted(route) for route in routes],
            exception_handlers={HTTPException: _failed, Exception: _broken},
        )
        config = self._bookie.config
        if config.is_authentication_on:
            app = Authenticated(app, config.authentication_mechanisms, self._authenticator)
        if is_loopback:
            app = _OwnHostsOnly(app)
        return app if self._bookie.audit is None else Audited(app, self._bookie.audit)

    def _authenticator(self) -> Authenticator | None:
        return None if self._bookie.server is None else self._bookie.server.authenticator

    # ---- permissions

    def _permitted(self, route: Route) -> Route:
        """Returns the route with a check of the user's role before everything else. Raises KeyError
        for a route without a row in the table of operations."""
        roles = {method: http_operation(method, route.path).needs for method in route.methods or ()}
        handler, access = route.endpoint, self._bookie.access
        if access is None:
            return route

        async def permitted(request: Request) -> Response:
            needs = roles[request.method]
            if needs is not None and not access.is_known:
                raise HTTPException(503, "the bookie has not read its permissions yet")
            user = request.scope.get(PRINCIPAL, ANONYMOUS)
            if needs is not None and not access.has_role(user, needs):
                _log.warning(
                    "permission denied user=%r request=%s %s",
                    user,
                    request.method,
                    route.path,
                    extra=OF_PEER,
                )
                raise _denied(user, needs)
            answer: Response = await handler(request)
            return answer

        return Route(route.path, permitted, methods=list(route.methods or ()))

    # ---- health

    async def _heartbeat(self, _: Request) -> Response:
        return PlainTextResponse("OK\n")

    async def _healthz(self, _: Request) -> Response:
        status = self._observer.status
        is_up = self._observer.is_ready and status is not ServerStatus.UNREGISTERED
        return EscapedJson({"status": status.name.lower()}, 200 if is_up else 503)

    async def _is_ready(self, _: Request) -> Response:
        if self._observer.is_ready:
            return PlainTextResponse("")
        return PlainTextResponse("Bookie is not fully started yet", 503)

    def _ready(self, handler: Handler) -> Handler:
        """Returns `handler` with a check that the bookie serves."""

        async def when_ready(request: Request) -> Response:
            if not self._observer.is_ready:
                raise HTTPException(503, "the bookie does not serve yet: it replays its journal")
            return await handler(request)

        return when_ready

    # ---- state

    async def _show_metrics(self, request: Request) -> Response:
        text, content_type = await self._metrics.exposition(request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": content_type})

    async def _report(self, _: Request) -> Response:
        return EscapedJson(report(await self._observer.snapshot(), self._bookie.config))

    async def _state(self, _: Request) -> Response:
        is_served = self._observer.status is not ServerStatus.UNREGISTERED
        return EscapedJson(
            {
                "running": self._observer.is_ready,
                "readOnly": self._observer.status is ServerStatus.READ_ONLY,
                "emptying": self._bookie.disk_monitor.is_emptying,
                "shuttingDown": False,  # stopping is a crash: there is no such state
                "availableForHighPriorityWrites": is_served
                and not self._bookie.disk_monitor.gate.is_shut,
            }
        )

    async def _read_only(self, _: Request) -> Response:
        return EscapedJson({"readOnly": self._observer.status is ServerStatus.READ_ONLY})

    async def _force(self, request: Request) -> Response:
        found = await json_object(request, "an object with readOnly, true or false")
        is_read_only = found.get("readOnly")
        if not isinstance(is_read_only, bool) or len(found) != 1:
            raise HTTPException(400, "the body must be an object with readOnly, true or false")
        self._bookie.force_read_only(is_read_only)
        # The state from now on: with a full disk the bookie is read-only in any case.
        return EscapedJson({"readOnly": self._bookie.disk_monitor.gate.is_read_only})

    async def _info(self, _: Request) -> Response:
        try:
            total, free = await self._bookie.space()
        except OSError as error:
            raise HTTPException(500, f"the space of the disk cannot be read: {error}") from error
        return EscapedJson({"freeSpace": free, "totalSpace": total})

    async def _last_log_mark(self, _: Request) -> Response:
        directories = self._bookie.config.journal_directories
        found: dict[str, str] = {}
        for number, mark in self._observer.replay_marks().items():
            # File ids begin at 1 in each journal; Apache's are times, so it names nothing else.
            of = f" in {directories[number]}" if len(directories) > 1 else ""
            name = f"LastLogMark: Journal Id - {mark.file_id}({mark.file_id:x}.journal){of}"
            found[name] = f"Pos - {mark.offset}"
        return EscapedJson(found)

    async def _list_files(self, request: Request) -> Response:
        kind = request.query_params.get("file_type")
        if kind not in (None, *_FILE_KINDS):
            raise HTTPException(400, f"file_type is {kind!r}, must be one of {_FILE_KINDS}")
        files = await self._observer.files()
        return EscapedJson(
            {
                f"{one} files": "".join(f"{name}\t" for name in files[one])
                for one in ([kind] if kind else _FILE_KINDS)
            }
        )

    async def _expand_storage(self, _: Request) -> Response:
        raise HTTPException(
            409,
            "a bookie that runs cannot add directories. Cure: stop it, name the new directories "
            "behind the others in ledger_directories, run `ledgerstream bookie expand-storage "
            "CONFIG`, and start it",
        )

    async def _config(self, _: Request) -> Response:
        settings = dataclasses.asdict(self._bookie.config)
        return EscapedJson({name: without_credentials(value) for name, value in settings.items()})

    # ---- garbage

    async def _garbage(self, _: Request) -> Response:
        is_forced = self._bookie.is_collection_forced
        return EscapedJson({"is_in_force_gc": "true" if is_forced else "false"})

    async def _collect_garbage(self, request: Request) -> Response:
        switches = await _switches(request, "force")
        kinds = [kind for kind, is_on in switches.items() if is_on]
        if not switches:
            kinds = [CompactionKind.MAJOR]
        self._bookie.force_collection(max(kinds, default=CompactionKind.NONE))
        return EscapedJson(f"Triggered GC on BookieServer: {self._bookie.bookie_id}")

    async def _garbage_details(self, _: Request) -> Response:
        assert self._bookie.storage is not None
        return EscapedJson(
            [
                {
                    "directory": one.directory,
                    "rounds": one.details().garbage.seconds.count,
                    **dataclasses.asdict(one.details().compaction),
                }
                for one in self._bookie.storage.directories
            ]
        )

    async def _suspended(self, _: Request) -> Response:
        assert self._bookie.storage is not None
        ask = self._bookie.storage.is_compaction_suspended
        return EscapedJson(
            {
                "isMajorGcSuspended": "true" if ask(CompactionKind.MAJOR) else "false",
                "isMinorGcSuspended": "true" if ask(CompactionKind.MINOR) else "false",
            }
        )

    async def _suspend(self, request: Request) -> Response:
        assert self._bookie.storage is not None
        return await self._switch(request, "suspend", self._bookie.storage.suspend_compaction)

    async def _resume(self, request: Request) -> Response:
        assert self._bookie.storage is not None
        return await self._switch(request, "resume", self._bookie.storage.resume_compaction)

    async def _switch(
        self, request: Request, verb: str, switch: Callable[[CompactionKind], None]
    ) -> Response:
        switches = await _switches(request, verb)
        kinds = [kind for kind, is_on in switches.items() if is_on]
        if not kinds:
            raise HTTPException(400, f"give {verb}Major or {verb}Minor as true in a JSON body")
        for kind in kinds:
            switch(kind)
        done = ", ".join(f"{verb.capitalize()} {kind.name.lower()}GC" for kind in kinds)
        return EscapedJson(f"{done} on BookieServer: {self._bookie.bookie_id}")


async def _switches(request: Request, verb: str) -> dict[CompactionKind, bool]:
    """Returns the switches {verb}Major and {verb}Minor of a request's JSON body, or {} without a
    body. Raises HTTPException."""
    names = {f"{verb}Major": CompactionKind.MAJOR, f"{verb}Minor": CompactionKind.MINOR}
    wanted = f"an object with {' and '.join(names)}, each true or false"
    found = await json_object(request, wanted)
    switches: dict[CompactionKind, bool] = {}
    for name, value in found.items():
        if name not in names or not isinstance(value, bool):
            raise HTTPException(400, f"{name[:100]!r} is wrong in the body, which must be {wanted}")
        switches[names[name]] = value
    return switches


def _denied(user: str, needs: Role) -> HTTPException:
    """Returns 401 for a client that may authenticate yet, 403 for one that did."""
    if user == ANONYMOUS:
        detail = f"this needs the role {needs.value}, and the request has no credentials"
        return HTTPException(401, detail, headers={"WWW-Authenticate": "Bearer"})
    return HTTPException(
        403,
        f"user {user} needs the role {needs.value}. Cure: ledgerstream permission grant"
        f" {user} --role {needs.value}",
    )


async def _failed(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return EscapedJson({"error": error.detail}, error.status_code, headers=error.headers)


async def _broken(request: Request, error: Exception) -> Response:
    _log.error("http request failed path=%s cause=%r", request.url.path, error, extra=OF_PEER)
    return EscapedJson({"error": f"{type(error).__name__}: see the bookie's log"}, 500)


class _OwnHostsOnly:
    """Middleware that rejects requests whose Host is neither an address nor localhost: a web page
    whose name was rebound to this machine (DNS rebinding) sends its own name."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
            if not _is_own(host):
                refusal = {"error": f"Host is {host[:100]!r}, must be an address or localhost"}
                await EscapedJson(refusal, 403)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _is_own(host: str) -> bool:
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
