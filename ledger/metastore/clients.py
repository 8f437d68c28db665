"""Says that a client is alive, for as long as it is: one ephemeral node per client.

Ledgers name the client that writes them in their custom metadata. Readers that find no such client
may look for the last entries of its ledgers (`ledger.reading.quorum_lac`). So a name that was lost
is lost for good: its writers may change no ensemble any more (`ledger.writing.ensemble_change`),
and the next ledger gets a new name. Ledgers of other programs name no client.
"""

from __future__ import annotations

import random

import trio

from ledger.errors import NoSuchNode
from ledger.metastore.base import MetadataStore
from ledger.metastore.ledgers import client_path


class ClientRegistration:
    """Of one client."""

    def __init__(self, store: MetadataStore, rng: random.Random) -> None:
        self._store = store
        self._rng = rng
        self._client_id: str | None = None
        self._making = trio.Lock()

    async def register(self) -> str:
        """The name under which everybody can see now that this client is alive.

        Raises MetadataUnavailable.
        """
        known = self._client_id
        if known is not None:
            try:
                await self._store.get(client_path(known))
            except NoSuchNode:
                pass  # the session was lost, and the node with it
            else:
                return known
        async with self._making:
            if self._client_id is not None and self._client_id != known:
                return self._client_id  # another ledger's maker came first
            self._client_id = None
            client_id = f"{self._rng.getrandbits(64):016x}"
            await self._store.create(client_path(client_id), b"", is_ephemeral=True)
            self._client_id = client_id
            return client_id
