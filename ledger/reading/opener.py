"""Opens a ledger for reading; recovers it first if its writer is gone. See `ledger.recovery`.

Answers for: whoever opens with recovery sees a closed ledger that holds every acknowledged
entry, and all who do see the same one. May be stopped anywhere and begun again, also by
several clients at once. It must never close a ledger by anything but compare-and-set.
"""

from __future__ import annotations

import random

import trio

from ledger.connection.pool import BookiePool
from ledger.core.entry import DigestType
from ledger.core.metadata import LedgerMetadata
from ledger.errors import (
    LedgerClosed,
    Unauthorized,
)
from ledger.metastore.bookies import BookieRegistry
from ledger.metastore.ledgers import LedgerStore
from ledger.options import ClientOptions
from ledger.reading.reader import LedgerReader
from ledger.recovery import LedgerRecovery, digest_of

RECOVERIES_MAX = 32
"""Ledgers one client recovers at the same time; others wait. When all ledgers of a client fail at
once, their recoveries would be answered too late, each of them, and begin again for ever."""


class Opener:
    """Opens ledgers for one client; stateless but for the nursery its readers live in.

    Args:
        pool: the client's connections.
        rng: chooses among bookies that could replace a failed one, and spreads readers.
    """

    def __init__(
        self,
        pool: BookiePool,
        ledgers: LedgerStore,
        bookies: BookieRegistry,
        *,
        options: ClientOptions,
        rng: random.Random,
    ) -> None:
        self.pool = pool
        self.ledgers = ledgers
        self.bookies = bookies
        self.options = options
        self.rng = rng
        self._nursery: trio.Nursery | None = None
        self._recoveries = trio.CapacityLimiter(RECOVERIES_MAX)

    def start(self, nursery: trio.Nursery) -> None:
        """Tasks of readers (read-ahead, watching metadata) live in `nursery` from now on."""
        self._nursery = nursery

    async def open_ledger(
        self,
        ledger_id: int,
        *,
        password: bytes = b"",
        recover: bool = True,
        digest_type: DigestType | None = None,
    ) -> LedgerReader:
        """A reader, of the closed ledger if `recover`; else it knows the last add confirmed.

        `digest_type` is that of a ledger whose metadata is too old to name one.

        Raises what `metadata_for_reading` raises, and NotEnoughBookies if without recovery
        too few bookies could say how far the ledger is confirmed.
        """
        if self._nursery is None:
            raise LedgerClosed("the client is not open")
        metadata = await self.metadata_for_reading(
            ledger_id, password=password, recover=recover, digest_type=digest_type
        )
        reader = self.reader_of(metadata, password=password, digest_type=digest_type)
        if not reader.is_closed:
            await reader.read_last_confirmed()
        return reader

    def reader_of(
        self,
        metadata: LedgerMetadata,
        *,
        password: bytes = b"",
        digest_type: DigestType | None = None,
        rotation: int | None = None,
    ) -> LedgerReader:
        """A reader by metadata that the caller has; asks nobody. Raises Unauthorized."""
        if self._nursery is None:
            raise LedgerClosed("the client is not open")
        check_password(metadata, password)
        return LedgerReader(
            metadata,
            digest_of(metadata, password, digest_type),
            pool=self.pool,
            ledgers=self.ledgers,
            bookies=self.bookies,
            options=self.options,
            rng=self.rng,
            nursery=self._nursery,
            rotation=rotation,
        )

    async def metadata_for_reading(
        self,
        ledger_id: int,
        *,
        password: bytes = b"",
        recover: bool = True,
        digest_type: DigestType | None = None,
    ) -> LedgerMetadata:
        """The metadata to read the ledger by.

        With `recover` it is closed when this returns: a writer that is still there is fenced.
        Without, nothing is changed and the ledger may be open.

        Raises NoSuchLedger, Unauthorized (another password), RecoveryIncomplete (retry later),
        MetadataUnavailable, MetadataConflict.
        """
        metadata, _ = await self.ledgers.read(ledger_id)
        check_password(metadata, password)
        if metadata.is_closed or not recover:
            return metadata
        async with self._recoveries:
            recovery = LedgerRecovery(
                self.pool, self.ledgers, self.bookies, options=self.options, rng=self.rng,
                ledger_id=ledger_id, password=password, digest_type=digest_type,
            )  # fmt: skip
            return await recovery.run()


def check_password(metadata: LedgerMetadata, password: bytes) -> None:
    """Raises Unauthorized if the ledger was created with another password."""
    # Format version 1 stores neither digest type nor password: nothing to compare with.
    if metadata.digest_type is not None and metadata.password != password:
        raise Unauthorized(f"ledger {metadata.ledger_id} was created with another password")
