"""What a driver knows of ledgers and bookies when it plans: each is read once per process.

Must never keep the address of a bookie for long: it may move.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from weakref import WeakKeyDictionary

import trio

from ledger.client import LedgerClient
from ledger.core.metadata import LedgerMetadata
from ledger.errors import LedgerError
from ledger.runtime.concurrency import map_bounded

_METADATA_KEPT_MAX = 10_000
ADDRESS_TTL_S = 60.0
"""How long a bookie's address is cached: a bookie may move while a query runs for days."""


class PlanningCache:
    """The metadata of ledgers and bookies of one client, cached in a driver's process."""

    def __init__(self) -> None:
        self._metadata: dict[int, LedgerMetadata] = {}
        self._named_by_address: dict[str, tuple[bool, float]] = {}
        """Whether each bookie is named by its address, and until when this is valid."""

    async def ledgers(
        self, client: LedgerClient, ledger_ids: Sequence[int], known: Mapping[int, LedgerMetadata]
    ) -> dict[int, LedgerMetadata]:
        """Returns the metadata of these ledgers. Raises what `ledger_metadata` raises."""
        found = {
            one: each
            for one in ledger_ids
            if (each := known.get(one) or self._metadata.get(one)) is not None
        }
        missing = [one for one in ledger_ids if one not in found]
        if len(self._metadata) + len(missing) > _METADATA_KEPT_MAX:
            self._metadata = {one: found[one] for one in self._metadata.keys() & found.keys()}

        async def read(ledger_id: int) -> None:
            metadata = found[ledger_id] = await client.ledger_metadata(ledger_id)
            # Cached at once: if another ledger was purged, the plan is made again. Also that of an
            # open ledger: a reader whose replicas fail reads it again.
            if len(self._metadata) < _METADATA_KEPT_MAX:
                self._metadata[ledger_id] = metadata

        await map_bounded(missing, read)
        return found

    async def named_by_address(
        self, client: LedgerClient, bookies: Iterable[str]
    ) -> dict[str, None]:
        """Returns those of these bookies whose id is their address."""

        async def is_named(bookie: str) -> tuple[str, bool]:
            return bookie, await self._is_named_by_address(client, bookie)

        return {one: None for one, is_so in await map_bounded(bookies, is_named) if is_so}

    async def _is_named_by_address(self, client: LedgerClient, bookie: str) -> bool:
        now_s = trio.current_time()
        found, until_s = self._named_by_address.get(bookie, (False, 0.0))
        if now_s >= until_s:
            try:
                host, port = await client.bookies.address(bookie)
            except LedgerError:
                return False  # the task resolves the address by itself
            found = bookie == f"{host}:{port}"
            self._named_by_address[bookie] = found, now_s + ADDRESS_TTL_S
        return found


_caches: WeakKeyDictionary[LedgerClient, PlanningCache] = WeakKeyDictionary()


def cache_of(client: LedgerClient) -> PlanningCache:
    """Returns what is known with this client."""
    return _caches.setdefault(client, PlanningCache())
