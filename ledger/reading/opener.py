"""Opens a ledger for reading; recovers it first if its writer is gone. Core: `core.recovery`.

Answers for: whoever opens with recovery sees a closed ledger that holds every acknowledged
entry, and all who do see the same one. May be stopped anywhere and begun again, also by
several clients at once. It must never close a ledger by anything but compare-and-set.
"""

from __future__ import annotations

import random

import trio

from ledger.connection.pool import BookiePool
from ledger.core import placement
from ledger.core.entry import Digest, DigestType, master_key
from ledger.core.metadata import LedgerMetadata
from ledger.core.recovery import RecoveryCore
from ledger.core.recovery_events import (
    Action,
    AddEntry,
    Answered,
    Chosen,
    Conflicted,
    Event,
    ReadEntry,
    ReadLast,
    ReplaceBookie,
    Silent,
    StoreClosed,
    Stored,
)
from ledger.errors import (
    INVALID_ENTRY_ID,
    LedgerClosed,
    MetadataConflict,
    MetadataUnavailable,
    NotEnoughBookies,
    ProtocolError,
    RetryableError,
    Status,
    Unauthorized,
)
from ledger.metastore.bookies import BookieRegistry
from ledger.metastore.ledgers import LedgerStore
from ledger.options import ClientOptions
from ledger.reading.reader import LedgerReader
from ledger.runtime.drive import drive
from ledger.wire.messages import AddRequest, AddResponse, ReadRequest, ReadResponse, ResponseBody

_BUSY_WAIT_S = 0.05
"""First pause after a bookie said that it has too much to do; doubles."""

_BEGIN_TRIES_MAX = 100

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
            return await _Recovery(self, ledger_id, password, digest_type).run()


def check_password(metadata: LedgerMetadata, password: bytes) -> None:
    """Raises Unauthorized if the ledger was created with another password."""
    # Format version 1 stores neither digest type nor password: nothing to compare with.
    if metadata.digest_type is not None and metadata.password != password:
        raise Unauthorized(f"ledger {metadata.ledger_id} was created with another password")


def digest_of(
    metadata: LedgerMetadata, password: bytes, digest_type: DigestType | None = None
) -> Digest:
    """The digest of a ledger's entries. If the metadata is too old to say: `digest_type`, or
    CRC32, the default of that time."""
    return Digest(metadata.digest_type or digest_type or DigestType.CRC32, password)


class _Recovery:
    """One recovery of one ledger: does what the core asks for."""

    def __init__(
        self, opener: Opener, ledger_id: int, password: bytes, digest_type: DigestType | None
    ) -> None:
        self._opener = opener
        self._ledger_id = ledger_id
        self._password = password
        self._digest_type = digest_type
        self._master_key = master_key(password)
        self._version = -1

    async def run(self) -> LedgerMetadata:
        metadata = await self._begin()
        if metadata.is_closed:
            return metadata
        digest = digest_of(metadata, self._password, self._digest_type)
        core = RecoveryCore(metadata, digest)
        return await drive(core, self._perform)

    async def _begin(self) -> LedgerMetadata:
        """Stores IN_RECOVERY, unless it is stored or the ledger is closed. From then on the
        writer can change no ensemble and close nothing."""
        ledgers = self._opener.ledgers
        for _ in range(_BEGIN_TRIES_MAX):
            metadata, self._version = await ledgers.read(self._ledger_id)
            if metadata.is_closed or metadata.in_recovery() is metadata:
                return metadata
            try:
                self._version = await ledgers.compare_and_put(metadata.in_recovery(), self._version)
            except MetadataConflict:
                continue
            return metadata.in_recovery()
        raise MetadataConflict(
            f"ledger {self._ledger_id}: its metadata changed {_BEGIN_TRIES_MAX} times before "
            "recovery could begin"
        )

    async def _perform(self, action: Action) -> Event:
        match action:
            case ReplaceBookie():
                return Chosen(action, await self._choose(action))
            case StoreClosed():
                return await self._store(action)
            case _:
                try:
                    response = await self._ask(action)
                except Unauthorized as error:
                    return Silent(action, str(error), is_unauthorized=True)
                except (RetryableError, ProtocolError) as error:
                    return Silent(action, f"{type(error).__name__}: {error}")
                return _event_of(action, response)

    async def _ask(self, action: ReadLast | ReadEntry | AddEntry) -> ResponseBody:
        """One request, again while the bookie says that it is too busy."""
        options = self._opener.options
        is_add = isinstance(action, AddEntry)
        timeout_s = options.add_timeout_s if is_add else options.read_timeout_s
        give_up_at = trio.current_time() + timeout_s
        wait_s = _BUSY_WAIT_S
        while True:
            left_s = give_up_at - trio.current_time()
            response = await self._opener.pool.call(
                action.bookie, self._request_of(action), timeout_s=left_s
            )
            is_busy = response.status is Status.TOO_MANY_REQUESTS
            if not is_busy or trio.current_time() + wait_s >= give_up_at:
                return response
            await trio.sleep(wait_s)
            wait_s *= 2

    def _request_of(self, action: ReadLast | ReadEntry | AddEntry) -> ReadRequest | AddRequest:
        if isinstance(action, AddEntry):
            return AddRequest(
                self._ledger_id,
                action.entry_id,
                self._master_key,
                action.body,
                is_recovery=True,
                is_high_priority=True,
            )
        is_fencing = isinstance(action, ReadLast) or action.is_fencing
        return ReadRequest(
            self._ledger_id,
            INVALID_ENTRY_ID if isinstance(action, ReadLast) else action.entry_id,
            self._master_key if is_fencing else None,
            is_fencing=is_fencing,
            is_high_priority=True,
        )

    async def _choose(self, action: ReplaceBookie) -> str | None:
        """A bookie for the place of a failed one; None if there is none."""
        opener = self._opener
        try:
            available = await opener.bookies.available()
            chosen = placement.replace(
                action.ensemble,
                (action.index,),
                {bookie: info.host for bookie, info in available.items()},
                action.excluded,
                opener.rng,
            )
        except (NotEnoughBookies, MetadataUnavailable):
            return None
        return chosen[action.index]

    async def _store(self, action: StoreClosed) -> Stored | Conflicted:
        try:
            await self._opener.ledgers.compare_and_put(action.closed, self._version)
        except MetadataConflict:
            return Conflicted(action, await self._begin())
        return Stored(action)


def _event_of(action: ReadLast | ReadEntry | AddEntry, response: ResponseBody) -> Answered | Silent:
    if isinstance(action, AddEntry):
        if isinstance(response, AddResponse):
            return Answered(action, response.status)
    elif isinstance(response, ReadResponse):
        # Copied: the answer may lie in a receive buffer, and this is kept until added again.
        body = None if response.body is None else bytes(response.body)
        return Answered(action, response.status, body)
    # An answer to something else proves nothing, whatever it says.
    return Silent(action, f"answered with {type(response).__name__} {response.status.name}")
