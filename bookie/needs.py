"""What a request makes a bookie keep in memory until a journal or a checkpoint has got so far.

Adds are not asked about, but for the ledgers that they make known: frames of adds have bounds of
their own (`bookie.server.backpressure`).
"""

from __future__ import annotations

import enum

from bookie.storage.bookie_storage import BookieStorage
from ledger.errors import BookieIoError
from ledger.wire.messages import (
    AddRequest,
    BatchReadRequest,
    ForceLedgerRequest,
    ReadRequest,
    RequestBody,
    WriteLacRequest,
)


class Need(enum.Flag):
    NOTHING = 0
    ANSWER = enum.auto()
    """One that waits for the journal."""
    FRAME = enum.auto()
    """In the journal, and there may be ever more of them."""
    STATE = enum.auto()
    """A new or changed ledger, which only a checkpoint stores."""
    URGENT = enum.auto()
    """Fencing: it may have what others may not."""


def need_of(storage: BookieStorage, body: RequestBody) -> Need:
    """Costs a look at the ledger: ask only when room is short."""
    if isinstance(body, WriteLacRequest):
        return Need.FRAME | Need.STATE | Need.ANSWER
    if isinstance(body, ForceLedgerRequest):
        return Need.ANSWER
    if not isinstance(body, AddRequest | ReadRequest | BatchReadRequest) or body.ledger_id < 0:
        return Need.NOTHING
    try:
        state = storage.state(body.ledger_id)
    except BookieIoError:
        return Need.NOTHING  # which is what it is answered with
    if isinstance(body, AddRequest):
        is_taken = not storage.gate.refuses(is_urgent=body.is_urgent)
        return Need.STATE if state is None and is_taken else Need.NOTHING
    if body.is_fencing:
        if state is None or not state.is_fenced:
            return Need.ANSWER | Need.STATE | Need.URGENT
        return Need.NOTHING if state.is_fence_durable else Need.ANSWER | Need.URGENT
    if isinstance(body, ReadRequest) and body.previous_lac is not None:
        return Need.NOTHING  # polls have a bound of their own
    if state is None or 0 <= body.entry_id <= state.lac:
        return Need.NOTHING
    return Need.ANSWER
