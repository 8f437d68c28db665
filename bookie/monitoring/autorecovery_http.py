"""Apache's HTTP paths of auto-recovery, with its replies. They act on the metadata of the cluster,
so that any bookie answers for all.

What Apache runs in the process that was asked is a node in the metadata here: whichever processes
heal ledgers do it, also after a restart. A lost bookie is recovered by auto-recovery itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeGuard

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from bookie.bookie import Bookie
from bookie.monitoring.http_bodies import EscapedJson, Handler, json_object
from ledger.errors import InvalidArgument, LedgerError, MetadataCorrupt, NodeExists, RetryableError
from ledger.metastore.decommissions import Decommission, Decommissions
from ledger.metastore.election import AuditorElection
from ledger.metastore.paths import check_bookie_id
from ledger.metastore.underreplication import UnderreplicationStore
from ledger.runtime.concurrency import map_bounded
from ledger.shown_text import shown_text

DELAY_S_MAX: Final = 999_999_999
_SHOWN_MAX: Final = 100


class AutoRecoveryHttp:
    """The handlers of one bookie's HTTP server for the paths below `/api/v1/autorecovery`."""

    def __init__(self, bookie: Bookie) -> None:
        root = bookie.config.ledgers_root
        self._bookie = bookie
        self._marks = UnderreplicationStore(bookie.store, root, bookie.now_ms)
        self._decommissions = Decommissions(bookie.store)
        self._election = AuditorElection(bookie.store, root)

    def routes(self, ready: Callable[[Handler], Handler]) -> list[Route]:
        """Returns the routes. `ready` wraps a handler with a check that the bookie serves."""
        at = "/api/v1/autorecovery"
        handlers: list[tuple[str, str, Handler]] = [
            ("GET", "status", self._status),
            ("PUT", "status", self._set_status),
            ("GET", "who_is_auditor", self._auditor),
            ("GET", "list_under_replicated_ledger", self._list),
            ("GET", "lost_bookie_recovery_delay", self._delay),
            ("PUT", "lost_bookie_recovery_delay", self._set_delay),
            ("PUT", "trigger_audit", self._audit),
            ("PUT", "decommission", self._decommission),
            ("PUT", "bookie", self._recover),
        ]
        return [
            Route(f"{at}/{name}", ready(_explained(handler)), methods=[method])
            for method, name, handler in handlers
        ]

    # ---- the cluster's state

    async def _status(self, _: Request) -> Response:
        return EscapedJson({"enabled": await self._marks.is_enabled()})

    async def _set_status(self, request: Request) -> Response:
        wanted = request.query_params.get("enabled", "").lower()
        if wanted not in ("true", "false"):
            raise HTTPException(400, "give the parameter enabled, true or false")
        await self._marks.set_enabled(wanted == "true")
        return await self._status(request)

    async def _auditor(self, _: Request) -> Response:
        auditor = await self._election.auditor()
        if auditor is None:
            return PlainTextResponse("No auditor elected", 404)
        return PlainTextResponse(f"Auditor: {shown_text(auditor)}")

    async def _list(self, request: Request) -> Response:
        missing = request.query_params.get("missingreplica", "").strip()
        excluded = request.query_params.get("excludingmissingreplica", "").strip()
        marked = await self._marks.list()
        if missing or excluded:

            async def is_chosen(ledger_id: int) -> bool:
                try:
                    mark = await self._marks.read(ledger_id)
                except MetadataCorrupt:
                    return True  # which bookies lack a copy is unknown
                if mark is None:
                    return False  # it was healed meanwhile
                return (not missing or missing in mark.replicas) and excluded not in mark.replicas

            chosen = await map_bounded(marked, is_chosen)
            marked = [one for one, is_one in zip(marked, chosen, strict=True) if is_one]
        if not marked:
            return PlainTextResponse("No under replicated ledgers found", 404)
        return EscapedJson(marked)

    # ---- audits

    async def _delay(self, _: Request) -> Response:
        seconds = await self._marks.lost_bookie_recovery_delay_s()
        if seconds is None:
            raise HTTPException(
                404, "no delay was set for the cluster: each auditor uses its own setting"
            )
        return PlainTextResponse(f"lostBookieRecoveryDelay value: {seconds}")

    async def _set_delay(self, request: Request) -> Response:
        wanted = f"an object with delay_seconds, a number from 0 to {DELAY_S_MAX}"
        found = await json_object(request, wanted)
        seconds = found.get("delay_seconds")
        if type(seconds) is not int or not 0 <= seconds <= DELAY_S_MAX or len(found) != 1:
            raise HTTPException(400, f"the body must be {wanted}")
        await self._marks.set_lost_bookie_recovery_delay_s(seconds)
        return PlainTextResponse(f"Success set lostBookieRecoveryDelay to {seconds}")

    async def _audit(self, _: Request) -> Response:
        if not await self._marks.is_enabled():
            raise HTTPException(409, "auto-recovery is disabled. Cure: PUT status?enabled=true")
        try:
            is_audited = await self._election.auditor() is not None
        except MetadataCorrupt:
            is_audited = True  # it is unknown which process it is
        if not is_audited:
            raise HTTPException(
                409, "there is no auditor: no process of the cluster runs auto-recovery"
            )
        await self._marks.trigger_audit(self._bookie.config.lost_bookie_recovery_delay_s)
        return PlainTextResponse("Success trigger audit.")

    # ---- bookies

    async def _decommission(self, request: Request) -> Response:
        wanted = "an object with bookie_src, the id of a bookie"
        found = await json_object(request, wanted)
        bookie = found.get("bookie_src")
        if not isinstance(bookie, str) or len(found) != 1:
            raise HTTPException(400, f"the body must be {wanted}")
        await self._begin([bookie], None)
        return PlainTextResponse(f"Success send decommission Bookie command {bookie}")

    async def _recover(self, request: Request) -> Response:
        wanted = (
            "an object with bookie_src and perhaps bookie_dest, lists of ids of bookies, and"
            " delete_cookie, true or false"
        )
        found = await json_object(request, wanted)
        sources, targets = found.get("bookie_src"), found.get("bookie_dest", [])
        is_final = found.get("delete_cookie", False)
        is_known = not found.keys() - {"bookie_src", "bookie_dest", "delete_cookie"}
        if not (_are_ids(sources) and sources and _are_ids(targets) and isinstance(is_final, bool)):
            raise HTTPException(400, f"the body must be {wanted}")
        if not is_known or len(targets) > 1:
            raise HTTPException(400, f"the body must be {wanted}; bookie_dest has one at most")
        if not is_final:
            raise HTTPException(
                400,
                "delete_cookie must be true: a bookie that is only down is recovered by"
                " auto-recovery after lost_bookie_recovery_delay. Cure: wait, or set a smaller"
                " delay; or give it up for good with delete_cookie",
            )
        await self._begin(sources, targets[0] if targets else None)
        return PlainTextResponse("Success send recovery request command.")

    async def _begin(self, bookies: Sequence[str], replacement: str | None) -> None:
        """Begins to empty the bookies, unless that was begun before. All of them are checked before
        the first one begins."""
        for bookie in bookies:
            check_bookie_id(bookie)
        registry = self._bookie.registry
        known = await registry.all()
        for bookie in bookies:
            if bookie not in known:
                shown = ", ".join(known[:_SHOWN_MAX])
                raise HTTPException(
                    404, f"bookie {bookie} is not in this cluster, which has {shown}"
                )
        leaving = {*bookies, *await self._decommissions.names()}
        staying = [one for one in await registry.available() if one not in leaving]
        if not staying:
            raise HTTPException(
                409,
                f"no bookie but {', '.join(bookies)} accepts entries: the copies have nowhere to"
                " go. Cure: start another bookie first",
            )
        if replacement is not None and replacement not in staying:
            raise HTTPException(
                409, f"bookie {replacement} is not writable; writable are {', '.join(staying)}"
            )
        for bookie in dict.fromkeys(bookies):
            begun_ms = self._bookie.now_ms()
            try:
                await self._decommissions.begin(
                    Decommission(bookie=bookie, begun_ms=begun_ms, replacement=replacement)
                )
            except NodeExists:
                continue  # begun before


def _are_ids(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _explained(handler: Handler) -> Handler:
    """Returns `handler` with errors of the metadata as replies."""

    async def explained(request: Request) -> Response:
        try:
            return await handler(request)
        except InvalidArgument as error:
            raise HTTPException(400, str(error)) from error
        except RetryableError as error:
            raise HTTPException(503, str(error)) from error
        except LedgerError as error:
            raise HTTPException(500, str(error)) from error

    return explained
