"""Says that a client is alive, for as long as it is: one ephemeral node per client.

Ledgers name the client that writes them in their custom metadata. Readers that find no such
client know that the writer is gone, and may look for its last entries (`ledger.quorum_lac`).
Ledgers of other programs name none: nothing is known of their writers.
"""

from __future__ import annotations

import random

import trio

from ledger.errors import MetadataUnavailable, NodeExists
from ledger.metastore.base import MetadataStore
from ledger.metastore.ledgers import client_path

_RETRY_S = 0.5


class Presence:
    """Of one client. `announce` before the first ledger is created."""

    def __init__(self, store: MetadataStore, rng: random.Random) -> None:
        self.client_id = f"{rng.getrandbits(64):016x}"
        self._store = store
        self._nursery: trio.Nursery | None = None
        self._is_announced = False

    def start(self, nursery: trio.Nursery) -> None:
        """The node is kept by a task in `nursery`."""
        self._nursery = nursery

    async def announce(self) -> None:
        """Returns when everybody can see that this client is alive."""
        assert self._nursery is not None, "the client is not open"
        if not self._is_announced:
            await self._create()
            if not self._is_announced:
                self._is_announced = True
                self._nursery.start_soon(self._keep)

    async def _create(self) -> None:
        try:
            await self._store.create(client_path(self.client_id), b"", is_ephemeral=True)
        except NodeExists:
            pass  # ours: ids are random

    async def _keep(self) -> None:
        while True:
            await self._store.wait_session_lost()
            while True:
                try:
                    await self._create()
                    break
                except MetadataUnavailable:
                    await trio.sleep(_RETRY_S)
