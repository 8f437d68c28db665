"""What a failed read is answered with."""

from __future__ import annotations

import logging

from bookie.core.ledger_state import LedgerState
from ledger.errors import (
    BookieIoError,
    LedgerError,
    NoSuchEntry,
    NoSuchLedger,
    Status,
    UnknownLedgerState,
)

_log = logging.getLogger(__name__)

_STATUS_OF_ERROR: dict[type[LedgerError], Status] = {
    NoSuchEntry: Status.NO_SUCH_ENTRY,
    NoSuchLedger: Status.NO_SUCH_LEDGER,
    UnknownLedgerState: Status.UNKNOWN_LEDGER_STATE,
    BookieIoError: Status.IO_ERROR,
}


def status_of_absent(state: LedgerState) -> Status:
    """Of an entry that is surely not here."""
    return Status.UNKNOWN_LEDGER_STATE if state.is_limbo else Status.NO_SUCH_ENTRY


def status_of(error: LedgerError, ledger_id: int, entry_id: int) -> Status:
    """Doubt is an I/O error, and is logged."""
    status = _STATUS_OF_ERROR.get(type(error), Status.IO_ERROR)
    if status is Status.IO_ERROR:
        _log.error("read failed ledger=%d entry=%d cause=%s", ledger_id, entry_id, error)
    return status
