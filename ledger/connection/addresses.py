"""Where bookies listen, also while the metadata store is out of reach.

Must never lead to another bookie than the one that is meant: what another answers, "no such
entry" above all, would be believed. So only an address that is the bookie's own name is used
without asking.
"""

from __future__ import annotations

import trio

from ledger.errors import BookieUnavailable, MetadataUnavailable
from ledger.metastore.bookies import BookieRegistry

_ANSWER_S = 1.0
"""Longer than a store that works takes; shorter than anybody waits for a connection."""
TOLD_S = 300.0
"""What others told is believed so long: who plans tells it anew, and a bookie may have moved."""
_TOLD_MAX = 10_000
"""Bookies; of more the registry is asked."""


class BookieAddresses:
    """Of one client."""

    def __init__(self, registry: BookieRegistry) -> None:
        self._registry = registry
        self._named_so: dict[str, None] = {}
        """Bookies that were at `host:port` when last asked, and have this for a name."""
        self._told: dict[str, float] = {}
        """Until when the registry is not asked."""

    def note_named_so(self, bookie: str, is_named_so: bool) -> None:
        """Another process that has asked tells whether the bookie has its address for a name.

        If so, the registry is not asked here for the next `TOLD_S`, or until somebody tells
        otherwise. Takes the time of the loop: for tasks only.
        """
        if not is_named_so:
            self._told.pop(bookie, None)
        elif bookie in self._told or len(self._told) < _TOLD_MAX:
            self._told[bookie] = trio.current_time() + TOLD_S

    async def resolve(self, bookie: str) -> tuple[str, int]:
        """Host and port of a bookie. Raises BookieUnavailable, MetadataUnavailable."""
        until_s = self._told.get(bookie)
        if until_s is not None:
            if trio.current_time() < until_s:
                return _address_in(bookie)
            del self._told[bookie]
            self._named_so[bookie] = None
        error: MetadataUnavailable | None = None
        with trio.move_on_after(_ANSWER_S if bookie in self._named_so else float("inf")):
            try:
                host, port = await self._registry.address(bookie)
            except MetadataUnavailable as unavailable:
                error = unavailable
            else:
                if bookie == f"{host}:{port}":
                    self._named_so[bookie] = None
                else:
                    self._named_so.pop(bookie, None)
                return host, port
        if bookie in self._named_so:
            return _address_in(bookie)
        raise error or BookieUnavailable(f"bookie {bookie}: its address is unknown")


def _address_in(bookie: str) -> tuple[str, int]:
    host, _, port = bookie.rpartition(":")
    return host, int(port)
