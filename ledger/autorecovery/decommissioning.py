"""Decommissions for operators: what one would do, how far it has come, and what holds it up.

Auto-recovery does the work, in whatever processes it runs; here it is begun and followed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field, replace

import trio

from ledger.autorecovery.cluster_view import read_bookies
from ledger.autorecovery.published import read_workers
from ledger.client import LedgerClient
from ledger.core.autorecovery.audit import bytes_named
from ledger.core.autorecovery.bookies import Bookies
from ledger.core.autorecovery.plan import plan
from ledger.core.metadata import Fragment, LedgerMetadata
from ledger.errors import (
    InvalidArgument,
    MetadataCorrupt,
    NoSuchLedger,
    NotEnoughBookies,
)
from ledger.metastore.decommissions import Decommission, Decommissions
from ledger.metastore.election import AuditorElection
from ledger.metastore.paths import check_bookie_id
from ledger.runtime.concurrency import map_bounded

_READ_AT_ONCE = 64
_EXPLAINED_MAX = 100
POLL_S = 1.0

OnCounted = Callable[[int, int], None]
"""Called with the number of ledgers that were looked at, and that of all."""


@dataclass(slots=True, kw_only=True)
class Named:
    """The ledgers whose metadata names a bookie."""

    ledgers: dict[int, int] = field(default_factory=dict)
    """Their ids, and about how many payload bytes of each are at the bookie."""
    ensemble_size_max: int = 0
    unreadable: int = 0
    """Ledgers whose metadata cannot be read, which may name it."""

    @property
    def bytes(self) -> int:
        return sum(self.ledgers.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class DecommissionProgress:
    """How far a decommission has come. `reasons`: what holds ledgers up, and how many of those
    that were looked at, at most `_EXPLAINED_MAX`."""

    state: str
    ledgers_total: int
    ledgers_left: int
    bytes_total: int
    bytes_left: int
    reasons: Mapping[str, int] = field(default_factory=dict)
    is_held: bool = False
    """Each of the ledgers left is held up by a reason."""


async def count_named(
    client: LedgerClient, bookie: str, *, on_counted: OnCounted | None = None
) -> Named:
    """Returns the ledgers that name a bookie, by one pass over the metadata of all. Raises
    MetadataUnavailable."""
    named = Named()
    ids = await client.list_ledgers()
    for begin in range(0, len(ids), _READ_AT_ONCE):
        step = ids[begin : begin + _READ_AT_ONCE]
        await _add_named(client, bookie, step, named)
        if on_counted is not None:
            on_counted(begin + len(step), len(ids))
    return named


async def _add_named(client: LedgerClient, bookie: str, ids: list[int], named: Named) -> None:
    async def look(ledger_id: int) -> None:
        try:
            metadata, _ = await client.ledgers.read(ledger_id)
        except NoSuchLedger:
            return
        except MetadataCorrupt:
            named.unreadable += 1
            return
        if any(bookie in fragment.bookies for fragment in metadata.fragments):
            named.ledgers[ledger_id] = bytes_named(metadata, bookie)
            named.ensemble_size_max = max(named.ensemble_size_max, metadata.ensemble_size)

    await map_bounded(ids, look, concurrent_max=_READ_AT_ONCE)


async def check_decommission(
    client: LedgerClient, bookie: str, replacement: str | None = None
) -> None:
    """Raises InvalidArgument if the bookie, or the one that replaces it, is not known, or if no
    other bookie is writable. Changes nothing."""
    check_bookie_id(bookie)
    known = await client.bookies.all()
    if bookie not in known:
        shown = ", ".join(known[:10]) + (" ..." if len(known) > 10 else "")
        raise InvalidArgument(
            f"bookie {bookie} is not in this cluster, which has {shown or 'no bookies'}"
        )
    bookies = await read_bookies(client.bookies, Decommissions(client.store))
    others = sorted({*bookies.writable} - {bookie})
    if replacement is not None:
        check_bookie_id(replacement)
        if replacement == bookie:
            raise InvalidArgument(f"bookie {bookie} cannot be replaced by itself")
        if replacement not in others:
            raise InvalidArgument(
                f"bookie {replacement} is not writable. Cure: start it, or name another one; "
                f"writable are {', '.join(others) or 'none'}"
            )
    if not others:
        raise InvalidArgument(
            f"bookie {bookie} is the last one that is writable: its copies have nowhere to go. "
            "Cure: start another bookie first"
        )


def check_sizes(bookie: str, named: Named, bookies: Bookies) -> None:
    """Raises NotEnoughBookies if ledgers need more bookies than are left without this one."""
    left = len({*bookies.writable} - {bookie})
    if named.ensemble_size_max > left:
        raise NotEnoughBookies(
            f"ledgers on bookie {bookie} need {named.ensemble_size_max} bookies, {left} would be "
            "writable without it. Cure: start another bookie first"
        )


async def begin_decommission(
    client: LedgerClient, bookie: str, named: Named, replacement: str | None = None
) -> Decommission:
    """Records that a bookie is to be emptied; one that is recorded already continues. It accepts
    no new entries from now on. Raises what `check_decommission` and `check_sizes` raise."""
    decommissions = Decommissions(client.store)
    found = await decommissions.read(bookie)
    if found is not None:
        if found.replacement != replacement:
            raise InvalidArgument(
                f"bookie {bookie} is being decommissioned already, and replaced by "
                f"{found.replacement or 'any bookies'}. Cure: cancel that first (--cancel)"
            )
        return found
    await check_decommission(client, bookie, replacement)
    check_sizes(bookie, named, await read_bookies(client.bookies, decommissions))
    wanted = Decommission(
        bookie=bookie,
        begun_ms=client.now_ms(),
        replacement=replacement,
        ledgers_total=len(named.ledgers),
        ledgers_left=len(named.ledgers),
        bytes_total=named.bytes,
        bytes_left=named.bytes,
        updated_ms=client.now_ms(),
    )
    await decommissions.begin(wanted)
    return wanted


class DecommissionWatch:
    """Follows a decommission that has begun, by its own look at the metadata.

    Args:
        named: the ledgers that named the bookie when it began, or later.
    """

    def __init__(self, client: LedgerClient, bookie: str, named: Named) -> None:
        self._client = client
        self._bookie = bookie
        self._named = named
        self._decommissions = Decommissions(client.store)
        self._total = len(named.ledgers), named.bytes

    async def progress(self) -> AsyncGenerator[DecommissionProgress, None]:
        """Yields how far it has come, about once per second, until the bookie is emptied or the
        decommission is cancelled. Close it with `aclosing`. Raises MetadataUnavailable."""
        while True:
            found = await self._decommissions.read(self._bookie)
            state = "cancelled" if found is None else found.state
            await self._recount()
            yield await self._progress_of(state)
            if state != "draining":
                return
            await trio.sleep(POLL_S)

    async def _recount(self) -> None:
        left = Named()
        ids = list(self._named.ledgers)
        for begin in range(0, len(ids), _READ_AT_ONCE):
            await _add_named(self._client, self._bookie, ids[begin : begin + _READ_AT_ONCE], left)
        self._named = left

    async def _progress_of(self, state: str) -> DecommissionProgress:
        reasons: dict[str, int] = {}
        ids = list(self._named.ledgers)
        looked_at = ids[:_EXPLAINED_MAX]
        if state == "draining":
            for reason in await self._general_reasons():
                reasons[reason] = len(ids)
            held = {
                ledger_id: reason
                for worker in await read_workers(self._client.store)
                for ledger_id, reason, _, _ in worker.held
            }
            bookies = await read_bookies(self._client.bookies, self._decommissions)
            for ledger_id in looked_at:
                why = await self._reason(ledger_id, bookies) or held.get(ledger_id)
                if why is not None:
                    reasons[f"ledger {ledger_id}: {why}"] = 1
        return DecommissionProgress(
            state=state,
            ledgers_total=self._total[0],
            ledgers_left=len(ids),
            bytes_total=self._total[1],
            bytes_left=self._named.bytes,
            reasons=reasons,
            is_held=bool(ids) and len(reasons) >= len(looked_at),
        )

    async def _general_reasons(self) -> list[str]:
        reasons = []
        client = self._client
        if not await client.underreplication.is_enabled():
            reasons.append(
                "auto-recovery is disabled in this cluster. Cure: ledgerstream autorecovery enable"
            )
        election = AuditorElection(client.store, client.ledgers.root, client.rng)
        try:
            if await election.auditor() is None:
                reasons.append(
                    "no process runs auto-recovery. Cure: `ledgerstream autorecovery run`, or "
                    "`autorecovery = true` in the settings of the bookies"
                )
        except MetadataCorrupt:
            pass  # there is an auditor, and it may live
        return reasons

    async def _reason(self, ledger_id: int, bookies: Bookies) -> str | None:
        """Returns what holds a ledger up, as far as metadata show it; None if nothing does."""
        try:
            metadata, _ = await self._client.ledgers.read(ledger_id)
        except (NoSuchLedger, MetadataCorrupt):
            return None

        def choose(metadata: LedgerMetadata, fragment: Fragment, index: int) -> str:
            left = [one for one in sorted(bookies.writable) if one not in fragment.bookies]
            if not left:
                raise NotEnoughBookies(
                    f"needs {metadata.ensemble_size} bookies, {len(bookies.writable)} are writable"
                )
            return left[0]

        found = plan(metadata, replace(bookies, replacements={}), {}, choose)
        if found.holds:
            return found.holds[0].reason
        if found.is_end_unsafe and await self._client.ledgers.is_writer_alive(metadata):
            return (
                "it is open, and its writer is alive: it goes to another bookie with its next "
                "entry, or when its connection to this one ends. Cure: close the writer"
            )
        return None
