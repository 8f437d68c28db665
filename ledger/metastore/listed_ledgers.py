"""Which of many ledgers exist, asked in ascending order, by lists where those cost less.

A list only ever says that a ledger exists: one that is in none is asked for by itself, so that
absence is what the store said about that very node, after the list.
"""

from __future__ import annotations

from typing import Final

from ledger.metastore.base import MetadataStore
from ledger.metastore.ledgers import LedgerStore
from ledger.metastore.paths import name_of, parent_of

_ASKS_MAX: Final = 16
"""A folder holds up to 10,000 ledgers; to list them costs about as much as twice this many asks."""


class ListedLedgers:
    """One pass over ledgers; make a new one for each. It holds the names of one folder."""

    def __init__(self, store: MetadataStore, ledgers: LedgerStore) -> None:
        self._store = store
        self._ledgers = ledgers
        self._folder = ""
        self._asks = 0
        self._listed: tuple[str, frozenset[str]] = ("", frozenset())

    async def exists(self, ledger_id: int) -> bool:
        """Whether the ledger exists now, or did since the pass began; raises as
        `LedgerStore.exists` does."""
        path = await self._ledgers.path(ledger_id)
        folder = parent_of(path)
        if folder != self._folder:
            self._folder, self._asks = folder, 0
        self._asks += 1
        # The root is a folder without a bound, in the flat layout.
        if self._asks == _ASKS_MAX and folder != self._ledgers.root:
            self._listed = folder, frozenset(await self._store.children(folder))
        listed, names = self._listed
        if folder == listed and name_of(path) in names:
            return True
        return await self._ledgers.exists(ledger_id)
