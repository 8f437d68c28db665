"""The answer to a request that is not carried out, whatever was asked."""

from __future__ import annotations

from ledger.errors import Status
from ledger.wire.messages import (
    AddRequest,
    AddResponse,
    BatchReadRequest,
    BatchReadResponse,
    ForceLedgerRequest,
    ForceLedgerResponse,
    GetBookieInfoResponse,
    ListEntriesRequest,
    ListEntriesResponse,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    RequestBody,
    ResponseBody,
    WriteLacRequest,
    WriteLacResponse,
)


def refusal(body: RequestBody, status: Status) -> ResponseBody:
    """`status` in the form of the operation. Requests to authenticate or for TLS are always
    carried out, so they have none."""
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
