"""Registers a client while it is alive, by one ephemeral node.

Ledgers name the client that writes them in their custom metadata. If its node does not exist,
readers may look for the last entries of its ledgers (`ledger.reading.quorum_lac`). So an id whose
node was lost must never be used again: its writers may not change an ensemble any more
(`ledger.writing.ensemble_change`), and the next ledger gets a new id. Ledgers of other programs
name no client.
"""

from __future__ import annotations

import random

import trio

from ledger.errors import NoSuchNode
from ledger.metastore.base import MetadataStore
from ledger.metastore.ledgers import client_path


class ClientRegistration:
    """The registration of one client."""

    def __init__(self, store: MetadataStore, rng: random.Random) -> None:
        self._store = store
        self._rng = rng
        self._client_id: str | None = None
        self._making = trio.Lock()

    async def last_id(self) -> str:
        """Returns the id of this client, whose node existed when it was made or looked for last.

        It saves a request where a transaction checks the node. Raises MetadataUnavailable.
        """
        return self._client_id or await self.register()

    async def register(self) -> str:
        """Returns the id of this client, whose node exists at this moment.

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
                return self._client_id  # another task registered meanwhile
            self._client_id = None
            client_id = f"{self._rng.getrandbits(64):016x}"
            await self._store.create(client_path(client_id), b"", is_ephemeral=True)
            self._client_id = client_id
            return client_id
