"""Replies to requests that failed or are not carried out, for every operation."""

from __future__ import annotations

import logging

from bookie.core.ledger_state import LedgerState
from bookie.storage.read_check import DamagedEntry
from ledger.errors import (
    BookieIoError,
    LedgerError,
    NoSuchEntry,
    NoSuchLedger,
    Status,
    UnknownLedgerState,
)
from ledger.runtime.logs import OF_PEER
from ledger.wire.messages import (
    AddRequest,
    AddResponse,
    AuthRequest,
    BatchReadRequest,
    BatchReadResponse,
    ErrorResponse,
    ForceLedgerRequest,
    ForceLedgerResponse,
    GetBookieInfoResponse,
    ListEntriesRequest,
    ListEntriesResponse,
    Operation,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    RequestBody,
    ResponseBody,
    StartTlsRequest,
    StartTlsResponse,
    WriteLacRequest,
    WriteLacResponse,
)

_log = logging.getLogger(__name__)

_STATUS_OF_ERROR: dict[type[LedgerError], Status] = {
    NoSuchEntry: Status.NO_SUCH_ENTRY,
    NoSuchLedger: Status.NO_SUCH_LEDGER,
    UnknownLedgerState: Status.UNKNOWN_LEDGER_STATE,
    BookieIoError: Status.IO_ERROR,
}


def error_reply(body: RequestBody, status: Status) -> ResponseBody:
    """Returns the response of the operation with an error status. It says so without a message of
    the operation where that has no status (AUTH)."""
    if isinstance(body, AuthRequest):
        return ErrorResponse(status, Operation.AUTH)
    if isinstance(body, StartTlsRequest):
        return StartTlsResponse(status)
    if isinstance(body, AddRequest):
        return AddResponse(status, body.ledger_id, body.entry_id, body.entry_id)
    if isinstance(body, ReadRequest):
        return ReadResponse(status, body.ledger_id, body.entry_id)
    if isinstance(body, BatchReadRequest):
        return BatchReadResponse(status, body.ledger_id, body.entry_id)
    if isinstance(body, ReadLacRequest):
        return ReadLacResponse(status, body.ledger_id)
    if isinstance(body, WriteLacRequest):
        return WriteLacResponse(status, body.ledger_id)
    if isinstance(body, ForceLedgerRequest):
        return ForceLedgerResponse(status, body.ledger_id)
    if isinstance(body, ListEntriesRequest):
        return ListEntriesResponse(status, body.ledger_id)
    return GetBookieInfoResponse(status)


def status_of_absent(state: LedgerState) -> Status:
    """Returns the status for an entry that is certainly not stored here."""
    return Status.UNKNOWN_LEDGER_STATE if state.is_absence_unknown else Status.NO_SUCH_ENTRY


def read_refused(error: LedgerError, ledger_id: int, entry_id: int, asked_id: int) -> ReadResponse:
    """Returns the response to a read that failed; `asked_id` is the id in the request. Of a damaged
    entry it holds the stored bytes, by which a verification distinguishes damage from a disk that
    may read the entry the next time. Other clients ignore them, as Apache's do."""
    data = error.data if isinstance(error, DamagedEntry) else None
    status = status_of_error(error, ledger_id, entry_id)
    return ReadResponse(status, ledger_id, asked_id, data)


def status_of_error(error: LedgerError, ledger_id: int, entry_id: int) -> Status:
    """Returns the status for an error of storage. An error that says nothing about whether the
    entry exists is an I/O error, and is logged."""
    status = _STATUS_OF_ERROR.get(type(error), Status.IO_ERROR)
    if status is Status.IO_ERROR and not isinstance(error, DamagedEntry):  # reported once for a log
        _log.error(
            "read failed ledger=%d entry=%d cause=%s", ledger_id, entry_id, error, extra=OF_PEER
        )
    return status
