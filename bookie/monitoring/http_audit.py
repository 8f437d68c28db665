"""Records in the audit log which HTTP requests change something, and which are refused.

Of a body nothing is recorded unless the request was carried out: then it is one of the few known
objects, since handlers reject everything else. Of a query, only names that are known.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bookie.monitoring.http_bodies import AUDITED_BODY
from bookie.server.audit import AuditLog
from ledger.core.audit import Field
from ledger.core.authentication.names import ANONYMOUS

_READING: Final = ("GET", "HEAD", "OPTIONS")
_REFUSALS: Final = (401, 403)
_PARAMETERS: Final = ("enabled",)
"""Of a query: those by which a request changes something."""


class Audited:
    """Middleware around everything that may refuse a request."""

    def __init__(self, app: ASGIApp, log: AuditLog) -> None:
        self._app = app
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._record(scope, int(message["status"]))
            await send(message)

        await self._app(scope, receive, sent)

    def _record(self, scope: Scope, status: int) -> None:
        method: str = scope["method"]
        host, port = scope.get("client") or ("", 0)
        peer, user = f"{host}:{port}", scope.get("principal", ANONYMOUS)
        request = f"{method[:20]} {scope['path']}"
        if status in _REFUSALS:
            self._log.refused(
                "http", "refused", user=user, peer=peer, request=request, status=status
            )
        elif method in _READING:
            pass
        elif 200 <= status < 300:
            self._log.record(
                "http",
                "ok",
                user=user,
                peer=peer,
                request=request,
                status=status,
                arguments=_asked(scope),
            )
        else:
            self._log.refused(
                "http", "failed", user=user, peer=peer, request=request, status=status
            )


def _asked(scope: Scope) -> dict[str, Field] | None:
    """Returns what a request that was carried out has asked for; None for nothing."""
    query = parse_qs(scope["query_string"].decode("latin-1"))
    asked: dict[str, Field] = {name: query[name][0] for name in _PARAMETERS if name in query}
    asked |= scope.get(AUDITED_BODY, {})
    return asked or None
