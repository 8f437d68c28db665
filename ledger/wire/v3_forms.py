"""Which of our fields is which of protobuf's, for every message of protocol v3.

Data only, by which `v3` translates. A message that is missing here cannot be sent or understood.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ledger.proto import bookkeeper_protocol_pb2 as pb
from ledger.wire import messages as m


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of one message, as pairs (ours, protobuf's). Optional ones may be None or
    absent."""

    operation: pb.OperationType.ValueType
    part: str
    body_type: type[Any]
    required: tuple[tuple[str, str], ...]
    optional: tuple[tuple[str, str], ...]
    has_status: bool


def _form(
    operation: pb.OperationType.ValueType,
    part: str,
    body_type: type[Any],
    required: str = "",
    optional: str = "",
    *,
    has_status: bool = True,
) -> Form:
    return Form(operation, part, body_type, _pairs(required), _pairs(optional), has_status)


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (ours, theirs) for ours, _, theirs in (pair.partition("=") for pair in text.split())
    )


_LEDGER = "ledger_id=ledgerId"
_ENTRY = "ledger_id=ledgerId entry_id=entryId"
_AUTH = "plugin=authPluginName payload=payload"
_KEY_AND_BODY = "master_key=masterKey body=body"
_LIST = pb.GET_LIST_OF_ENTRIES_OF_LEDGER
_AVAILABILITY = "availability=availabilityOfEntriesOfLedger"

_REQUESTS: Final = (
    _form(pb.ADD_ENTRY, "addRequest", m.AddRequest, f"{_ENTRY} {_KEY_AND_BODY}"),
    _form(
        pb.READ_ENTRY,
        "readRequest",
        m.ReadRequest,
        _ENTRY,
        "previous_lac=previousLAC timeout_ms=timeOut",
    ),
    _form(pb.AUTH, "authRequest", m.AuthRequest, _AUTH),
    _form(pb.WRITE_LAC, "writeLacRequest", m.WriteLacRequest, f"{_LEDGER} lac=lac {_KEY_AND_BODY}"),
    _form(pb.READ_LAC, "readLacRequest", m.ReadLacRequest, _LEDGER),
    _form(
        pb.GET_BOOKIE_INFO, "getBookieInfoRequest", m.GetBookieInfoRequest, "requested=requested"
    ),
    _form(pb.START_TLS, "startTLSRequest", m.StartTlsRequest),
    _form(pb.FORCE_LEDGER, "forceLedgerRequest", m.ForceLedgerRequest, _LEDGER),
    _form(_LIST, "getListOfEntriesOfLedgerRequest", m.ListEntriesRequest, _LEDGER),
)

_RESPONSES: Final = (
    _form(pb.ADD_ENTRY, "addResponse", m.AddResponse, _ENTRY),
    _form(
        pb.READ_ENTRY,
        "readResponse",
        m.ReadResponse,
        _ENTRY,
        "body=body max_lac=maxLAC lac_update_ms=lacUpdateTimestamp",
    ),
    _form(pb.AUTH, "authResponse", m.AuthResponse, _AUTH, has_status=False),
    _form(pb.WRITE_LAC, "writeLacResponse", m.WriteLacResponse, _LEDGER),
    _form(
        pb.READ_LAC,
        "readLacResponse",
        m.ReadLacResponse,
        _LEDGER,
        "lac_body=lacBody last_entry_body=lastEntryBody",
    ),
    _form(
        pb.GET_BOOKIE_INFO,
        "getBookieInfoResponse",
        m.GetBookieInfoResponse,
        optional="total_bytes=totalDiskCapacity free_bytes=freeDiskSpace",
    ),
    _form(pb.START_TLS, "startTLSResponse", m.StartTlsResponse, has_status=False),
    _form(pb.FORCE_LEDGER, "forceLedgerResponse", m.ForceLedgerResponse, _LEDGER),
    _form(_LIST, "getListOfEntriesOfLedgerResponse", m.ListEntriesResponse, _LEDGER, _AVAILABILITY),
)

REQUEST_OF_TYPE: Final = {form.body_type: form for form in _REQUESTS}
REQUEST_OF_OPERATION: Final = {int(form.operation): form for form in _REQUESTS}
RESPONSE_OF_TYPE: Final = {form.body_type: form for form in _RESPONSES}
RESPONSE_OF_OPERATION: Final = {int(form.operation): form for form in _RESPONSES}
