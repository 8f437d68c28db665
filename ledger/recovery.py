"""Recovery of one ledger: fences its writer, finds its end and closes it there.

This is the shell; `ledger.core.recovery` decides. It may be stopped anywhere and begun again, also
by several clients at once. It must never close a ledger except by compare-and-set.
"""

from __future__ import annotations

import logging
import random

import trio

from ledger.connection.authorization import unauthorized
from ledger.connection.pool import BookiePool
from ledger.core.entry import DigestType, master_key
from ledger.core.metadata import LedgerMetadata, digest_of
from ledger.core.permissions import Role
from ledger.core.placement.policies import DEFAULT_PLACEMENT, placement_or_default
from ledger.core.recovery import RecoveryCore
from ledger.core.recovery_events import (
    Action,
    AddEntry,
    Answered,
    BookieChosen,
    Event,
    LedgerConflicted,
    LedgerStored,
    NoAnswer,
    ReadEntry,
    ReadLast,
    ReplaceBookie,
    StoreClosed,
)
from ledger.errors import (
    INVALID_ENTRY_ID,
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
from ledger.runtime.drive import drive
from ledger.wire.messages import AddRequest, AddResponse, ReadRequest, ReadResponse, ResponseBody

_log = logging.getLogger(__name__)

_BUSY_WAIT_S = 0.05
"""The first pause after a bookie reported that it is overloaded; doubles each time."""
_BEGIN_TRIES_MAX = 100


class LedgerRecovery:
    """One recovery of one ledger: performs the actions that the core asks for.

    Args:
        pool: the client's connections.
        ledgers: where the ledger's metadata is read and changed.
        bookies: the bookies that may replace a failed one.
        options: `add_timeout_s` and `read_timeout_s` bound each request.
        rng: chooses among bookies that could replace a failed one.
        ledger_id: the ledger to recover.
        password: of the ledger.
        digest_type: of a ledger whose metadata is too old to name one.
    """

    def __init__(
        self,
        pool: BookiePool,
        ledgers: LedgerStore,
        bookies: BookieRegistry,
        *,
        options: ClientOptions,
        rng: random.Random,
        ledger_id: int,
        password: bytes,
        digest_type: DigestType | None = None,
    ) -> None:
        self._pool = pool
        self._ledgers = ledgers
        self._bookies = bookies
        self._options = options
        self._rng = rng
        self._ledger_id = ledger_id
        self._password = password
        self._digest_type = digest_type
        self._master_key = master_key(password)
        self._version = -1
        self._quorums = 1, 1
        self._placement = DEFAULT_PLACEMENT

    async def run(self) -> LedgerMetadata:
        """Returns the metadata of the closed ledger, which holds every acknowledged entry.

        Raises NoSuchLedger, Unauthorized, RecoveryIncomplete (retry later), MetadataUnavailable,
        MetadataConflict.
        """
        metadata = await self._begin()
        if metadata.is_closed:
            return metadata
        digest = digest_of(metadata, self._password, self._digest_type)
        self._quorums = metadata.write_quorum, metadata.ack_quorum
        self._placement = placement_or_default(metadata.custom)
        core = RecoveryCore(metadata, digest, salt=self._rng.getrandbits(64))
        try:
            closed = await drive(core, self._perform)
        except Unauthorized as error:
            raise unauthorized(self._pool, metadata, Role.WRITE, error) from None
        if core.set_aside:
            _log.warning(
                "claims set aside ledger=%d last_entry=%d last_add_confirmed_claimed=%s",
                self._ledger_id,
                closed.last_entry_id,
                ",".join(f"{bookie}:{claimed}" for bookie, claimed in core.set_aside.items()),
            )
        return closed

    async def _begin(self) -> LedgerMetadata:
        """Stores IN_RECOVERY, unless it is stored or the ledger is closed. From then on the
        writer cannot change an ensemble nor close the ledger."""
        for _ in range(_BEGIN_TRIES_MAX):
            metadata, self._version = await self._ledgers.read(self._ledger_id)
            if metadata.is_closed or metadata.in_recovery() is metadata:
                return metadata
            try:
                self._version = await self._ledgers.compare_and_put(
                    metadata.in_recovery(), self._version
                )
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
                return BookieChosen(action, await self._choose(action))
            case StoreClosed():
                return await self._store(action)
            case _:
                try:
                    response = await self._ask(action)
                except Unauthorized as error:
                    return NoAnswer(action, str(error), is_unauthorized=True)
                except (RetryableError, ProtocolError) as error:
                    return NoAnswer(action, f"{type(error).__name__}: {error}")
                return _event_of(action, response)

    async def _ask(self, action: ReadLast | ReadEntry | AddEntry) -> ResponseBody:
        """Sends one request, and again while the bookie reports that it is overloaded."""
        is_add = isinstance(action, AddEntry)
        options = self._options
        timeout_s = options.add_timeout_s if is_add else options.read_timeout_s
        give_up_at = trio.current_time() + timeout_s
        wait_s = _BUSY_WAIT_S
        while True:
            left_s = give_up_at - trio.current_time()
            response = await self._pool.call(
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
        """Returns a replacement for a failed bookie; None if there is none."""
        try:
            chosen = self._placement.replace(
                action.ensemble,
                (action.index,),
                *self._quorums,
                await self._bookies.candidates(),
                action.excluded,
                self._rng,
            )
        except (NotEnoughBookies, MetadataUnavailable):
            return None
        return chosen[action.index]

    async def _store(self, action: StoreClosed) -> LedgerStored | LedgerConflicted:
        try:
            await self._ledgers.compare_and_put(action.closed, self._version)
        except MetadataConflict:
            return LedgerConflicted(action, await self._begin())
        return LedgerStored(action)


def _event_of(
    action: ReadLast | ReadEntry | AddEntry, response: ResponseBody
) -> Answered | NoAnswer:
    if isinstance(action, AddEntry):
        if isinstance(response, AddResponse):
            return Answered(action, response.status)
    elif isinstance(response, ReadResponse):
        # Copied: the body may be in a receive buffer, and it is kept until it is added again.
        body = None if response.body is None else bytes(response.body)
        return Answered(action, response.status, body)
    # The response to another kind of request proves nothing.
    return NoAnswer(
        action,
        f"answered with {type(response).__name__} {response.status.name}",
        is_unauthorized=response.status is Status.UNAUTHORIZED,
    )
