"""Opens a ledger for reading; with recovery, fences its writer and closes it first.

A client that opens a ledger with recovery sees a closed ledger that holds every acknowledged entry,
and all such clients see the same one. Opening may be stopped anywhere and begun again, also by
several clients at once; `ledger.recovery` does the recovery.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import trio

from ledger.connection.pool import BookiePool
from ledger.core.entry import DigestType
from ledger.core.ledger_keys import check_key_known
from ledger.core.metadata import LedgerMetadata, digest_of
from ledger.core.placement.policies import order_reads
from ledger.core.placement.topology import Location
from ledger.errors import (
    LedgerClosed,
    LedgerError,
    MetadataUnavailable,
    Unauthorized,
)
from ledger.metastore.bookies import BookieRegistry
from ledger.metastore.ledgers import LedgerStore
from ledger.metastore.locations import LOCATIONS_TRUSTED_S
from ledger.missed.copies import MissedCopies
from ledger.options import ClientOptions
from ledger.reading.reader import LedgerReader

if TYPE_CHECKING:
    from ledger.missed.recovered import RecoveredLedgers

RECOVERIES_MAX = 32
"""Ledgers that one client recovers at a time; others wait. When all ledgers of a client fail at
once, each of their recoveries would time out and begin again, without end."""


class Opener:
    """Opens ledgers for one client; its only state is the nursery of its readers.

    Args:
        pool: the client's connections.
        missed: records which bookies lack entries of a ledger that was recovered.
        rng: chooses among bookies that could replace a failed one, and spreads readers.
    """

    def __init__(
        self,
        pool: BookiePool,
        ledgers: LedgerStore,
        bookies: BookieRegistry,
        missed: MissedCopies,
        options: ClientOptions,
        rng: random.Random,
    ) -> None:
        self.pool = pool
        self.ledgers = ledgers
        self.bookies = bookies
        self.options = options
        self.rng = rng
        self._nursery: trio.Nursery | None = None
        self._location = Location.parse(options.location) if options.location else None
        self._learn_places_at = -math.inf
        self._missed = missed
        self._recoveries = trio.CapacityLimiter(RECOVERIES_MAX)

    @cached_property
    def _recovered(self) -> RecoveredLedgers:
        # Imported when a ledger is recovered: most clients only read or write.
        from ledger.missed.recovered import RecoveredLedgers

        return RecoveredLedgers(self.pool, self._missed, self.options, self.rng)

    def start(self, nursery: trio.Nursery) -> None:
        """Tasks of readers (read-ahead, metadata watches) are started in `nursery`."""
        self._nursery = nursery

    async def open_ledger(
        self,
        ledger_id: int,
        *,
        password: bytes = b"",
        recover: bool = True,
        digest_type: DigestType | None = None,
    ) -> LedgerReader:
        """Returns a reader: with `recover` of the closed ledger, without it up to the last add
        confirmed.

        `digest_type` is used for a ledger whose metadata is too old to name one.

        Raises what `metadata_for_reading` raises, and without recovery NotEnoughBookies if too
        few bookies reported the last add confirmed.
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

    async def check_copies(self, ledger_ids: Sequence[int]) -> None:
        """Checks the copies of those ledgers that are closed as after a recovery. Never raises:
        what cannot be read now is left to the periodic checks."""
        for ledger_id in ledger_ids:
            try:
                metadata, _ = await self.ledgers.read(ledger_id)
            except LedgerError:
                continue
            if metadata.is_closed:
                self._recovered.check(metadata)

    def reader_of(
        self,
        metadata: LedgerMetadata,
        *,
        password: bytes = b"",
        digest_type: DigestType | None = None,
        rotation: int | None = None,
    ) -> LedgerReader:
        """Returns a reader for given metadata without any request. Raises Unauthorized."""
        if self._nursery is None:
            raise LedgerClosed("the client is not open")
        password = password_of(metadata, password)
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
            arrange=self._arrange(),
        )

    def _arrange(self) -> Callable[[Sequence[str]], Sequence[str]] | None:
        """Returns what puts the replicas nearest to this client first; None if it does not know
        where it is. Places are learned in the background."""
        location = self._location
        if location is None:
            return None
        assert self._nursery is not None
        now_s = trio.current_time()
        if now_s >= self._learn_places_at:
            self._learn_places_at = now_s + LOCATIONS_TRUSTED_S
            self._nursery.start_soon(self._learn_places)
        return lambda replicas: order_reads(replicas, location, self.bookies.known_topology)

    async def _learn_places(self) -> None:
        try:
            await self.bookies.topology()
        except MetadataUnavailable:
            pass  # replicas are asked in any order; the next reader tries again

    async def metadata_for_reading(
        self,
        ledger_id: int,
        *,
        password: bytes = b"",
        recover: bool = True,
        digest_type: DigestType | None = None,
    ) -> LedgerMetadata:
        """Returns the metadata by which the ledger is read.

        With `recover` the ledger is closed when this returns, and its writer, if it still runs, is
        fenced. Without it nothing is changed, and the ledger may be open.

        Raises NoSuchLedger, Unauthorized (another password), RecoveryIncomplete (retry later),
        MetadataUnavailable, MetadataConflict.
        """
        metadata, _ = await self.ledgers.read(ledger_id)
        password = password_of(metadata, password)
        if metadata.is_closed or not recover:
            return metadata
        check_key_known(metadata)
        from ledger.recovery import LedgerRecovery

        async with self._recoveries:
            recovery = LedgerRecovery(
                self.pool, self.ledgers, self.bookies, options=self.options, rng=self.rng,
                ledger_id=ledger_id, password=password, digest_type=digest_type,
            )  # fmt: skip
            closed = await recovery.run()
        self._recovered.check(closed)
        return closed


def password_of(metadata: LedgerMetadata, given: bytes) -> bytes:
    """Returns the password of the ledger: the given one, or its own key, which need not be given.

    Raises Unauthorized if the ledger was created with another password.
    """
    if metadata.has_own_key and not given:
        if metadata.digest_type is DigestType.HMAC:  # the digests of other entries need no key
            check_key_known(metadata)
        return metadata.password
    # Format version 1 stores neither digest type nor password: nothing to compare with.
    if metadata.digest_type is not None and metadata.password != given:
        raise Unauthorized(f"ledger {metadata.ledger_id} was created with another password")
    return given
