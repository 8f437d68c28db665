"""Resolves bookies to addresses, also while the metadata store is unreachable.

It must never resolve to a bookie other than the one that is meant: the answers of another one,
"no such entry" above all, would be trusted. So the registry is bypassed only for a bookie whose
id is its address. A port for TLS is not in an id: to connect to one needs the registry.
"""

from __future__ import annotations

import trio

from ledger.errors import BookieUnavailable, MetadataUnavailable
from ledger.metastore.bookies import BookieRegistry

_ANSWER_S = 1.0
"""Longer than a working store takes to answer, and shorter than the connect timeout."""
TRUSTED_S = 300.0
"""How long a note of another process is trusted: a planner renews it, and a bookie may move."""
_TRUSTED_MAX = 10_000
"""Bookies with such a note; for further ones the registry is asked."""


class BookieAddresses:
    """Resolves bookie ids for one client. `direct_tls`: to their ports for TLS."""

    def __init__(self, registry: BookieRegistry, *, direct_tls: bool = False) -> None:
        self._registry = registry
        self._direct_tls = direct_tls
        self._id_is_address: dict[str, None] = {}
        """Bookies whose id was their `host:port` when the registry was last asked."""
        self._trusted_until: dict[str, float] = {}
        """By bookie, until when the registry is not asked."""

    def note_id_is_address(self, bookie: str, is_address: bool) -> None:
        """Records what another process learned: whether the bookie's id is its address.

        If it is, the registry is not asked for the next `TRUSTED_S`, or until a note to the
        contrary. Reads trio's clock, so it must be called from a task.
        """
        if not is_address:
            self._trusted_until.pop(bookie, None)
        elif bookie in self._trusted_until or len(self._trusted_until) < _TRUSTED_MAX:
            self._trusted_until[bookie] = trio.current_time() + TRUSTED_S

    async def resolve(self, bookie: str) -> tuple[str, int]:
        """Returns host and port of a bookie. Raises BookieUnavailable, MetadataUnavailable."""
        if self._direct_tls:
            return await self._tls_address(bookie)
        until_s = self._trusted_until.get(bookie)
        if until_s is not None:
            if trio.current_time() < until_s:
                return _address_in(bookie)
            del self._trusted_until[bookie]
            self._id_is_address[bookie] = None
        error: MetadataUnavailable | None = None
        with trio.move_on_after(_ANSWER_S if bookie in self._id_is_address else float("inf")):
            try:
                host, port = await self._registry.address(bookie)
            except MetadataUnavailable as unavailable:
                error = unavailable
            else:
                if bookie == f"{host}:{port}":
                    self._id_is_address[bookie] = None
                else:
                    self._id_is_address.pop(bookie, None)
                return host, port
        if bookie in self._id_is_address:
            return _address_in(bookie)
        raise error or BookieUnavailable(f"bookie {bookie}: its address is unknown")

    async def _tls_address(self, bookie: str) -> tuple[str, int]:
        info = await self._registry.info(bookie)
        if info is None:
            raise BookieUnavailable(f"bookie {bookie} is not registered: its TLS port is unknown")
        if info.tls_port is None:
            raise BookieUnavailable(
                f"bookie {bookie} publishes no port for TLS. Cure: tls_port in its settings, or "
                'tls = "start_tls" in those of the client'
            )
        return info.host, info.tls_port


def _address_in(bookie: str) -> tuple[str, int]:
    host, _, port = bookie.rpartition(":")
    return host, int(port)
